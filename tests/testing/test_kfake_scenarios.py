"""Scenarios of kfake's own tests with ottla and other clients; docs/kfake-scenarios.md has the whole list."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from ottla.testing import Cluster, VirtualClock
from ottla.testing.security import allow
from tests.testing.clients import assigned, consumer, eventually, producer, read, send, values

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = {"isolation_level": "read_committed"}


# Persistence


def test_commits_survive_restart(tmp_path: Path) -> None:
    with Cluster(topics=["t"], data_dir=str(tmp_path)) as cluster:
        send(producer(cluster), "t", "a")
        reader = consumer(cluster, "t")
        read(reader, 1)
        reader.commit(asynchronous=False)
        reader.close()
    with Cluster(data_dir=str(tmp_path)) as cluster:
        assert cluster.group("g").offsets == {("t", 0): 1}
        send(producer(cluster), "t", "b")
        reader = consumer(cluster, "t")
        assert read(reader, 1) == ["b"]
        reader.close()


def test_open_transaction_survives_restart_and_times_out(tmp_path: Path) -> None:
    with Cluster(topics=["t"], data_dir=str(tmp_path)) as cluster:
        client = producer(cluster, transactional_id="x", transaction_timeout_ms=120_000)
        client.init_transactions(60)
        client.begin_transaction()
        client.produce("t", "a")
        client.flush(60)
        now = cluster.call(lambda broker: broker.world.clock.now_ms())
    clock = VirtualClock(now)
    with Cluster(data_dir=str(tmp_path), clock=clock) as cluster:
        assert cluster.transaction("x").state == "Ongoing"
        assert cluster.partition("t").last_stable_offset == 0
        cluster.advance(150)
        assert cluster.transaction("x").state == "CompleteAbort"
        assert cluster.partition("t").last_stable_offset == 2


def test_aborted_records_stay_aborted_after_restart(tmp_path: Path) -> None:
    with Cluster(topics=["t"], data_dir=str(tmp_path)) as cluster:
        client = producer(cluster, transactional_id="x")
        client.init_transactions(60)
        for value, end in (("no", client.abort_transaction), ("yes", client.commit_transaction)):
            client.begin_transaction()
            client.produce("t", value)
            client.flush(60)
            end(60)
    with Cluster(data_dir=str(tmp_path)) as cluster:
        reader = consumer(cluster, "t", **COMMITTED)
        assert read(reader, 1) == ["yes"]
        reader.close()


def test_users_acls_topics_and_configs_survive_restart(tmp_path: Path) -> None:
    users = {"alice": "secret", "admin": "root"}
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    first = Cluster(
        topics={"t": {"configs": {"retention.ms": "12345"}}, "gone": {}},
        data_dir=str(tmp_path),
        users=users,
        superusers=["admin"],
        acls=[allow("alice", "write", topic="t")],
    )
    with first as cluster:
        admin = AdminClient(
            {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "admin",
                "sasl.password": "root",
            }
        )
        admin.delete_topics(["gone"])["gone"].result(60)
    with Cluster(data_dir=str(tmp_path), users=users, superusers=["admin"], acls=[]) as cluster:
        assert cluster.topics() == ["t"]
        assert cluster.call(lambda broker: broker.partitions["t", 0].log.config.retention_ms) == 12345
        client = producer(cluster, sasl_username="alice", sasl_password="secret", **login)
        assert send(client, "t", "a").error is None


def test_duplicate_batch_is_detected_after_restart(tmp_path: Path) -> None:
    """Producer sequence numbers survive a restart, so that a retried batch is not stored twice."""
    with Cluster(topics=["t"], data_dir=str(tmp_path)) as cluster:
        send(producer(cluster, enable_idempotence=True), "t", "a")
        (sent,) = cluster.requests("Produce")
        frame = sent.frame
    with Cluster(data_dir=str(tmp_path)) as cluster:
        assert _ask(cluster.bootstrap, frame)
        assert values(cluster, "t") == ["a"]


def _ask(bootstrap: str, frame: bytes) -> bytes:
    import socket

    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        return connection.recv(4096)


# Malformed responses


def _with_records(change: Any) -> Any:
    """Changes the bytes of the first batch in a fetch response."""

    def edit(response: Any) -> Any:
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.records is not None and len(partition.records):
                    data = bytearray(_bytes(partition.records))
                    change(data)
                    partition.records = bytes(data)
        return response

    return edit


def _bytes(records: Any) -> bytes:
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    with records as opened:
        return bytes(opened.read(0, len(opened)))


def _negative_length(data: bytearray) -> None:
    struct.pack_into(">i", data, 8, -5)


def _negative_count(data: bytearray) -> None:
    struct.pack_into(">i", data, 57, -1)


def _huge_count(data: bytearray) -> None:
    struct.pack_into(">i", data, 57, 2**31 - 1)


def _bad_crc(data: bytearray) -> None:
    data[17] ^= 0xFF


@pytest.mark.parametrize("change", [_negative_length, _negative_count, _huge_count, _bad_crc])
def test_consumer_recovers_from_malformed_records(change: Any) -> None:
    with Cluster(topics=["t"]) as cluster:
        send(producer(cluster), "t", "a")
        has_data = {"topic": "t", "partition": 0, "times": 1}
        rule = cluster.on("Fetch", **has_data).edit(_with_records(change))
        reader = consumer(cluster, "t", check_crcs=True)
        eventually(lambda: reader.poll(0.05) is not None or rule.hits, "an answer of the hostile broker")
        eventually(lambda: _moved_on(reader, cluster), "the consumer to continue")
        reader.close()


def _moved_on(reader: Any, cluster: Cluster) -> bool:
    """Return whether the consumer has sent a further Fetch."""
    reader.poll(0.05)
    return len(cluster.requests("Fetch")) > 1


async def test_aiokafka_recovers_from_cut_frame() -> None:
    async with Cluster(topics=["t"]) as cluster:
        send(producer(cluster), "t", "a")
        rule = cluster.on("Fetch", topic="t").cut(after=10)
        async with AIOKafkaConsumer("t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as reader:
            message = await reader.getone()
        assert message.value == b"a"
        assert rule.hits == 1


def test_client_recovers_from_metadata_without_partitions() -> None:
    def empty(response: Any) -> Any:
        for topic in response.topics:
            topic.partitions = []
        return response

    with Cluster(topics=["t"]) as cluster:
        rule = cluster.on("Metadata", times=2, where=lambda seen: bool(seen.request.topics)).edit(empty)
        assert send(producer(cluster, topic_metadata_refresh_fast_interval_ms=10), "t", "a").error is None
        assert rule.hits >= 1


# Groups


def test_unused_offsets_expire() -> None:
    configs = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with Cluster(topics=["t"], configs=configs, clock=VirtualClock()) as cluster:
        reader = consumer(cluster)
        reader.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert cluster.group("g").offsets == {("t", 0): 1}
        cluster.advance(59)
        assert cluster.group("g").offsets == {("t", 0): 1}
        cluster.advance(3)
        assert all(group.group_id != "g" for group in cluster.groups())
        reader.close()


def test_lost_leave_is_followed_by_session_timeout() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        reader = consumer(cluster, "t", session_timeout_ms=60_000)
        assigned(cluster, reader)
        cluster.on("LeaveGroup", times=None).drop_connection()
        reader.close()
        assert cluster.group("g").state != "Empty"
        cluster.advance(100)
        assert cluster.group("g").state == "Empty"


def test_stable_offset_fetch_waits_for_transaction() -> None:
    """KIP-447: a stable OffsetFetch does not return offsets that an open transaction may change."""
    with Cluster(topics=["t", "out"]) as cluster:
        send(producer(cluster), "t", "a")
        reader = consumer(cluster, "t")
        read(reader, 1)
        client = producer(cluster, transactional_id="x")
        client.init_transactions(60)
        client.begin_transaction()
        client.produce("out", "b")
        client.send_offsets_to_transaction([TopicPartition("t", 0, 1)], reader.consumer_group_metadata(), 60)
        with pytest.raises(KafkaException):
            reader.committed([TopicPartition("t", 0)], timeout=1)
        client.commit_transaction(60)
        eventually(lambda: cluster.group("g").offsets.get(("t", 0)) == 1)
        reader.close()


# Logs


def test_consumer_skips_compacted_offsets() -> None:
    with Cluster(topics={"t": {"configs": {"cleanup.policy": "compact"}}}) as cluster:
        client = producer(cluster)
        for number in range(6):
            client.produce("t", str(number), key=str(number % 3))
        client.produce("t", None, key="0")
        client.flush(60)
        cluster.compact("t")
        assert [record.offset for record in cluster.records("t")] == [4, 5, 6]
        reader = consumer(cluster, "t")
        assert read(reader, 3) == ["4", "5", ""]
        reader.close()


def test_consumer_skips_deleted_records() -> None:
    with Cluster(topics=["t"]) as cluster:
        client = producer(cluster)
        for number in range(5):
            send(client, "t", str(number))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for future in admin.delete_records([TopicPartition("t", 0, 3)]).values():
            assert future.result(60).low_watermark == 3
        send(client, "t", "5")
        reader = consumer(cluster, "t")
        assert read(reader, 3) == ["3", "4", "5"]
        reader.close()


def test_out_of_range_position_is_reset() -> None:
    with Cluster(topics=["t"]) as cluster:
        send(producer(cluster), "t", "a")
        reader = consumer(cluster)
        reader.assign([TopicPartition("t", 0, 99)])
        assert read(reader, 1) == ["a"]
        reader.close()


def test_producer_uses_added_partitions() -> None:
    with Cluster(topics=["t"]) as cluster:
        client = producer(cluster, topic_metadata_refresh_interval_ms=100)
        send(client, "t", "a")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions("t", 3)])["t"].result(60)
        assert len(cluster.partitions("t")) == 3
        assert send(producer(cluster), "t", "b", 2).error is None
