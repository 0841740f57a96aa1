"""The state of the share partitions that one partition of `__share_group_state` keeps; it changes by `replay` alone.

Which records a request makes is decided here as well; writing them is the coordinator's business.
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
class Kept:
    """What is kept of one share partition, as its last snapshot and the updates since then say."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int = NO_TIMESTAMP
    written_ms: int = NO_TIMESTAMP


def combine(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Batches that do not overlap, in order, none of them before the start.

    Where some overlap, the one that was delivered more often is right, and of those the one in the later state: a
    record's state only ever goes forward, in whatever order its changes were written.
    """
    waiting = sorted(
        each if each.first_offset >= start_offset else each._replace(first_offset=start_offset)
        for each in batches
        if start_offset == NO_START_OFFSET or each.last_offset >= start_offset
    )
    combined: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []  # those that reach the present offset, the right one first
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
            each = waiting[position]
            heapq.heappush(open_batches, (-each.delivery_count, -each.delivery_state, each.last_offset))
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
        "kept",
        "partition",
        "pruned_to",
    )

    def __init__(self, partition: int, partition_count: Callable[[SharePartitionKey], int | None]) -> None:
        self.partition = partition
        self.kept: dict[SharePartitionKey, Kept] = {}
        self.pruned_to = 0
        self._partition_count = partition_count
        self._updates: dict[SharePartitionKey, int] = {}
        self._leader_epochs: dict[SharePartitionKey, int] = {}
        self._state_epochs: dict[SharePartitionKey, int] = {}
        self._snapshot_offsets: dict[SharePartitionKey, int] = {}
        self._last_tombstone = 0

    # What records do

    def replay(self, record: ShareRecord, offset: int, updates_per_snapshot: int) -> None:
        """Let a record that is in the log at that offset take effect."""
        key, value = record
        if value is None:
            self.kept.pop(key, None)
            for each in (self._updates, self._leader_epochs, self._state_epochs, self._snapshot_offsets):
                each.pop(key, None)
            self._last_tombstone = offset
            return
        self._leader_epochs[key] = max(self._leader_epochs.get(key, value.leader_epoch), value.leader_epoch)
        before = self.kept.get(key)
        batches = read_batches(value.state_batches)
        if isinstance(value, ShareSnapshotValue):
            self._state_epochs[key] = max(self._state_epochs.get(key, value.state_epoch), value.state_epoch)
            self.kept[key] = Kept(
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
            self.kept[key] = Kept(
                value.snapshot_epoch,
                FIRST_EPOCH,
                value.leader_epoch,
                value.start_offset,
                value.delivery_complete_count,
                tuple(batches),
            )
            return
        start = before.start_offset if value.start_offset == NO_START_OFFSET else value.start_offset
        self.kept[key] = replace(
            before,
            leader_epoch=before.leader_epoch if value.leader_epoch == NO_EPOCH else value.leader_epoch,
            start_offset=start,
            delivery_complete_count=value.delivery_complete_count,
            batches=tuple(combine((*before.batches, *batches), start)),
        )

    @property
    def first_needed_offset(self) -> int:
        """Everything before this offset of the log has been overtaken."""
        return min(self._snapshot_offsets.values(), default=self._last_tombstone)

    # What requests ask for; KafkaError if they are refused

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ShareRecord:
        """Keep a partition's state from now on, or begin anew with a later epoch."""
        _check_partition(key)
        before = self.kept.get(key)
        self._check_state_epoch(key, state_epoch)
        self._check_exists(key)
        return _snapshot(
            key,
            Kept(
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
        """The state, and what has to be written because another leader reads it now."""
        kept = self._initialized(key, "Read operation on uninitialized share partition not allowed.")
        self._check_leader(key, leader_epoch)
        self._check_exists(key)
        state = _state(kept, kept.batches)
        if leader_epoch in (NO_EPOCH, self._leader_epochs.get(key)):
            return state, None
        change = replace(kept, leader_epoch=leader_epoch, batches=())
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
        """Change the state."""
        kept = self._initialized(key, "Write operation on uninitialized share partition not allowed.")
        self._check_leader(key, leader_epoch)
        self._check_state_epoch(key, state_epoch)
        self._check_exists(key)
        change = replace(kept, start_offset=start_offset, delivery_complete_count=delivery_complete_count)
        return self._next_record(key, change, batches, updates_per_snapshot, now_ms)

    def summary(self, key: SharePartitionKey) -> ShareState:
        """The state without its batches; one that is not kept is as one that was never begun."""
        _check_partition(key)
        self._check_exists(key)
        kept = self.kept.get(key)
        return ShareState(ErrorCode.NONE, leader_epoch=0) if kept is None else _state(kept, ())

    def delete(self, key: SharePartitionKey) -> ShareRecord | None:
        """Keep no state of a partition any more."""
        _check_partition(key)
        self._check_exists(key)
        return ShareRecord(key, None) if key in self.kept else None

    # What comes by itself

    def cold_snapshots(self, now_ms: int, interval_ms: int) -> list[ShareRecord]:
        """New snapshots of partitions that were not written for long, so that the log before them can go.

        Where all have one already, nothing is gained by another.
        """
        if all(each.created_ms != each.written_ms for each in self.kept.values()):
            return []
        return [
            _snapshot(key, replace(kept, snapshot_epoch=kept.snapshot_epoch + 1, written_ms=now_ms))
            for key, kept in self.kept.items()
            if now_ms - kept.written_ms >= interval_ms
        ]

    def of_topics(self, topic_ids: Collection[object]) -> list[ShareRecord]:
        """What ends the state of topics that were deleted."""
        return [ShareRecord(key, None) for key in self.kept if key.topic_id in topic_ids]

    # Inside

    def _initialized(self, key: SharePartitionKey, otherwise: str) -> Kept:
        _check_partition(key)
        kept = self.kept.get(key)
        if kept is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, otherwise)
        return kept

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
        change: Kept,
        batches: Sequence[StateBatch],
        updates_per_snapshot: int,
        now_ms: int,
    ) -> ShareRecord:
        """An update, or, when there were enough of them, a snapshot of all that is known."""
        kept = self.kept[key]
        if self._updates.get(key, 0) < updates_per_snapshot:
            return ShareRecord(
                key,
                ShareUpdateValue(
                    snapshot_epoch=kept.snapshot_epoch,
                    leader_epoch=change.leader_epoch,
                    start_offset=change.start_offset,
                    delivery_complete_count=change.delivery_complete_count,
                    state_batches=written_batches(combine(batches, change.start_offset)),
                ),
            )
        start = kept.start_offset if change.start_offset == NO_START_OFFSET else change.start_offset
        return _snapshot(
            key,
            replace(
                change,
                snapshot_epoch=kept.snapshot_epoch + 1,
                start_offset=start,
                batches=tuple(combine((*kept.batches, *batches), start)),
                created_ms=now_ms,
                written_ms=now_ms,
            ),
        )


def _check_partition(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")


def _state(kept: Kept, batches: Sequence[StateBatch]) -> ShareState:
    return ShareState(
        ErrorCode.NONE, kept.state_epoch, kept.leader_epoch, kept.start_offset, kept.delivery_complete_count, batches
    )


def _snapshot(key: SharePartitionKey, kept: Kept) -> ShareRecord:
    return ShareRecord(
        key,
        ShareSnapshotValue(
            snapshot_epoch=kept.snapshot_epoch,
            state_epoch=kept.state_epoch,
            leader_epoch=kept.leader_epoch,
            start_offset=kept.start_offset,
            delivery_complete_count=kept.delivery_complete_count,
            create_timestamp=kept.created_ms,
            write_timestamp=kept.written_ms,
            state_batches=written_batches(list(kept.batches)),
        ),
    )
