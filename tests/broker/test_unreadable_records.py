"""A record of an internal topic that cannot be loaded fails its own partition, is named in the log, and can be dropped.

The logs of all three coordinators are damaged in many ways, by bytes on the disk and by records that any client may
write with the client id of Kafka's admin tools; then the node is started again.
"""

from __future__ import annotations

import logging
import os
import random
import re
from itertools import count
from typing import TYPE_CHECKING

import pytest

from ottla.cluster.internal_topics import partition_for
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.protocol.messages import k24_add_partitions_to_txn as k24
from ottla.protocol.messages import k26_end_txn as k26
from ottla.protocol.messages import k68_consumer_group_heartbeat as k68
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k83_initialize_share_group_state as k83
from ottla.protocol.messages import k85_write_share_group_state as k85
from ottla.protocol.messages import k87_read_share_group_state_summary as k87
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from ottla.records.batch import iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.iterate import Record, iter_all_records
from ottla.storage.check.record_removal import RecordLocation, remove_record
from ottla.storage.check.repair import repair
from ottla.storage.environment import StorageEnvironment
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.protocol.schema import Message

PARTITIONS = 3
SETTINGS = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "share.coordinator.state.topic.num.partitions": str(PARTITIONS),
    "group.initial.rebalance.delay.ms": "0",
}
GROUPS, TRANSACTIONS, SHARES = "__consumer_offsets", "__transaction_state", "__share_group_state"
TOPICS = (GROUPS, TRANSACTIONS, SHARES)
COMMAND = re.compile(r"ottla log repair /data --drop-record (\S+)-(\d+)@(\d+)$")
SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "8"))
DAMAGES = ("cut key", "cut value", "flip key", "flip value", "type", "version", "absurd", "short", "swap")
ABSURD = (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8)


def name_in(partition: int, prefix: str) -> str:
    """Return a name that belongs to a partition."""
    return next(name for name in map(f"{prefix}-{{}}".format, count()) if partition_for(name, PARTITIONS) == partition)


class Node(LocalTalk):
    """A node whose coordinators have written records of every kind to each partition of their topics."""

    running = False

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.create("news", 2)
        topic = self.runtime.image.topic("news")
        assert topic is not None
        self.topic_id = topic.id
        for key_type, name in enumerate(("g", "t", f"s:{self.topic_id}:0")):
            request = k10.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
            self.ask_until_done(
                lambda request=request: self.quietly(request, k10.FindCoordinatorResponse).coordinators[0]
            )
        for partition in range(PARTITIONS):
            self.write_groups(partition)
            self.write_transactions(name_in(partition, "txn"))
            self.write_share_state(self.share_group(partition))

    def open(self) -> None:
        super().open()
        self.running = True

    def close(self) -> None:
        super().close()
        self.running = False

    def find_coordinator(self, request: k10.FindCoordinatorRequest) -> None:
        self.ask_until_done(lambda: self.quietly(request, k10.FindCoordinatorResponse).coordinators[0])

    def ask_until_done(self, ask: Callable[[], Message]) -> None:
        for _ in range(1_000):
            if ask().error_code == ErrorCode.NONE:  # type: ignore[attr-defined]
                return
            self.pause()
        raise AssertionError("not done")

    def share_group(self, partition: int) -> str:
        """Return a share group whose state of news-0 belongs to a partition of `__share_group_state`."""
        return next(
            group
            for group in map("sharers-{}".format, count())
            if partition_for(f"{group}:{self.topic_id}:0", PARTITIONS) == partition
        )

    def write_groups(self, partition: int) -> None:
        self.commit(name_in(partition, "simple"))
        classic = name_in(partition, "classic")
        protocol = k11.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\4news\0\0\0\0")
        join = k11.JoinGroupRequest(
            group_id=classic,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = self.quietly(join, k11.JoinGroupResponse, version=3)
        mine = k14.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
        sync = k14.SyncGroupRequest(
            group_id=classic, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[mine]
        )
        assert self.quietly(sync, k14.SyncGroupResponse, version=3).error_code == ErrorCode.NONE
        consumer = k68.ConsumerGroupHeartbeatRequest(
            group_id=name_in(partition, "consumer"),
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["news"],
            topic_partitions=[],
        )
        assert self.quietly(consumer, k68.ConsumerGroupHeartbeatResponse).error_code == ErrorCode.NONE
        share = k76.ShareGroupHeartbeatRequest(
            group_id=name_in(partition, "share"), member_id="member", member_epoch=0, subscribed_topic_names=["news"]
        )
        assert self.quietly(share, k76.ShareGroupHeartbeatResponse).error_code == ErrorCode.NONE
        streams = k88.StreamsGroupHeartbeatRequest(
            group_id=name_in(partition, "streams"),
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            process_id="process",
            topology=k88.Topology(epoch=0, subtopologies=[k88.Subtopology(subtopology_id="0", source_topics=["news"])]),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
        )
        assert self.quietly(streams, k88.StreamsGroupHeartbeatResponse).error_code == ErrorCode.NONE

    def commit(self, group: str) -> ErrorCode:
        """Commit offset 7 of news-0 without being a member."""
        offset_commit_request_partition = k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topic = k08.OffsetCommitRequestTopic(name="news", partitions=[offset_commit_request_partition])
        request = k08.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
        response = self.quietly(request, k08.OffsetCommitResponse, version=9)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def init_producer(self, transactional_id: str) -> k22.InitProducerIdResponse:
        request = k22.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=600_000)
        return self.quietly(request, k22.InitProducerIdResponse)

    def write_transactions(self, transactional_id: str) -> None:
        self.ask_until_done(lambda: self.init_producer(transactional_id))
        producer = self.init_producer(transactional_id)
        add = k24.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[k24.AddPartitionsToTxnTopic(name="news", partitions=[0])],
        )
        self.quietly(add, k24.AddPartitionsToTxnResponse, version=3)
        end = k26.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        assert self.quietly(end, k26.EndTxnResponse, version=4).error_code == ErrorCode.NONE
        self.pause()

    def write_share_state(self, group: str) -> None:
        start = k83.PartitionData(partition=0, state_epoch=1, start_offset=0)
        topic = k83.InitializeStateData(topic_id=self.topic_id, partitions=[start])
        self.quietly(
            k83.InitializeShareGroupStateRequest(group_id=group, topics=[topic]), k83.InitializeShareGroupStateResponse
        )
        batch = k85.StateBatch(first_offset=0, last_offset=4, delivery_state=2, delivery_count=1)
        state = k85.PartitionData(partition=0, state_epoch=1, leader_epoch=0, start_offset=-1, state_batches=[batch])
        written = k85.WriteStateData(topic_id=self.topic_id, partitions=[state])
        self.quietly(
            k85.WriteShareGroupStateRequest(group_id=group, topics=[written]), k85.WriteShareGroupStateResponse
        )

    def read_share_state(self, group: str) -> ErrorCode:
        partition_data = k87.PartitionData(partition=0, leader_epoch=0)
        topic = k87.ReadStateSummaryData(topic_id=self.topic_id, partitions=[partition_data])
        request = k87.ReadShareGroupStateSummaryRequest(group_id=group, topics=[topic])
        response = self.quietly(request, k87.ReadShareGroupStateSummaryResponse)
        return ErrorCode(response.results[0].partitions[0].error_code)

    def produce_as_admin(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        """Write a record to an internal topic, as a client with the client id of Kafka's tools may."""
        batch = BatchBuilder()
        batch.append(key, value, timestamp=self.world.clock.now_ms())
        partition_produce_data = k00.PartitionProduceData(index=partition, records=bytes(batch.build()))
        request = k00.ProduceRequest(
            acks=-1,
            timeout_ms=1_000,
            topic_data=[k00.TopicProduceData(name=topic, partition_data=[partition_produce_data])],
        )
        frame = encode_request(0, 9, 7, "__admin_client", request)
        response = self._answer(self.ask_frame(frame), k00.ProduceResponse, 0, 9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    def path(self, topic: str, partition: int) -> str:
        return f"/data/{topic}-{partition}/{0:020}.log"

    def records(self, topic: str, partition: int) -> list[Record]:
        """Return the records of a partition, without control records."""
        return [record for _, record in iter_all_records(self.world.disk.read(self.path(topic, partition)))]

    def answers(self, topic: str, partition: int) -> ErrorCode:
        """Ask the coordinator about something that belongs to a partition."""
        if topic == GROUPS:
            return self.commit(name_in(partition, "simple"))
        if topic == SHARES:
            return self.read_share_state(self.share_group(partition))
        for _ in range(1_000):
            error = ErrorCode(self.init_producer(name_in(partition, "txn")).error_code)
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            self.pause()
        return error

    def is_loaded(self, topic: str, partition: int) -> bool:
        broker = self.runtime.nodes[1]
        if topic == GROUPS:
            return broker.groups.shard(partition) is not None
        if topic == SHARES:
            return broker.share_coordinator.shard(partition) is not None
        return self.answers(topic, partition) is not ErrorCode.NOT_COORDINATOR


class Directory:
    """The files of a stopped node, put back before every test."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.close()
        self.files = dict(self._walk("/data"))

    def _walk(self, path: str) -> Iterator[tuple[str, bytes]]:
        disk = self.node.world.disk
        for name in disk.list(path):
            inner = f"{path}/{name}"
            if disk.is_dir(inner):
                yield from self._walk(inner)
            else:
                yield inner, disk.read(inner)

    def restored(self) -> Node:
        """Return the node, stopped, with all its files as they were at first."""
        if self.node.running:  # a test failed
            self.__init__()  # type: ignore[misc]
        disk = self.node.world.disk
        for path in dict(self._walk("/data")).keys() - self.files.keys():
            disk.remove(path)
        for path, data in self.files.items():
            self.write(path, data)
        return self.node

    def write(self, path: str, data: bytes) -> None:
        disk = self.node.world.disk
        disk.make_dirs(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.truncate(0)
        file.write_at(0, data)
        file.close()


@pytest.fixture(scope="module")
def directory() -> Directory:
    return Directory()


def drop_named_records(node: Node, caplog: pytest.LogCaptureFixture, topic: str, partition: int) -> None:
    """Start a node until all is loaded, and drop each record that its log names in between."""
    for _ in range(40):
        caplog.clear()
        node.open()
        others = [
            (name, index) for name in TOPICS for index in range(PARTITIONS) if (name, index) != (topic, partition)
        ]
        assert {other: node.answers(*other) for other in others} == dict.fromkeys(others, ErrorCode.NONE)
        loaded = node.is_loaded(topic, partition)
        if loaded:
            node.answers(topic, partition)
            node.world.clock.advance(60)
        else:
            assert node.answers(topic, partition) is ErrorCode.NOT_COORDINATOR
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        # A request about an id with absurd values may fail, and does so alone.
        assert not [record for record in caplog.records if record.exc_info and record.name != "ottla.server.dispatch"]
        errors = [error for error in errors if " failed on " not in error]
        node.close()
        if loaded:
            assert not errors
            return
        commands = [match for match in map(COMMAND.search, errors) if match is not None]
        assert commands
        assert {(match[1], int(match[2])) for match in commands} == {(topic, partition)}
        env = StorageEnvironment(node.world.disk, node.world.clock, node.world.random)
        for match in commands:
            remove_record(env, "/data", RecordLocation.parse(f"{match[1]}-{match[2]}@{match[3]}"))
        repair(env, "/data")
        env.files.close()
    raise AssertionError(errors)


def damaged_record(chance: random.Random, record: Record) -> tuple[bytes, bytes | None]:
    """Damage the key or the value of a record."""
    key, value = record.key or b"", record.value
    kind = chance.choice(
        ("cut key", "cut value", "flip key", "flip value", "type", "version", "absurd", "short", "swap")
    )
    if value is None and kind not in ("cut key", "flip key", "type", "short"):
        kind = "cut key"
    value = value or b""
    if kind == "cut key":
        return key[: chance.randrange(len(key))], value
    if kind == "cut value":
        return key, value[: chance.randrange(len(value))]
    if kind == "flip key":
        return flipped(chance, key), value
    if kind == "flip value":
        return key, flipped(chance, value)
    if kind == "type":
        return chance.choice(range(20)).to_bytes(2) + key[2:], value
    if kind == "version":
        return key, chance.choice((-32768, -1, 2, 9, 32767)).to_bytes(2, signed=True) + value[2:]
    if kind == "absurd":
        start = 2 + chance.randrange(max(len(value) - 4, 1))
        return key, value[:start] + chance.choice((b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8)) + value[
            start + 4 :
        ]
    if kind == "short":
        return chance.randbytes(chance.randrange(3)), chance.randbytes(chance.randrange(3))
    return value, key


def flipped(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_records_of_a_client_fail_one_partition_until_dropped(
    directory: Directory, caplog: pytest.LogCaptureFixture, topic: str, seed: int
) -> None:
    chance = random.Random(f"{topic} {seed}")
    node = directory.restored()
    partition = chance.randrange(PARTITIONS)
    node.open()
    records = node.records(topic, partition)
    for record in chance.choices(records, k=chance.choice((1, 1, 3))):
        node.produce_as_admin(topic, partition, *damaged_record(chance, record))
    node.close()
    drop_named_records(node, caplog, topic, partition)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_flipped_bytes_of_a_log_fail_one_partition_until_dropped(
    directory: Directory, caplog: pytest.LogCaptureFixture, topic: str, seed: int
) -> None:
    chance = random.Random(f"{topic} {seed}")
    node = directory.restored()
    partition = chance.randrange(PARTITIONS)
    path = node.path(topic, partition)
    data = directory.files[path]
    for _ in range(chance.choice((1, 1, 2))):
        data = flipped(chance, data)
    directory.write(path, data)
    drop_named_records(node, caplog, topic, partition)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_records_in_any_order_fail_at_most_one_partition(
    directory: Directory, caplog: pytest.LogCaptureFixture, topic: str, seed: int
) -> None:
    chance = random.Random(f"{topic} {seed}")
    node = directory.restored()
    partition = chance.randrange(PARTITIONS)
    records = node.records(topic, partition)
    chance.shuffle(records)
    records = records[: chance.randrange(1, len(records) + 1)]
    batches = bytearray()
    for offset, record in enumerate(records):
        builder = BatchBuilder(offset, partition_leader_epoch=0)
        builder.append(record.key, record.value, timestamp=record.timestamp)
        batches += builder.build()
    directory.write(node.path(topic, partition), bytes(batches))
    for name in node.world.disk.list(f"/data/{topic}-{partition}"):
        if name.endswith(("index", ".snapshot")):
            node.world.disk.remove(f"/data/{topic}-{partition}/{name}")
    repair(StorageEnvironment(node.world.disk, node.world.clock, node.world.random), "/data")
    drop_named_records(node, caplog, topic, partition)


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        pytest.param(GROUPS, b"", b"", id="group-empty-key"),
        pytest.param(GROUPS, b"\0", b"\0", id="group-key-of-one-byte"),
        pytest.param(GROUPS, b"\0\1\0\1g\0\1t\0\0\0\0", b"\0", id="group-short-value"),
        pytest.param(GROUPS, b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\3\0", id="group-cut-value"),
        pytest.param(GROUPS, b"\0\2\0\1g", b"\0\3\xff\xff", id="group-cut-classic-group"),
        pytest.param(TRANSACTIONS, b"", b"", id="transaction-empty-key"),
        pytest.param(TRANSACTIONS, b"\0", None, id="transaction-key-of-one-byte"),
        pytest.param(TRANSACTIONS, b"\0\0\0\1t", b"\0\0", id="transaction-cut-value"),
        pytest.param(TRANSACTIONS, b"\0\0\0\1t", b"\0\7", id="transaction-unknown-version"),
        pytest.param(SHARES, b"", b"", id="share-empty-key"),
        pytest.param(SHARES, b"\0", b"\0", id="share-key-of-one-byte"),
    ],
)
def test_unreadable_record_is_named_with_its_offset(
    directory: Directory, caplog: pytest.LogCaptureFixture, topic: str, key: bytes, value: bytes | None
) -> None:
    node = directory.restored()
    node.open()
    offset = node.runtime.partitions[topic, 1].log.log_end_offset
    node.produce_as_admin(topic, 1, key, value)
    assert node.answers(topic, 1) is ErrorCode.NONE
    node.close()
    caplog.clear()
    node.open()
    assert not node.is_loaded(topic, 1)
    node.close()
    named = [match for match in (COMMAND.search(record.getMessage()) for record in caplog.records) if match is not None]
    assert [(match[1], int(match[2]), int(match[3])) for match in named] == [(topic, 1, offset)]
    drop_named_records(node, caplog, topic, 1)


def test_member_of_a_consumer_group_without_its_group_is_loaded(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    node = directory.restored()
    node.open()
    members = [record for record in node.records(GROUPS, 1) if record.key is not None and record.key[:2] == b"\0\5"]
    assert members
    key = members[0].key
    assert key is not None
    node.produce_as_admin(GROUPS, 1, key.replace(b"consumer", b"orphaned"), members[0].value)
    node.close()
    drop_named_records(node, caplog, GROUPS, 1)


@pytest.mark.parametrize("topic", TOPICS)
def test_damaged_base_offset_fails_one_partition_and_node_closes(
    directory: Directory, caplog: pytest.LogCaptureFixture, topic: str
) -> None:
    node = directory.restored()
    path = node.path(topic, 1)
    data = bytearray(directory.files[path])
    position = list(iter_batches(data))[1].position
    data[position + 1] ^= 0x10  # the CRC does not cover the base offset
    directory.write(path, bytes(data))
    drop_named_records(node, caplog, topic, 1)
