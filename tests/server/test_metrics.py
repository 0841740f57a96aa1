"""Metrics of a cluster: counted only with --metrics, one registry per cluster, in Prometheus' format."""

from __future__ import annotations

import asyncio
import urllib.request
from urllib.error import HTTPError

from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from ottla.client.client import Client
from ottla.protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.server.metrics import METRICS, ClusterMetrics
from ottla.server.web import WebServer, metrics_routes
from ottla.server.web_options import WebOptions
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
    producer.flush(60)


def test_requests_bytes_and_latencies_are_counted_by_api() -> None:
    with Cluster(topics=["counted"]) as cluster:
        produce(cluster, "counted", 1)
        metrics = measure(cluster)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) not in read(cluster, metrics)
        produce(cluster, "counted", 10)
        content = read(cluster, metrics)
        requests = content["ottla_requests_total", frozenset(("1", "Produce"))]
        assert requests >= 1
        assert content["ottla_request_bytes_total", frozenset(("1", "Produce"))] > 10_000
        assert content["ottla_response_bytes_total", frozenset(("1", "Produce"))] > 0
        assert content["ottla_request_seconds_count", frozenset(("1", "Produce"))] == requests
        assert content["ottla_request_seconds_bucket", frozenset(("1", "Produce", "+Inf"))] == requests
        assert content["ottla_received_bytes_total", frozenset(("1",))] > 10_000
        assert content["ottla_partition_high_watermark", frozenset(("counted", "0"))] == 11
        assert content["ottla_log_bytes", frozenset(("1", "/ottla"))] > 11_000
        assert content["ottla_topics", frozenset()] == 1


def share(cluster: Cluster, topic: str) -> Client:
    """Fetch as a member of a share group and accept the first record."""
    client = Client(cluster.bootstrap, timeout=120)
    start = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    begin = AlterShareGroupOffsetsRequest(
        group_id="sharers", topics=[AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[start])]
    )
    node = client.coordinator("sharers")
    assert client.to_node(node, begin, AlterShareGroupOffsetsResponse).responses[0].partitions[0].error_code == 0
    topic_id = client.topics([topic])[0].id
    for epoch in (0, 1):
        partition = FetchPartition(partition_index=0)
        if epoch:
            partition.acknowledgement_batches = [
                AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
            ]
        fetch = ShareFetchRequest(
            group_id="sharers",
            member_id="M" * 22,
            share_session_epoch=epoch,
            max_wait_ms=0 if epoch else 60_000,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
        )
        response = client.to_node(client.leader(topic, 0), fetch, ShareFetchResponse)
        assert response.error_code == 0
        if epoch == 0:
            assert response.responses[0].partitions[0].acquired_records[0].last_offset == 2
    return client


def test_share_groups_are_counted() -> None:
    with Cluster(topics=["shared"]) as cluster:
        produce(cluster, "shared", 3)
        metrics = measure(cluster)
        client = share(cluster, "shared")
        content = read(cluster, metrics)
        assert content["ottla_groups", frozenset(("1", "share", "Empty"))] == 1
        assert content["ottla_share_sessions", frozenset(("1",))] == 1
        assert content["ottla_share_partitions", frozenset(("1",))] == 1
        assert content["ottla_share_records_in_flight", frozenset(("sharers", "shared", "0"))] == 2
        assert content["ottla_share_batches_in_flight", frozenset(("sharers", "shared", "0"))] >= 1
        assert content["ottla_share_acknowledgements_total", frozenset(("1", "accept"))] == 1
        assert content["ottla_share_acknowledgements_total", frozenset(("1", "reject"))] == 0
        assert content["ottla_share_lock_timeouts_total", frozenset(("1",))] == 0
        client.close()


def test_exactly_the_declared_metrics_are_exported() -> None:
    with Cluster(2, topics=["some:2"]) as cluster:
        metrics = measure(cluster)
        produce(cluster, "some", 3)
        client = share(cluster, "some")
        names = {name for name, _ in read(cluster, metrics)}
        client.close()
    shown = {name for name in METRICS if METRICS[name].kind != "histogram"}
    shown |= {
        f"{name}_{part}" for name in METRICS if METRICS[name].kind == "histogram" for part in ("bucket", "sum", "count")
    }
    assert {name for name in names if not name.endswith("_created")} == shown


def test_clusters_have_separate_metrics() -> None:
    with Cluster(topics=["one"]) as first, Cluster(topics=["one"]) as second:
        busy, idle = measure(first), measure(second)
        produce(first, "one", 1)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) in read(first, busy)
        assert ("ottla_requests_total", frozenset(("1", "Produce"))) not in read(second, idle)


async def test_metrics_page_answers_prometheus() -> None:
    server = WebServer(WebOptions())
    url = server.bind()
    await server.serve(metrics_routes(lambda: b"ottla_topics 1.0\n"))

    def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        request = urllib.request.Request(url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()

    try:
        assert await asyncio.to_thread(get, "/metrics") == (200, b"ottla_topics 1.0\n")
        assert await asyncio.to_thread(get, "/metrics?x=1") == (200, b"ottla_topics 1.0\n")
        assert await asyncio.to_thread(get, "/metrics", "HEAD") == (200, b"")
        assert (await asyncio.to_thread(get, "/other"))[0] == 404
        assert (await asyncio.to_thread(get, "/metrics", "POST"))[0] == 405
    finally:
        await server.stop()
