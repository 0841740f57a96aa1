"""Log directories that Apache Kafka and ottla open in turn."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from .apache_kafka import ApacheKafka, check_log_directory
from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

pytestmark = pytest.mark.interop

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START = 1_700_000_000_000


def sample(topic: str, turn: int, partition: int = 0) -> list[Record]:
    """Records with everything that may be null, empty, repeated or long."""
    time = START + turn * 1000
    return [
        Record(topic, b"value %d" % turn, b"key", (("trace", b"abc"),), partition, time),
        Record(topic, None, b"key", (), partition, time + 1),
        Record(topic, b"no key", None, (), partition, time + 2),
        Record(topic, b"", b"", (("empty", b""), ("null", None), ("", b"x"), ("trace", b"2")), partition, time),
        Record(topic, bytes(range(256)), "schlüssel".encode(), (), partition, time + 5),
        Record(topic, b"a" * 3000, b"long %d" % turn, (), partition, time + 4),
    ]


def as_sent(records: list[Record]) -> list[dict[str, object]]:
    return [record.to_json() for record in records]


class Writer:
    """Writes to whichever broker has the directory, and knows what must be there."""

    def __init__(self, clients: JavaClients) -> None:
        self.clients = clients
        self.written: dict[str, list[Record]] = {}

    def create(self, bootstrap: str, turn: int) -> None:
        admin = self.clients.admin(bootstrap)
        for codec in CODECS:
            admin.create_topic(f"{codec}-{turn}", 2)
            self.written[f"{codec}-{turn}"] = []
        admin.close()

    def produce(self, bootstrap: str, turn: int) -> None:
        """Add to every topic there is, each with its own compression."""
        for topic, records in self.written.items():
            settings = {"compression_type": topic.partition("-")[0], "enable_idempotence": "false", "linger_ms": "20"}
            with self.clients.producer(bootstrap, **settings) as producer:
                for partition in range(2):
                    new = sample(topic, turn, partition)
                    producer.send(new)
                    records.extend(new)

    def check(self, bootstrap: str) -> None:
        """Every record of every turn is there, in order, with its offset."""
        result = self.clients.read_all(bootstrap, list(self.written))
        for topic, records in self.written.items():
            for partition in range(2):
                here = [entry for entry in result if (entry.topic, entry.partition) == (topic, partition)]
                assert as_sent(here) == as_sent([record for record in records if record.partition == partition])
                assert [record.offset for record in here] == list(range(len(here)))


def test_kafka_opens_ottla_directory_without_warnings(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    writer = Writer(java_clients)
    with ottla_factory(tmp_path / "data") as ottla:
        writer.create(ottla.bootstrap, 0)
        writer.produce(ottla.bootstrap, 0)
        writer.check(ottla.bootstrap)
    assert ottla.complaints() == []
    check_log_directory(tmp_path / "data", java_clients)
    with apache_kafka_factory(tmp_path / "data") as kafka:
        writer.check(kafka.bootstrap)
        assert kafka.cluster_id == ottla.cluster_id
    assert kafka.complaints() == []
    assert kafka.recovered_logs() == []


def test_ottla_opens_kafka_directory(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    writer = Writer(java_clients)
    with apache_kafka_factory(tmp_path / "data") as kafka:
        writer.create(kafka.bootstrap, 0)
        writer.produce(kafka.bootstrap, 0)
    with ottla_factory(tmp_path / "data") as ottla:
        writer.check(ottla.bootstrap)
        assert ottla.cluster_id == kafka.cluster_id
    assert ottla.complaints() == []


@pytest.mark.parametrize("dynamic_quorum", [False, True], ids=["static quorum", "dynamic quorum"])
def test_directory_is_handed_back_and_forth(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
    dynamic_quorum: bool,
) -> None:
    data = tmp_path / "data"
    kafka = apache_kafka_factory(data, dynamic_quorum=dynamic_quorum)
    ottla = ottla_factory(data)
    writer = Writer(java_clients)
    nodes: list[ApacheKafka | OttlaNode] = [kafka, ottla] if dynamic_quorum else [ottla, kafka]
    for turn in range(6):
        node = nodes[turn % 2]
        with node:
            writer.create(node.bootstrap, turn)
            writer.produce(node.bootstrap, turn)
            writer.check(node.bootstrap)
        assert node.complaints() == []
    assert kafka.recovered_logs() == []
    check_log_directory(data, java_clients)


def test_kafka_recovers_directory_of_killed_ottla(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    writer = Writer(java_clients)
    ottla = ottla_factory(tmp_path / "data").start()
    writer.create(ottla.bootstrap, 0)
    writer.produce(ottla.bootstrap, 0)
    ottla.kill()
    shutil.copytree(tmp_path / "data", tmp_path / "again")
    with apache_kafka_factory(tmp_path / "data") as kafka:
        writer.check(kafka.bootstrap)
    with ottla_factory(tmp_path / "again") as recovered:
        writer.check(recovered.bootstrap)


def test_ottla_recovers_directory_of_killed_kafka(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    writer = Writer(java_clients)
    kafka = apache_kafka_factory(tmp_path / "data").start()
    writer.create(kafka.bootstrap, 0)
    writer.produce(kafka.bootstrap, 0)
    kafka.kill()
    with ottla_factory(tmp_path / "data") as ottla:
        writer.check(ottla.bootstrap)
    check_log_directory(tmp_path / "data", java_clients)
