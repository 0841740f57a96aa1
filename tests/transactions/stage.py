"""A transaction coordinator whose log, producer ids and marker sender are lists.

By default records are durable at once and markers are written at once; a test can hold both back and release them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.records.iterate import Record
from ottla.storage.names import TopicPartition
from ottla.transactions.coordinator import ProducerResult, TransactionCoordinator
from ottla.transactions.environment import LogRecord, ProducerIdBlock, TransactionConfig, TransactionMarker
from ottla.transactions.initialize import ProducerIdAndEpoch
from ottla.transactions.records import decode_record
from ottla.transactions.states import TransactionState, TransactionVersion
from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.transactions.metadata import TransactionRecord

T = TypeVar("T")
A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)
OFFSETS_7 = TopicPartition("__consumer_offsets", 7)
TV_0, TV_1, TV_2 = TransactionVersion
NONE = ErrorCode.NONE


def done(pending: Pending[T]) -> T:
    """Return the result of an operation that completed at once."""
    assert pending.done, "the operation is not complete"
    return pending.response


@dataclass
class ListLog:
    """`__transaction_state` as a list of durable records for each partition."""

    records: dict[int, list[LogRecord]] = field(default_factory=dict)
    held: list[tuple[int, Sequence[LogRecord], Pending[ErrorCode]]] = field(default_factory=list)
    hold: bool = False
    fail_with: ErrorCode = NONE

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        pending: Pending[ErrorCode] = Pending()
        if self.hold:
            self.held.append((partition, records, pending))
        elif self.fail_with:
            pending.complete(self.fail_with)
        else:
            self.records.setdefault(partition, []).extend(records)
            pending.complete(NONE)
        return pending

    def release(self, error: ErrorCode = NONE) -> None:
        """Complete the oldest held write, or fail it."""
        partition, records, pending = self.held.pop(0)
        if not error:
            self.records.setdefault(partition, []).extend(records)
        pending.complete(error)

    def stored(self, partition: int) -> list[Record]:
        """Return the records of a partition as its log would be read."""
        return [
            Record(offset, record.timestamp_ms, record.key, record.value)
            for offset, record in enumerate(self.records.get(partition, []))
        ]


@dataclass
class Blocks:
    """Allocates blocks of ten producer ids from 1000 on."""

    next_first: int = 1000
    size: int = 10
    held: list[Pending[ProducerIdBlock | None]] = field(default_factory=list)
    hold: bool = False
    refuse: bool = False

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        pending: Pending[ProducerIdBlock | None] = Pending()
        if self.hold:
            self.held.append(pending)
        elif self.refuse:
            pending.complete(None)
        else:
            pending.complete(self.next_block())
        return pending

    def next_block(self) -> ProducerIdBlock:
        block = ProducerIdBlock(self.next_first, self.size)
        self.next_first += self.size
        return block


@dataclass
class MarkerBook:
    """Receives markers and returns the configured error of each partition."""

    written: list[tuple[TransactionMarker, TopicPartition]] = field(default_factory=list)
    held: list[tuple[TransactionMarker, Sequence[TopicPartition], Pending[dict[TopicPartition, ErrorCode]]]] = field(
        default_factory=list
    )
    hold: bool = False
    errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    sent: int = 0

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        self.sent += 1
        pending: Pending[dict[TopicPartition, ErrorCode]] = Pending()
        if self.hold:
            self.held.append((marker, partitions, pending))
        else:
            self._answer(marker, partitions, pending)
        return pending

    def release(self) -> None:
        """Write the oldest held markers."""
        self._answer(*self.held.pop(0))

    def _answer(
        self,
        marker: TransactionMarker,
        partitions: Sequence[TopicPartition],
        pending: Pending[dict[TopicPartition, ErrorCode]],
    ) -> None:
        results = {partition: self.errors.get(partition, NONE) for partition in partitions}
        self.written += [(marker, partition) for partition, error in results.items() if not error]
        pending.complete(results)


@dataclass
class Cluster:
    """A cluster of one node in which every partition exists, except deleted ones and those without a leader."""

    version: int = 2
    leaders: dict[TopicPartition, int | None] = field(default_factory=dict)

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition, 1)

    def transaction_partition_count(self) -> int:
        return 3

    def transaction_version(self) -> int:
        return self.version


class Stage:
    """A coordinator that leads every partition of `__transaction_state`, with short forms of its operations."""

    def __init__(self, version: int = 2, **config: int | bool) -> None:
        self.clock = VirtualClock()
        self.log = ListLog()
        self.blocks = Blocks()
        self.markers = MarkerBook()
        self.cluster = Cluster(version)
        self.config = TransactionConfig(**config)  # type: ignore[arg-type]
        self.epoch = 0
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(self.clock, self.log, self.blocks, self.markers, self.cluster, self.config)
        coordinator.start()
        self.epoch += 1
        for partition in range(3):
            assert coordinator.load(partition, self.epoch, self.log.stored(partition)) == []
        self.clock.advance(0)
        return coordinator

    def done(self, pending: Pending[T]) -> T:
        """Return the result of an operation, after the markers that follow it are written."""
        response = done(pending)
        self.clock.advance(0)
        return response

    def crash(self) -> None:
        """Replace the coordinator by a new one that loads the log."""
        self.coordinator.stop()
        self.log.held.clear()
        self.markers.held.clear()
        self.coordinator = self.new_coordinator()

    # What producers say

    def init(
        self, transactional_id: str | None = "app", timeout_ms: int = 60_000, expected: tuple[int, int] | None = None
    ) -> ProducerResult:
        return self.done(
            self.coordinator.init_producer_id(
                transactional_id, timeout_ms, None if expected is None else ProducerIdAndEpoch(*expected)
            )
        )

    def add(
        self,
        producer: ProducerResult,
        *partitions: TopicPartition,
        transactional_id: str = "app",
        version: TransactionVersion = TV_2,
    ) -> ErrorCode:
        return self.done(
            self.coordinator.add_partitions(
                transactional_id, producer.producer_id, producer.producer_epoch, partitions, version
            )
        )

    def verify(
        self, producer: ProducerResult, *partitions: TopicPartition, transactional_id: str = "app"
    ) -> dict[TopicPartition, ErrorCode]:
        return self.coordinator.verify_partitions(
            transactional_id, producer.producer_id, producer.producer_epoch, partitions
        )

    def end(
        self,
        producer: ProducerResult,
        committed: bool = True,
        transactional_id: str = "app",
        version: TransactionVersion = TV_2,
    ) -> ProducerResult:
        return self.done(
            self.coordinator.end_transaction(
                transactional_id, producer.producer_id, producer.producer_epoch, committed, version
            )
        )

    def commit(self, producer: ProducerResult, **options: object) -> ProducerResult:
        return self.end(producer, True, **options)  # type: ignore[arg-type]

    def abort(self, producer: ProducerResult, **options: object) -> ProducerResult:
        return self.end(producer, False, **options)  # type: ignore[arg-type]

    # What can be seen afterwards

    def history(self, transactional_id: str = "app") -> list[TransactionRecord | None]:
        """Return all records of a transactional id in the log."""
        partition = self.coordinator.partition_for(transactional_id)
        decoded = [decode_record(record.key, record.value) for record in self.log.stored(partition)]
        return [entry[1] for entry in decoded if entry is not None and entry[0] == transactional_id]

    def states(self, transactional_id: str = "app") -> list[str]:
        """Return the states of a transactional id in the log, in order."""
        return ["tombstone" if entry is None else entry.state.label for entry in self.history(transactional_id)]

    def state(self, transactional_id: str = "app") -> str:
        """Return the state that DescribeTransactions shows."""
        return self.coordinator.describe(transactional_id).transaction_state

    def last(self, transactional_id: str = "app") -> TransactionRecord:
        record = self.history(transactional_id)[-1]
        assert record is not None
        return record

    def marked(self) -> list[tuple[TopicPartition, bool, int]]:
        """Return the written markers: partition, whether committed, producer epoch."""
        return [(partition, marker.committed, marker.producer_epoch) for marker, partition in self.markers.written]

    def use_up_epochs(self, producer: ProducerResult, transactional_id: str = "app") -> ProducerResult:
        """Set a producer to the last epoch of its id."""
        _, transaction = self.coordinator._shards.find(transactional_id)
        assert transaction is not None
        transaction.record = transaction.record._replace(producer_epoch=32766)
        return producer._replace(producer_epoch=32766)


__all__ = ["A0", "A1", "B0", "NONE", "OFFSETS_7", "TV_0", "TV_1", "TV_2", "Stage", "TransactionState", "done"]
