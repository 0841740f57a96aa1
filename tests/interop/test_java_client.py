"""The harness of the Java clients, against the real Kafka."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from .java_client import CALL_SECONDS, WAIT_MS, JavaClients, KafkaClientError, Record, sasl_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop


def eventually(condition: Callable[[], bool]) -> None:
    """A broker learns of a change a moment after the controller has answered."""
    deadline = time.monotonic() + CALL_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the broker does not learn of it"
        time.sleep(0.1)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_round_trip(apache_kafka: ApacheKafka, java_clients: JavaClients, compression: str) -> None:
    topic = f"round-trip-{compression}"
    java_clients.admin(apache_kafka.bootstrap).create_topic(topic, 2)
    records = [
        Record(topic, b"value", b"key", (("a", b"1"), ("a", None), ("", b"")), partition=0, timestamp=1000),
        Record(topic, None, b"key", partition=0, timestamp=2000),
        Record(topic, b"\xff\x00", None, partition=1, timestamp=3000),
    ]
    with java_clients.producer(apache_kafka.bootstrap, compression_type=compression) as producer:
        sent = producer.send(records)
    assert [(record["partition"], record["offset"]) for record in sent] == [(0, 0), (0, 1), (1, 0)]
    read = java_clients.read_all(apache_kafka.bootstrap, [topic])
    assert [entry.to_json() for entry in read] == [record.to_json() for record in records]


def test_read_committed_skips_aborted_transaction(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    java_clients.admin(apache_kafka.bootstrap).create_topic("aborted")
    with java_clients.producer(apache_kafka.bootstrap, transactional_id="harness") as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([Record("aborted", b"no")])
        producer.abort()
        producer.begin()
        producer.send([Record("aborted", b"yes")])
        producer.send_offsets({"aborted:0": 1}, group="harness-offsets")
        producer.commit()
    read = java_clients.read_all(apache_kafka.bootstrap, ["aborted"], isolation_level="read_committed")
    assert [record.value for record in read] == [b"yes"]
    offsets = java_clients.admin(apache_kafka.bootstrap).call("list_group_offsets", groups=["harness-offsets"])
    assert offsets["harness-offsets"]["aborted:0"]["offset"] == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_two_consumers_share_group(apache_kafka: ApacheKafka, java_clients: JavaClients, protocol: str) -> None:
    topic, group = f"shared-{protocol}", f"group-{protocol}"
    admin = java_clients.admin(apache_kafka.bootstrap)
    admin.create_topic(topic, 2)
    settings = {"group_id": group, "group_protocol": protocol}
    with (
        java_clients.consumer(apache_kafka.bootstrap, **settings) as one,
        java_clients.consumer(apache_kafka.bootstrap, **settings) as two,
    ):
        one.subscribe(topic)
        one.await_assignment(2)
        two.subscribe(topic)
        first = one.call_later("await_assignment", count=1, timeout_ms=WAIT_MS)
        assert sorted([*two.await_assignment(1), *first.result(CALL_SECONDS)]) == [f"{topic}:0", f"{topic}:1"]
        members = admin.call("describe_consumer_groups", groups=[group])[group]["members"]
        assert len(members) == 2


def test_share_group_acknowledges(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    admin = java_clients.admin(apache_kafka.bootstrap)
    admin.create_topic("shares")
    ops = [["SET", "share.auto.offset.reset", "earliest"]]
    group = ["GROUP", "share-group"]
    admin.call("alter_configs", changes=[{"resource": group, "ops": ops}])
    eventually(
        lambda: (
            admin.call("describe_configs", resources=[group])["GROUP:share-group"]["share.auto.offset.reset"]["value"]
            == "earliest"
        )
    )
    with java_clients.producer(apache_kafka.bootstrap) as producer:
        producer.send([Record("shares", b"%d" % number) for number in range(3)])
    explicit = "explicit"
    settings = {"group_id": "share-group", "share_acknowledgement_mode": explicit}
    with java_clients.share_consumer(apache_kafka.bootstrap, **settings) as consumer:
        consumer.subscribe("shares")
        read = consumer.poll(min_records=3, acknowledge="ACCEPT")
    assert [(record.value, record.delivery_count) for record in read] == [(b"0", 1), (b"1", 1), (b"2", 1)]


def test_errors_keep_kafkas_names(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    admin = java_clients.admin(apache_kafka.bootstrap)
    admin.create_topic("twice")
    with pytest.raises(KafkaClientError) as caught:
        admin.create_topic("twice")
    assert (caught.value.name, caught.value.code) == ("TOPIC_ALREADY_EXISTS", 36)


def test_scram_users_log_in(apache_kafka: ApacheKafka, java_clients: JavaClients) -> None:
    admin = java_clients.admin(apache_kafka.bootstrap)
    user = {"user": "harness", "mechanism": "SCRAM-SHA-256", "password": "secret"}
    admin.call("alter_scram", users=[user])
    sasl = sasl_config("SCRAM-SHA-256", "harness", "secret")
    result: list[str] = []

    def logged_in() -> bool:
        try:
            cluster = java_clients.admin(apache_kafka.sasl_bootstrap, **sasl).call("describe_cluster")
        except KafkaClientError as error:
            if error.name != "SASL_AUTHENTICATION_FAILED":
                raise
            return False
        result.append(cluster["cluster_id"])
        return True

    eventually(logged_in)
    assert result == [apache_kafka.cluster_id]
