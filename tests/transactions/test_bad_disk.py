"""A broker on a disk that fills up, turns read-only, fails, fails to sync or crashes in the middle of a write.

Offsets are committed, groups joined and transactions ended while it happens; then the broker starts again on what is
left. Every answer is one that Kafka gives for such trouble, nothing that was acknowledged is lost (with --sync not even
when the power is), nothing that was aborted is seen, and no transaction hangs. A run is its seed. OTTLA_DISK_SEEDS and
OTTLA_DISK_FIRST_SEED choose more, and others.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k01_fetch as k01
from ottla.protocol.messages import k08_offset_commit as k08
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.protocol.messages import k26_end_txn as k26
from ottla.protocol.messages import k28_txn_offset_commit as k28
from ottla.protocol.messages import k65_describe_transactions as k65
from ottla.records.batch import iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import iter_records
from ottla.world.disk_faulty import SimulatedCrash
from tests.conversations.local_talk import LocalTalk

FIRST_SEED = int(os.environ.get("OTTLA_DISK_FIRST_SEED", "1"))
SEEDS = int(os.environ.get("OTTLA_DISK_SEEDS", "100"))
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
PATHS = ("*", "*.log", "*consumer_offsets*.log", "*transaction_state*.log", "/data/t-*.log")
IDS = ("x-0", "x-1", "x-2")

E = ErrorCode
TRIES_AGAIN = {E.NOT_COORDINATOR, E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS}
EXPECTED = {
    "commit": {E.NOT_COORDINATOR},
    "join": {E.NOT_COORDINATOR},
    "sync": {E.NOT_COORDINATOR, E.UNKNOWN_MEMBER_ID},
    "init": TRIES_AGAIN,
    "produce": {E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS, E.CONCURRENT_TRANSACTIONS},
    "commit in a transaction": TRIES_AGAIN,
    "end": {*TRIES_AGAIN, E.PRODUCER_FENCED},
}
"""Errors that may be answered while the disk fails; clients retry after each, except the last."""


class Run:
    """Clients of one broker, the responses they got, and the disk faults."""

    def __init__(self, seed: int) -> None:
        self.sync = seed % 2 == 0
        self.directories = 1 + (seed % 3 == 0)
        dirs = {"log.dirs": "/data/one,/data/two"} if self.directories == 2 else {}
        self.local = LocalTalk({**SETTINGS, **dirs}, sync=self.sync, seed=seed)
        self.random = self.local.world.random.fork("bad disk")
        self.local.create("t", 2)
        self.find_coordinators()
        self.number = 0
        self.producers: dict[str, tuple[int, int]] = {}
        self.committed: dict[str, int] = {}
        self.perhaps_committed: dict[str, set[int]] = defaultdict(set)
        self.visible: set[bytes] = set()
        self.hidden: set[bytes] = set()

    def find_coordinators(self) -> None:
        for kind in (0, 1):
            request = k10.FindCoordinatorRequest(key_type=kind, coordinator_keys=["anybody"])
            self.local.quietly(request, k10.FindCoordinatorResponse)

    def told(self, what: str, code: int) -> bool:
        assert code == E.NONE or code in EXPECTED[what], f"{what} was answered with {E(code).name}"
        return code == E.NONE

    # What clients do

    def step(self) -> None:
        kind = self.random.below(10)
        if kind < 3:
            self.commit(f"g-{self.random.below(3)}")
        elif kind < 5:
            self.join(f"c-{self.random.below(40)}")
        else:
            self.transact(IDS[self.random.below(3)])
        if self.random.below(3) == 0:
            self.local.pause()

    def commit(self, group: str) -> None:
        self.number += 1
        topic_partition = k08.OffsetCommitRequestPartition(partition_index=0, committed_offset=self.number)
        request = k08.OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[k08.OffsetCommitRequestTopic(name="t", partitions=[topic_partition])],
        )
        self.perhaps_committed[group].add(self.number)
        response = self.local.quietly(request, k08.OffsetCommitResponse, version=9)
        if self.told("commit", response.topics[0].partitions[0].error_code):
            self.now_committed(group, self.number)

    def now_committed(self, group: str, offset: int) -> None:
        self.committed[group] = offset
        self.perhaps_committed[group] = {entry for entry in self.perhaps_committed[group] if entry > offset}

    def join(self, group: str) -> None:
        join = k11.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[k11.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = self.local.quietly(join, k11.JoinGroupResponse, version=3)
        if self.told("join", joined.error_code):
            sync_group_request_assignment = k14.SyncGroupRequestAssignment(
                member_id=joined.member_id, assignment=b"all"
            )
            sync = k14.SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[sync_group_request_assignment],
            )
            self.told("sync", self.local.quietly(sync, k14.SyncGroupResponse, version=3).error_code)

    def init(self, transactional_id: str) -> tuple[int, int] | None:
        request = k22.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        response = self.local.quietly(request, k22.InitProducerIdResponse)
        return (response.producer_id, response.producer_epoch) if self.told("init", response.error_code) else None

    def transact(self, transactional_id: str) -> None:
        producer = self.producers.pop(transactional_id, None) or self.init(transactional_id)
        if producer is None:
            return
        values = []
        succeeded = True
        for partition in (0, 1):
            self.number += 1
            values.append(b"%d" % self.number)
            succeeded = succeeded and self.produce(transactional_id, producer, partition, values[-1])
        group, offset = f"of-{transactional_id}", self.number
        with_offsets = succeeded and self.random.below(2) == 0
        if with_offsets:
            self.perhaps_committed[group].add(offset)
            succeeded = self.commit_in_transaction(transactional_id, producer, group, offset)
        commits = succeeded and self.random.below(3) > 0
        request = k26.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commits,
        )
        if not commits:
            self.hidden.update(values)
        ended = self.local.quietly(request, k26.EndTxnResponse, version=5)
        if self.told("end", ended.error_code):
            self.producers[transactional_id] = (ended.producer_id, ended.producer_epoch)
            if commits:
                self.visible.update(values)
                if with_offsets:
                    self.now_committed(group, offset)

    def produce(self, transactional_id: str, producer: tuple[int, int], partition: int, value: bytes) -> bool:
        batch = BatchBuilder(producer_id=producer[0], producer_epoch=producer[1], base_sequence=0, transactional=True)
        batch.append(None, value, (), self.local.world.clock.now_ms())
        data = k00.PartitionProduceData(index=partition, records=bytes(batch.build()))
        request = k00.ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[k00.TopicProduceData(name="t", partition_data=[data])],
        )
        response = self.local.quietly(request, k00.ProduceResponse, version=12)
        return self.told("produce", response.responses[0].partition_responses[0].error_code)

    def commit_in_transaction(self, transactional_id: str, producer: tuple[int, int], group: str, offset: int) -> bool:
        topic_partition = k28.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = k28.TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer[0],
            producer_epoch=producer[1],
            topics=[k28.TxnOffsetCommitRequestTopic(name="t", partitions=[topic_partition])],
        )
        response = self.local.quietly(request, k28.TxnOffsetCommitResponse, version=5)
        return self.told("commit in a transaction", response.topics[0].partitions[0].error_code)

    # What happens to the disk

    def trouble(self) -> None:
        disk = self.local.world.disk
        path, nth = PATHS[self.random.below(len(PATHS))], 1 + self.random.below(5)
        kind = self.random.below(6)
        if self.directories == 2 and self.random.below(3):  # one of two: the other goes on
            path, kind = "/data/two/*", (1, 4, 5)[self.random.below(3)]
        if kind == 0:
            disk.fill_after(self.random.below(800))
        elif kind == 1:
            disk.fail("sync", path, nth=nth, times=None)
        elif kind == 2:
            disk.crash_after(1 + self.random.below(12))
        elif kind == 3:
            disk.fail("write", path, nth=nth)
        else:
            disk.fail("write", path, nth=nth, times=None, code=errno.EROFS if kind == 4 else errno.EIO)

    def start_again(self) -> None:
        """Stop or kill the broker, or its machine, and start it on a healthy disk."""
        world = self.local.world
        try:
            if self.random.below(2):
                self.local.close()
        except SimulatedCrash:
            pass
        world.disk.crash(process_only=not self.sync)
        world.clock._timers.clear()
        world.disk = world.disk.reopen()
        world.disk.heal()
        self.local.open()
        self.find_coordinators()
        world.clock.advance(1)

    # What must be true

    def check(self) -> None:
        for group, offset in self.committed.items():
            result = self.fetch_offset(group)
            assert result == offset or result in self.perhaps_committed[group], f"{group}: {result}, not {offset}"
        states = self.local.quietly(
            k65.DescribeTransactionsRequest(transactional_ids=list(IDS)), k65.DescribeTransactionsResponse
        )
        for state in states.transaction_states:
            assert state.transaction_state not in ("PrepareCommit", "PrepareAbort"), state
        for transactional_id in IDS:
            self.local.wait_until(
                lambda name=transactional_id: self.init(name) is not None, f"{transactional_id} cannot go on"
            )  # type: ignore[misc]
        self.local.world.clock.advance(1)
        found_values = self.read(0) | self.read(1)
        assert self.visible <= found_values, f"lost: {self.visible - found_values}"
        assert not self.hidden & found_values, f"aborted, but seen: {self.hidden & found_values}"

    def fetch_offset(self, group: str) -> int:
        expected = k09.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
        request = k09.OffsetFetchRequest(groups=[k09.OffsetFetchRequestGroup(group_id=group, topics=[expected])])
        (response,) = self.local.quietly(request, k09.OffsetFetchResponse, version=9).groups
        assert response.error_code == E.NONE
        return response.topics[0].partitions[0].committed_offset

    def read(self, partition: int) -> set[bytes]:
        """Return the committed values of a partition, all of which must be below the last stable offset."""
        topic_partition = k01.FetchPartition(
            partition=partition, fetch_offset=0, partition_max_bytes=1 << 24, current_leader_epoch=-1
        )
        request = k01.FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            max_bytes=1 << 24,
            isolation_level=1,
            topics=[k01.FetchTopic(topic="t", partitions=[topic_partition])],
        )
        response = self.local.quietly(request, k01.FetchResponse, version=11).responses[0].partitions[0]
        assert (response.error_code, response.last_stable_offset) == (E.NONE, response.high_watermark)
        aborted = sorted(
            (aborted_transaction.first_offset, aborted_transaction.producer_id)
            for aborted_transaction in response.aborted_transactions or ()
        )
        aborting: set[int] = set()
        result: set[bytes] = set()
        data = bytes(response.records or b"")
        for header in iter_batches(data):
            while aborted and aborted[0][0] <= header.base_offset:
                aborting.add(aborted.pop(0)[1])
            for record in iter_records(data, header):
                if header.is_control:
                    if parse_control_key(record.key) is ControlType.ABORT:
                        aborting.discard(header.producer_id)
                elif header.producer_id not in aborting:
                    value = bytes(record.value or b"")
                    assert value not in result, f"{value!r} is there twice"
                    result.add(value)
        return result


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, 20))
def test_acknowledged_records_survive_disk_faults(first: int) -> None:
    for seed in range(first, min(first + 20, FIRST_SEED + SEEDS)):
        run = Run(seed)
        try:
            for _ in range(10):
                run.step()
            run.trouble()
            try:
                for _ in range(12):
                    run.step()
            except SimulatedCrash:
                pass
            run.start_again()
            run.check()
        except AssertionError as error:
            raise AssertionError(f"OTTLA_DISK_FIRST_SEED={seed} OTTLA_DISK_SEEDS=1: {error}") from error
        run.local.close()
