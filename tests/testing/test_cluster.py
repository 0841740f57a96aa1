"""`Cluster` with real clients."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from ottla.testing import Cluster
from ottla.world import VirtualClock

if TYPE_CHECKING:
    from pathlib import Path


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(count):
        producer.produce(topic, str(number), key=str(number % 7), headers={"n": str(number)})
    assert producer.flush(60) == 0


def test_records_are_read_without_a_client() -> None:
    with Cluster(topics=["orders:3"]) as cluster:
        produce(cluster.bootstrap, "orders", 50)
        stored = [record for index in range(3) for record in cluster.records("orders", index)]
        assert sorted(int(record.value or b"") for record in stored) == list(range(50))
        assert all(record.headers == (("n", record.value),) for record in stored)
        assert sum(cluster.partition("orders", index).high_watermark for index in range(3)) == 50


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_reads_produced_records(protocol: str) -> None:
    with Cluster(topics=["t:2"]) as cluster:
        produce(cluster.bootstrap, "t", 20)
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "g",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["t"])
        seen: set[str] = set()
        while len(seen) < 20:
            message = consumer.poll(60)
            assert message is not None, "no record was received"
            assert message.error() is None
            value = message.value()
            assert value is not None
            seen.add(value.decode())
        consumer.close()


def test_close_is_idempotent_with_clients_connected() -> None:
    cluster = Cluster(topics=["t"]).start()
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.subscribe(["t"])
    consumer.poll(0.1)
    closer = threading.Thread(target=cluster.close)
    closer.start()
    closer.join(60)
    assert not closer.is_alive()
    cluster.close()


def test_ten_clusters_run_in_parallel() -> None:
    clusters = [Cluster(topics=["t"]).start() for _ in range(10)]
    try:
        assert len({cluster.bootstrap for cluster in clusters}) == 10
        for number, cluster in enumerate(clusters):
            produce(cluster.bootstrap, "t", number)
        assert [len(cluster.records("t")) for cluster in clusters] == list(range(10))
    finally:
        for cluster in clusters:
            cluster.close()


def test_brokers_share_leadership() -> None:
    with Cluster(brokers=3, topics={"t": {"partitions": 6, "replication_factor": 3}}) as cluster:
        produce(cluster.bootstrap, "t", 100)
        leaders = {cluster.partition("t", index).leader for index in range(6)}
        assert leaders == {1, 2, 3}
        assert sum(len(cluster.records("t", index)) for index in range(6)) == 100


def test_data_on_disk_survives_restart(tmp_path: object) -> None:
    with Cluster(topics=["t"], data_dir=str(tmp_path)) as cluster:
        produce(cluster.bootstrap, "t", 10)
    with Cluster(data_dir=str(tmp_path)) as cluster:
        assert [record.offset for record in cluster.records("t")] == list(range(10))


def test_virtual_time_moves_only_by_advance() -> None:
    configs = {"retention.ms": "1000", "file.delete.delay.ms": "0"}
    clock = VirtualClock()
    with Cluster(topics={"t": {"configs": configs}}, clock=clock) as cluster:
        before = cluster.call(lambda broker: broker.world.clock.now_ms())
        assert cluster.call(lambda broker: broker.world.clock.now_ms()) == before
        cluster.advance(30)
        assert cluster.call(lambda broker: broker.world.clock.now_ms()) == before + 30_000


async def test_async_with() -> None:
    async with Cluster(topics=["t"]) as cluster:
        assert cluster.topics() == ["t"]


def test_stopped_cluster_raises() -> None:
    with pytest.raises(RuntimeError, match="not running"):
        Cluster().topics()


def test_wrong_config_fails_at_start() -> None:
    with pytest.raises(ValueError, match=r"log\.retention\.bytes"):
        Cluster(configs={"log.retention.bytes": "many"}).start()


def test_same_seed_gives_same_ids() -> None:
    ids = []
    for _ in range(2):
        with Cluster(topics=["t"], seed=7) as cluster:
            ids.append(cluster.call(lambda broker: (broker.cluster_id, dict(broker.image.topic_ids))))
    assert ids[0] == ids[1]


def test_control_api_and_metrics_are_served_in_process() -> None:
    with Cluster(topics=["t"], control=0, metrics=0) as cluster:
        with urllib.request.urlopen(cluster.control_url + "/state", timeout=60) as response:
            assert json.load(response)["topics"] == ["t"]
        with urllib.request.urlopen(cluster.metrics_url, timeout=60) as response:
            assert b"ottla_topics" in response.read()
    with pytest.raises(OSError):
        urllib.request.urlopen(cluster.control_url, timeout=60)


def test_http_url_without_http_server_is_an_error() -> None:
    with Cluster() as cluster, pytest.raises(RuntimeError, match=r"Cluster\(control=0\)"):
        _ = cluster.control_url


def test_control_beyond_loopback_requires_a_token() -> None:
    with pytest.raises(ValueError, match="a token is required"):
        Cluster(control="0.0.0.0:0")


def test_event_file_has_the_end_of_every_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = tmp_path / "events.jsonl"
    with Cluster(topics=["t"], events=str(events)) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        producer.produce("t", "a")
        producer.flush(60)
    kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()]
    assert kinds.count("connection.opened") == kinds.count("connection.closed") > 0
    assert "closed file" not in caplog.text
