"""The share partitions of one partition of `__share_group_state` (Kafka's ShareCoordinatorShard).

Requests are validated here and become records; only `replay` changes state. The coordinator appends the records.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.share import ShareSnapshotValue, ShareUpdateValue
from ottla.shares.environment import NO_START_OFFSET, SharePartitionKey, ShareState, StateBatch
from ottla.shares.records import ShareRecord, read_batches, written_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

NO_EPOCH: Final = -1
FIRST_EPOCH: Final = 0
NO_COUNT: Final = -1
NO_TIMESTAMP: Final = 0


@dataclass(slots=True, frozen=True)
class PersistedState:
    """The state of a share partition: its last snapshot with all updates since (Kafka's ShareGroupOffset)."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int = NO_TIMESTAMP
    written_ms: int = NO_TIMESTAMP


def combine(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Merge batches into sorted ones that do not overlap and begin at the start offset or later.

    Where batches overlap, the higher delivery count wins, then the later delivery state (Kafka's
    PersisterStateBatchCombiner).
    """
    waiting = sorted(
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if start_offset == NO_START_OFFSET or batch.last_offset >= start_offset
    )
    combined: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []  # a heap of those that hold `offset`; the winner first
    offset = 0
    position = 0
    while position < len(waiting) or open_batches:
        while open_batches and open_batches[0][2] < offset:
            heapq.heappop(open_batches)
        if not open_batches:
            if position == len(waiting):
                break
            offset = waiting[position].first_offset
        while position < len(waiting) and waiting[position].first_offset <= offset:
            batch = waiting[position]
            heapq.heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            position += 1
        count, state, last = open_batches[0]
        if position < len(waiting):
            last = min(last, waiting[position].first_offset - 1)
        before = combined[-1] if combined else None
        if before is not None and (before.last_offset + 1, before.delivery_state, before.delivery_count) == (
            offset,
            -state,
            -count,
        ):
            combined[-1] = before._replace(last_offset=last)
        else:
            combined.append(StateBatch(offset, last, -state, -count))
        offset = last + 1
    return combined


class ShareShard:
    """One partition of `__share_group_state`, while this node leads it."""

    __slots__ = (
        "_last_tombstone",
        "_leader_epochs",
        "_partition_count",
        "_snapshot_offsets",
        "_state_epochs",
        "_updates",
        "partition",
        "pruned_to",
        "states",
    )

    def __init__(self, partition: int, partition_count: Callable[[SharePartitionKey], int | None]) -> None:
        self.partition = partition
        self.states: dict[SharePartitionKey, PersistedState] = {}
        self.pruned_to = 0
        self._partition_count = partition_count
        self._updates: dict[SharePartitionKey, int] = {}
        self._leader_epochs: dict[SharePartitionKey, int] = {}
        self._state_epochs: dict[SharePartitionKey, int] = {}
        self._snapshot_offsets: dict[SharePartitionKey, int] = {}
        self._last_tombstone = 0

    # Replay

    def replay(self, record: ShareRecord, offset: int, updates_per_snapshot: int) -> None:
        """Apply a record that is in the log at an offset."""
        key, value = record
        if value is None:
            self.states.pop(key, None)
            for index in (self._updates, self._leader_epochs, self._state_epochs, self._snapshot_offsets):
                index.pop(key, None)
            self._last_tombstone = offset
            return
        self._leader_epochs[key] = max(self._leader_epochs.get(key, value.leader_epoch), value.leader_epoch)
        before = self.states.get(key)
        batches = read_batches(value.state_batches)
        if isinstance(value, ShareSnapshotValue):
            self._state_epochs[key] = max(self._state_epochs.get(key, value.state_epoch), value.state_epoch)
            self.states[key] = PersistedState(
                value.snapshot_epoch,
                value.state_epoch,
                value.leader_epoch,
                value.start_offset,
                value.delivery_complete_count,
                tuple(batches),
                value.create_timestamp,
                value.write_timestamp,
            )
            if self._updates.get(key, 0) >= updates_per_snapshot:
                self._updates.pop(key, None)
            self._snapshot_offsets[key] = offset
            return
        self._updates[key] = self._updates.get(key, 0) + 1
        if before is None:
            self.states[key] = PersistedState(
                value.snapshot_epoch,
                FIRST_EPOCH,
                value.leader_epoch,
                value.start_offset,
                value.delivery_complete_count,
                tuple(batches),
            )
            return
        start = before.start_offset if value.start_offset == NO_START_OFFSET else value.start_offset
        self.states[key] = replace(
            before,
            leader_epoch=before.leader_epoch if value.leader_epoch == NO_EPOCH else value.leader_epoch,
            start_offset=start,
            delivery_complete_count=value.delivery_complete_count,
            batches=tuple(combine((*before.batches, *batches), start)),
        )

    @property
    def first_needed_offset(self) -> int:
        """The offset before which all records of the log were replaced by snapshots or tombstones."""
        return min(self._snapshot_offsets.values(), default=self._last_tombstone)

    # Requests; raise KafkaError if they are refused

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ShareRecord:
        """Return the snapshot that initializes a partition, or resets it with a later state epoch."""
        _check_partition(key)
        before = self.states.get(key)
        self._check_state_epoch(key, state_epoch)
        self._check_exists(key)
        return _snapshot(
            key,
            PersistedState(
                snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
                state_epoch=state_epoch,
                leader_epoch=FIRST_EPOCH,
                start_offset=start_offset,
                delivery_complete_count=NO_COUNT if start_offset == NO_START_OFFSET else 0,
                batches=(),
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )

    def read(
        self, key: SharePartitionKey, leader_epoch: int, updates_per_snapshot: int, now_ms: int
    ) -> tuple[ShareState, ShareRecord | None]:
        """Return the state, and a record of the leader epoch if it is a new one."""
        persisted = self._initialized(key, "Read operation on uninitialized share partition not allowed.")
        self._check_leader(key, leader_epoch)
        self._check_exists(key)
        state = _state(persisted, persisted.batches)
        if leader_epoch in (NO_EPOCH, self._leader_epochs.get(key)):
            return state, None
        change = replace(persisted, leader_epoch=leader_epoch, batches=())
        return state, self._next_record(key, change, (), updates_per_snapshot, now_ms)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        updates_per_snapshot: int,
        now_ms: int,
    ) -> ShareRecord:
        """Return the record that updates the state."""
        persisted = self._initialized(key, "Write operation on uninitialized share partition not allowed.")
        self._check_leader(key, leader_epoch)
        self._check_state_epoch(key, state_epoch)
        self._check_exists(key)
        change = replace(persisted, start_offset=start_offset, delivery_complete_count=delivery_complete_count)
        return self._next_record(key, change, batches, updates_per_snapshot, now_ms)

    def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the state without its batches; an unknown partition has the state of an uninitialized one."""
        _check_partition(key)
        self._check_exists(key)
        persisted = self.states.get(key)
        return ShareState(ErrorCode.NONE, leader_epoch=0) if persisted is None else _state(persisted, ())

    def delete(self, key: SharePartitionKey) -> ShareRecord | None:
        """Return the tombstone of a partition, or None if it has no state."""
        _check_partition(key)
        self._check_exists(key)
        return ShareRecord(key, None) if key in self.states else None

    # Maintenance

    def cold_snapshots(self, now_ms: int, interval_ms: int) -> list[ShareRecord]:
        """Return snapshots of share partitions without an update for `interval_ms`, so that the log can be pruned.

        Return none if all partitions already have a cold snapshot.
        """
        if all(state.created_ms != state.written_ms for state in self.states.values()):
            return []
        return [
            _snapshot(key, replace(persisted, snapshot_epoch=persisted.snapshot_epoch + 1, written_ms=now_ms))
            for key, persisted in self.states.items()
            if now_ms - persisted.written_ms >= interval_ms
        ]

    def tombstones(self, topic_ids: Collection[object]) -> list[ShareRecord]:
        """Return tombstones for all partitions of topics."""
        return [ShareRecord(key, None) for key in self.states if key.topic_id in topic_ids]

    # Checks and records

    def _initialized(self, key: SharePartitionKey, message: str) -> PersistedState:
        _check_partition(key)
        persisted = self.states.get(key)
        if persisted is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return persisted

    def _check_leader(self, key: SharePartitionKey, leader_epoch: int) -> None:
        if leader_epoch != NO_EPOCH and self._leader_epochs.get(key, NO_EPOCH) > leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)

    def _check_state_epoch(self, key: SharePartitionKey, state_epoch: int) -> None:
        if state_epoch != NO_EPOCH and self._state_epochs.get(key, NO_EPOCH) > state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)

    def _check_exists(self, key: SharePartitionKey) -> None:
        count = self._partition_count(key)
        if count is None or key.partition >= count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _next_record(
        self,
        key: SharePartitionKey,
        change: PersistedState,
        batches: Sequence[StateBatch],
        updates_per_snapshot: int,
        now_ms: int,
    ) -> ShareRecord:
        """Return an update, or a snapshot after `updates_per_snapshot` updates."""
        persisted = self.states[key]
        if self._updates.get(key, 0) < updates_per_snapshot:
            return ShareRecord(
                key,
                ShareUpdateValue(
                    snapshot_epoch=persisted.snapshot_epoch,
                    leader_epoch=change.leader_epoch,
                    start_offset=change.start_offset,
                    delivery_complete_count=change.delivery_complete_count,
                    state_batches=written_batches(combine(batches, change.start_offset)),
                ),
            )
        start = persisted.start_offset if change.start_offset == NO_START_OFFSET else change.start_offset
        return _snapshot(
            key,
            replace(
                change,
                snapshot_epoch=persisted.snapshot_epoch + 1,
                start_offset=start,
                batches=tuple(combine((*persisted.batches, *batches), start)),
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )


def _check_partition(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")


def _state(persisted: PersistedState, batches: Sequence[StateBatch]) -> ShareState:
    return ShareState(
        ErrorCode.NONE,
        persisted.state_epoch,
        persisted.leader_epoch,
        persisted.start_offset,
        persisted.delivery_complete_count,
        batches,
    )


def _snapshot(key: SharePartitionKey, persisted: PersistedState) -> ShareRecord:
    return ShareRecord(
        key,
        ShareSnapshotValue(
            snapshot_epoch=persisted.snapshot_epoch,
            state_epoch=persisted.state_epoch,
            leader_epoch=persisted.leader_epoch,
            start_offset=persisted.start_offset,
            delivery_complete_count=persisted.delivery_complete_count,
            create_timestamp=persisted.created_ms,
            write_timestamp=persisted.written_ms,
            state_batches=written_batches(list(persisted.batches)),
        ),
    )
