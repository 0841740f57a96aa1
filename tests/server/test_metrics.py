"""The metrics of a cluster: counted only when wanted, one registry each, read as Prometheus reads them."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from urllib.error import HTTPError

from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from ottla.server.metrics import METRICS, ClusterMetrics
from ottla.server.metrics_page import MetricsPage
from ottla.testing import Cluster

Samples = dict[tuple[str, frozenset[str]], float]


def measure(cluster: Cluster) -> ClusterMetrics:
    def make(_: object) -> ClusterMetrics:
        assert cluster._running is not None
        return ClusterMetrics(cluster._running)

    return cluster.call(make)


def read(cluster: Cluster, metrics: ClusterMetrics) -> Samples:
    text = cluster.call(lambda _: metrics.text()).decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def produce(cluster: Cluster, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(count):
        producer.produce(topic, bytes(1000), partition=0)
    producer.flush(30)


def test_requests_bytes_and_latencies_are_counted_by_api() -> None:
    with Cluster(topics=["counted"]) as cluster:
        produce(cluster, "counted", 1)
        metrics = measure(cluster)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) not in read(cluster, metrics)
        produce(cluster, "counted", 10)
        found = read(cluster, metrics)
        requests = found["ottla_requests_total", frozenset(("1", "Produce"))]
        assert requests >= 1
        assert found["ottla_request_bytes_total", frozenset(("1", "Produce"))] > 10_000
        assert found["ottla_response_bytes_total", frozenset(("1", "Produce"))] > 0
        assert found["ottla_request_seconds_count", frozenset(("1", "Produce"))] == requests
        assert found["ottla_request_seconds_bucket", frozenset(("1", "Produce", "+Inf"))] == requests
        assert found["ottla_received_bytes_total", frozenset(("1",))] > 10_000
        assert found["ottla_partition_high_watermark", frozenset(("counted", "0"))] == 11
        assert found["ottla_log_bytes", frozenset(("1", "/ottla"))] > 11_000
        assert found["ottla_topics", frozenset()] == 1


def test_every_declared_metric_is_there_and_no_other() -> None:
    with Cluster(2, topics=["some:2"]) as cluster:
        metrics = measure(cluster)
        produce(cluster, "some", 1)
        names = {name for name, _ in read(cluster, metrics)}
    shown = {name for name in METRICS if METRICS[name].kind != "histogram"}
    shown |= {
        f"{name}_{part}" for name in METRICS if METRICS[name].kind == "histogram" for part in ("bucket", "sum", "count")
    }
    assert {name for name in names if not name.endswith("_created")} == shown


def test_two_clusters_count_apart() -> None:
    with Cluster(topics=["one"]) as first, Cluster(topics=["one"]) as second:
        busy, idle = measure(first), measure(second)
        produce(first, "one", 1)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) in read(first, busy)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) not in read(second, idle)


async def test_the_page_answers_what_prometheus_asks() -> None:
    page = MetricsPage(lambda: b"ottla_topics 1.0\n")
    await page.start("127.0.0.1", 0)

    def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        request = urllib.request.Request(page.url.removesuffix("/metrics") + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()

    try:
        assert await asyncio.to_thread(get, "/metrics") == (200, b"ottla_topics 1.0\n")
        assert await asyncio.to_thread(get, "/metrics?x=1") == (200, b"ottla_topics 1.0\n")
        assert await asyncio.to_thread(get, "/metrics", "HEAD") == (200, b"")
        assert (await asyncio.to_thread(get, "/other"))[0] == 404
        assert (await asyncio.to_thread(get, "/metrics", "POST"))[0] == 405
        reader, writer = await asyncio.open_connection("127.0.0.1", int(page.url.split(":")[2].split("/")[0]))
        writer.write(b"x" * 100_000)
        with contextlib.suppress(ConnectionError):  # it hangs up on what is no HTTP
            assert await reader.read() == b""
        writer.close()
    finally:
        await page.stop()
