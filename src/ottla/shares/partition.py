"""A share partition on its leader: start offset (SPSO), in-flight records, acquisition locks (Kafka's SharePartition).

Callers pass in which batches the log has; the state is persisted through a `ShareStateStore`. `shares.acquire` chooses
the records of a fetch.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.pending import Pending, completed_with
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.environment import NO_START_OFFSET, ShareCounts, StateBatch
from ottla.shares.in_flight import AcquisitionLock, InFlight, RecordState, Run, StateChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.shares.environment import SharePartitionKey, ShareState, ShareStateStore
    from ottla.shares.in_flight import InFlightBatch
    from ottla.shares.settings import ShareSettings
    from ottla.world.clock import Clock

log = logging.getLogger(__name__)

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
STATE_OF_TYPE = {
    GAP: RecordState.ARCHIVED,
    ACCEPT: RecordState.ACKNOWLEDGED,
    RELEASE: RecordState.AVAILABLE,
    REJECT: RecordState.ARCHIVED,
}
ENDS_PARTITION = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors after which a share partition is dropped; the next fetch creates a new one."""

_STORE_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


RETRIED_ERRORS = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""Errors of the store that are retried, after 1 s, 2 s, 4 s and 8 s."""
ATTEMPTS, FIRST_BACKOFF_S = 5, 1.0

R = TypeVar("R")


class SharePartitionState(Enum):
    """The state of a share partition (Kafka's SharePartitionState)."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class Acknowledgement(NamedTuple):
    """An acknowledged range: one acknowledge type for all records, or one for each (ShareAcknowledgementBatch)."""

    first: int
    last: int
    types: Sequence[int]


class Gap(NamedTuple):
    """The log may have records from `start` to `end` that are not in flight (Kafka's GapWindow).

    It counts only while `end` is the end offset.
    """

    end: int
    start: int


class SharePartition:
    """One partition, shared by the members of one group.

    `reset_offset` returns the first start offset of a group (it may raise); `on_change` is called whenever records may
    have become available to waiting fetches.
    """

    def __init__(
        self,
        key: SharePartitionKey,
        leader_epoch: int,
        *,
        clock: Clock,
        store: ShareStateStore,
        settings: Callable[[], ShareSettings],
        reset_offset: Callable[[], int],
        on_change: Callable[[SharePartition], None] = lambda partition: None,
        counts: ShareCounts | None = None,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.settings = settings
        self.partition_state = SharePartitionState.EMPTY
        self.state_epoch = 0
        self.start_offset = 0
        self.end_offset = 0
        """The last offset that was in flight; the next offset to fetch if nothing is in flight."""
        self.in_flight = InFlight()
        self.find_next_fetch_offset = False
        """Whether in-flight records may be available (Kafka's findNextFetchOffset)."""
        self._gap: Gap | None = None
        self._clock = clock
        self._store = store
        self._reset_offset = reset_offset
        self._on_change = on_change
        self._counts = counts if counts is not None else ShareCounts()
        self.failure: KafkaError | None = None
        """Why the initialization failed."""

    def __repr__(self) -> str:
        return f"<SharePartition {self.key} {self.partition_state.value} {self.start_offset}..{self.end_offset}>"

    # Initialization and fencing

    def initialize(self) -> None:
        """Read the persisted state, once; `on_change` is called when that succeeded or failed."""
        if self.partition_state is not SharePartitionState.EMPTY:
            return
        self.partition_state = SharePartitionState.INITIALIZING
        read = self._with_retries(lambda: self._store.read(self.key, self.leader_epoch), lambda state: state.error)
        read.on_complete(self._begin)

    def _begin(self, state: ShareState) -> None:
        if self.partition_state is not SharePartitionState.INITIALIZING:
            return
        try:
            self._load(state)
            self.partition_state = SharePartitionState.ACTIVE
        except KafkaError as error:
            self.failure = error
            self.partition_state = SharePartitionState.FAILED
        self._on_change(self)

    def _load(self, state: ShareState) -> None:
        if state.error is not ErrorCode.NONE:
            raise _store_error(state.error)
        unread = state.start_offset == NO_START_OFFSET
        self.start_offset = self._reset_offset() if unread else state.start_offset
        self.state_epoch = state.state_epoch
        self.end_offset = self.start_offset
        gap_start, expected = -1, self.start_offset
        for batch in state.batches:
            if batch.first_offset < self.start_offset or batch.last_offset < batch.first_offset:
                message = (
                    f"Failed to initialize the share partition {self.key.group_id}: its persisted state is invalid."
                )
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
            if gap_start == -1 and batch.first_offset > expected:
                gap_start = expected
            expected = batch.last_offset + 1
            try:
                delivery_state = RecordState(batch.delivery_state)
            except ValueError as error:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown delivery state: {error}") from error
            run = Run(batch.first_offset, batch.last_offset, delivery_state, batch.delivery_count)
            self.in_flight.add(run)
        if self.in_flight:
            self.find_next_fetch_offset = True
            self.end_offset = self.in_flight.last.last
            if gap_start != -1:
                self._gap = Gap(self.end_offset, gap_start)
            self.advance_start_offset()

    def fence(self) -> None:
        """Fence the share partition: this node lost the leadership, or the topic or group was deleted."""
        if self.partition_state is not SharePartitionState.FAILED:
            self.partition_state = SharePartitionState.FENCED
        for batch in self.in_flight:
            for run in batch.runs:
                run.lock = None
        self._on_change(self)

    # Fetch offset and limits

    @property
    def gap(self) -> Gap | None:
        """The gap between in-flight batches, if it is not closed yet."""
        gap = self._gap
        return gap if gap is not None and gap.end == self.end_offset else None

    def advance_gap(self, start: int) -> None:
        """Move the start of the gap to an offset, below which all records are in flight."""
        if self._gap is not None:
            still = self._gap.end == self.end_offset and start <= self._gap.end
            self._gap = Gap(self._gap.end, start) if still else None

    @property
    def next_fetch_offset(self) -> int:
        """The first available in-flight offset, else the first offset that was never in flight."""
        if not self.in_flight or self.start_offset > self.in_flight.last.last:
            self.find_next_fetch_offset = False
            return self.end_offset
        if not self.find_next_fetch_offset:
            return self.end_offset + 1
        gap = self.gap
        next_new = gap.start if gap is not None else -1
        for batch in self.in_flight:
            if gap is not None:
                if batch.first > next_new:
                    return next_new
                next_new = max(batch.last + 1, next_new)
            for run in batch.runs:
                if run.is_available:
                    return run.first
        self.find_next_fetch_offset = False
        return self.end_offset + 1

    @property
    def records_in_flight(self) -> int:
        """The number of offsets from the start offset to the end offset."""
        return self.end_offset - self.start_offset + 1 if self.in_flight else 0

    @property
    def delivery_complete_count(self) -> int:
        """The number of records from the start offset on in a terminal state (KIP-1226)."""
        return sum(
            run.last - max(self.start_offset, run.first) + 1
            for batch in self.in_flight
            for run in batch.runs
            if run.state.is_terminal and run.last >= self.start_offset
        )

    @property
    def can_acquire(self) -> bool:
        """Whether records are available, or share.partition.max.record.locks allows more in flight."""
        if self.partition_state is not SharePartitionState.ACTIVE:
            return False
        if self.next_fetch_offset != self.end_offset + 1:
            return True
        return self.records_in_flight < self.settings().max_record_locks

    def lock(self) -> AcquisitionLock:
        """Return a new acquisition lock, which expires after share.record.lock.duration.ms."""
        lock = AcquisitionLock()
        duration = self.settings().record_lock_duration_ms / 1000
        lock.timer = self._clock.call_later(duration, self._lock_expired, lock)
        return lock

    # Acknowledgement and release

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement]) -> Pending[KafkaError | None]:
        """Acknowledge records of a member, all or none; complete with the error, or None, once persisted."""
        change = StateChange()
        limit = self.settings().delivery_count_limit
        try:
            for acked in acknowledgements:
                if any(kind not in (GAP, ACCEPT, RELEASE, REJECT, RENEW) for kind in acked.types):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(acked.types)}")
                if acked.last < self.start_offset:
                    continue
                for batch in self._acknowledged_batches(acked):
                    if batch.last >= self.start_offset:
                        self._acknowledge(member, acked, batch, change, limit)
        except KafkaError as error:
            self._complete_change(change, written=False)
            return completed_with(error)
        for acked in acknowledgements:
            one_for_all = {acked.types[0]: acked.last - acked.first + 1} if len(acked.types) == 1 else None
            self._counts.acknowledged.update(one_for_all or acked.types)
        return self._write(change)

    def release(self, member: str) -> Pending[KafkaError | None]:
        """Release all records that a member has acquired, because its session ended."""
        change = StateChange()
        limit = self.settings().delivery_count_limit
        for batch in self.in_flight:
            if any(run.state is RecordState.ACQUIRED and run.member == member for run in batch.runs):
                batch.cut(self.start_offset)
                for run in batch.runs:
                    if run.state is RecordState.ACQUIRED and run.member == member:
                        self._begin_change(run, change, RecordState.AVAILABLE, limit)
        return self._write(change)

    def _acknowledged_batches(self, acked: Acknowledgement) -> list[InFlightBatch]:
        """Return the in-flight batches of an acknowledgement; raise if it exceeds them."""
        below = self.in_flight.floor(acked.first)
        if below is None and acked.first < self.start_offset <= acked.last:
            below = self.in_flight.floor(self.start_offset)
        if below is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        batches = self.in_flight.beginning_in(below.first, acked.last)
        if batches[-1].last < acked.first:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The first offset in request is past acquired records.",
            )
        if batches[-1].last < acked.last:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The last offset in request is past acquired records.",
            )
        return batches

    def _acknowledge(
        self, member: str, acked: Acknowledgement, batch: InFlightBatch, change: StateChange, limit: int
    ) -> None:
        if batch.whole:
            _check_whole(member, batch.runs[0])
            covered = acked.first <= batch.first and batch.last <= acked.last
            if not covered or len(acked.types) > 1 or batch.first < self.start_offset:
                if batch.runs[0].state is not RecordState.ACQUIRED:
                    raise _invalid("The batch cannot be acknowledged. The subset batch is not in the acquired state.")
                batch.whole = False
        first, last = max(acked.first, batch.first, self.start_offset), min(acked.last, batch.last)
        begin = first
        while begin <= last:
            kind = acked.types[begin - acked.first] if len(acked.types) > 1 else acked.types[0]
            end = last
            if len(acked.types) > 1:
                end = begin
                while end < last and acked.types[end + 1 - acked.first] == kind:
                    end += 1
            for run in batch.within(begin, end):
                _check_run(member, run)
                if kind == RENEW:
                    if not self.settings().renew_enabled:
                        raise _invalid("Renewing acquisition locks is not enabled for the group.")
                    run.lock = self.lock()
                else:
                    self._begin_change(run, change, STATE_OF_TYPE[kind], limit)
            begin = end + 1

    # State transitions and persistence

    def _begin_change(self, run: Run, change: StateChange, state: RecordState, limit: int) -> None:
        below = run.last < self.start_offset
        run.begin_transition(change, RecordState.ARCHIVED if below else state, limit)
        change.batches.append(StateBatch(run.first, run.last, int(run.state), run.count))

    def _write(self, change: StateChange) -> Pending[KafkaError | None]:
        if not change.batches:
            return completed_with(None)
        response: Pending[KafkaError | None] = Pending()

        def written(code: ErrorCode) -> None:
            self._complete_change(change, written=code is ErrorCode.NONE)
            self.advance_start_offset()
            response.complete(None if code is ErrorCode.NONE else _write_error(code))
            self._on_change(self)

        self._store_write(change.batches).on_complete(written)
        return response

    def _store_write(self, batches: Sequence[StateBatch]) -> Pending[ErrorCode]:
        start, done = self.start_offset, self.delivery_complete_count
        return self._with_retries(
            lambda: self._store.write(self.key, self.state_epoch, self.leader_epoch, start, done, batches),
            lambda code: code,
        )

    def _with_retries(self, ask: Callable[[], Pending[R]], code: Callable[[R], ErrorCode]) -> Pending[R]:
        """Call the store, with retries while its coordinator is not available."""
        pending: Pending[R] = Pending()

        def attempt(left: int, pause: float) -> None:
            ask().on_complete(lambda response: answered(response, left, pause))

        def answered(response: R, left: int, pause: float) -> None:
            if left and code(response) in RETRIED_ERRORS:
                self._clock.call_later(pause, again, response, left - 1, pause * 2)
            else:
                pending.complete(response)

        def again(response: R, left: int, pause: float) -> None:
            if self.partition_state is SharePartitionState.FENCED:
                pending.complete(response)
            else:
                attempt(left, pause)

        attempt(ATTEMPTS - 1, FIRST_BACKOFF_S)
        return pending

    def _complete_change(self, change: StateChange, *, written: bool) -> None:
        for run in change.runs:
            run.complete_transition(written)
            if run.state is RecordState.AVAILABLE:
                self.find_next_fetch_offset = True

    def _lock_expired(self, lock: AcquisitionLock) -> None:
        """Release records whose acquisition lock expired, at once; the new state is persisted afterwards."""
        lock.expired = True
        lock.timer = None
        limit = self.settings().delivery_count_limit
        batches: list[StateBatch] = []
        for batch in self.in_flight:
            if all(run.lock is not lock for run in batch.runs):
                continue
            batch.cut(self.start_offset)
            for run in batch.runs:
                if run.lock is not lock or run.state is not RecordState.ACQUIRED:
                    continue
                self._counts.locks_expired += run.last - run.first + 1
                run.set_state(RecordState.ARCHIVED if run.last < self.start_offset else RecordState.AVAILABLE, limit)
                batches.append(StateBatch(run.first, run.last, int(run.state), run.count))
                self.find_next_fetch_offset |= run.is_available
        if not batches:
            return

        def written(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                log.warning(
                    "%r: the state after an expired acquisition lock was not persisted: %s", self.key, code.name
                )
            self.advance_start_offset()

        self._store_write(batches).on_complete(written)
        self._on_change(self)

    def archive(self, first: int, last: int, state: RecordState) -> None:
        """Archive the records of a range that are in a state: they were deleted from the log, or aborted."""
        for batch in self.in_flight.touching(first, last):
            begin, end = max(first, batch.first), min(last, batch.last)
            if not any(run.state is state for run in batch.runs if run.last >= begin and run.first <= end):
                continue
            for run in batch.within(begin, end):
                if run.state is state:
                    run.archive()
                    self.find_next_fetch_offset = True

    def log_start_offset_changed(self, offset: int) -> None:
        """Move the start offset to the log start offset and archive available records below it."""
        if offset <= self.start_offset:
            return
        if not self.in_flight:
            self.start_offset = self.end_offset = offset
            return
        self.archive(self.start_offset, offset - 1, RecordState.AVAILABLE)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self.advance_start_offset()

    def advance_start_offset(self) -> None:
        """Advance the start offset past records in terminal states, and remove them from the in-flight batches."""
        if not self._can_advance_start_offset():
            return
        done = self._last_terminal_offset()
        if done == -1:
            return
        if done == self.in_flight.last.last:
            self.start_offset = self.end_offset = max(self.start_offset, done + 1)
            self.in_flight.clear()
            return
        holder = self.in_flight.floor(done)
        assert holder is not None
        if done == holder.last:
            above = self.in_flight.above(done)
            assert above is not None
            following = above.first
            if self.gap is not None:
                following = min(following, max(self.gap.start, done + 1))
            self.start_offset = max(self.start_offset, following)
            self.in_flight.drop_through(holder.first)
        else:
            self.start_offset = max(self.start_offset, done + 1)
            self.in_flight.drop_through(holder.first - 1)

    def _can_advance_start_offset(self) -> bool:
        if not self.in_flight:
            return False
        holder = self.in_flight.floor(self.start_offset)
        if holder is None:
            if self.gap is not None and self.gap.start < self.in_flight.first.first:
                return False
            holder = self.in_flight.first  # the log has no records below, or they would be in flight
        run = next((run for run in holder.runs if run.last >= self.start_offset), holder.runs[-1])
        return run.is_finished

    def _last_terminal_offset(self) -> int:
        """Return the last offset of the leading records in terminal states, or -1."""
        done, gap = -1, self.gap
        next_new = gap.start if gap is not None else -1
        for batch in self.in_flight:
            if gap is not None:
                if batch.first > next_new:
                    break
                next_new = max(next_new, batch.last + 1)
            for run in batch.runs:
                if not run.is_finished:
                    return done
                done = run.last
        return done


def _store_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    """Return the error of a response when the state could not be read or written."""
    return KafkaError(_STORE_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR), message)


def _write_error(code: ErrorCode) -> KafkaError:
    return _store_error(code, f"Error in write state RPC. {error_text(code)}")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, message)


def _check_whole(member: str, run: Run) -> None:
    if not run.member:
        raise _invalid("The batch cannot be acknowledged. The batch is not in the acquired state.")
    if run.member != member:
        raise _invalid("Member is not the owner of batch record")


def _check_run(member: str, run: Run) -> None:
    if run.state is not RecordState.ACQUIRED:
        raise _invalid("The offset cannot be acknowledged. The offset is not acquired.")
    if run.member != member:
        raise _invalid("Member is not the owner of offset")
