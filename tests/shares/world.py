"""A share coordinator without a broker: its log in lists, topics in a dict, virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.uuids import Uuid
from ottla.records.batch import read_header, stamp_offset
from ottla.records.iterate import iter_records
from ottla.shares.coordinator import ShareConfig, ShareCoordinator, StateResult
from ottla.shares.environment import SharePartitionKey, ShareState
from ottla.shares.records import ShareRecord, decode_record
from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    from ottla.records.iterate import Record

TOPIC = Uuid(bytes(range(16)))
KEY = SharePartitionKey("g", TOPIC, 0)


class StateLog:
    """`__share_group_state` as lists of batches; on a slow disk a test makes batches durable."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self.next_offset: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.slow = False
        self.broken: ErrorCode | None = None
        self.waiting: list[Pending[ErrorCode]] = []

    def append(self, partition: int, batch: bytearray) -> tuple[int, Pending[ErrorCode] | None]:
        if self.broken is not None:
            raise KafkaError(self.broken)
        offset = self.next_offset.get(partition, 0)
        stamp_offset(batch, 0, offset, 0)
        self.next_offset[partition] = offset + read_header(batch).last_offset_delta + 1
        self.batches.setdefault(partition, []).append(bytes(batch))
        if not self.slow:
            return offset, None
        self.waiting.append(Pending())
        return offset, self.waiting[-1]

    def delete_before(self, partition: int, offset: int) -> None:
        self.start[partition] = offset

    def records(self, partition: int) -> list[Record]:
        return [
            record
            for batch in self.batches.get(partition, [])
            for record in iter_records(batch)
            if record.offset >= self.start.get(partition, 0)
        ]


class ShareWorld:
    """A node that leads all partitions of `__share_group_state`."""

    def __init__(self, *, partitions: int = 1, config: ShareConfig | None = None) -> None:
        self.clock = VirtualClock()
        self.log = StateLog()
        self.topics: dict[Uuid, int] = {TOPIC: 4}
        self.partitions = partitions
        self.config = config or ShareConfig()
        self.coordinator = self.started()

    def started(self) -> ShareCoordinator:
        """Return a new coordinator that has loaded the log."""
        coordinator = ShareCoordinator(
            self.clock,
            self.log,
            state_partition_count=lambda: self.partitions,
            topic_partition_count=self.topics.get,
            config=self.config,
        )
        for partition in range(self.partitions):
            coordinator.load(partition, self.log.records(partition))
        return coordinator

    def restart(self) -> None:
        self.coordinator.stop()
        self.coordinator = self.started()

    def written(self, partition: int = 0) -> list[ShareRecord]:
        """Return the records of the log."""
        decoded = [decode_record(record.key, record.value) for record in self.log.records(partition)]
        return [entry for entry in decoded if entry is not None]

    def state(self, key: SharePartitionKey = KEY) -> ShareState:
        return answered(self.coordinator.read(key, -1)).state


def answered(response: Pending[StateResult]) -> StateResult:
    assert response.done
    return response.response
