"""A partition as one group shares it, on the leader: what is in flight, who holds it, and where the group has got to.

It reads no log and opens no socket: it is told which batches there are, and its state is kept by a `ShareStateStore`.
How records are chosen for a member is `shares.acquire`'s.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.pending import Pending, kept
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.environment import NO_START_OFFSET, ShareCounts, StateBatch
from ottla.shares.in_flight import Change, InFlight, Lock, RecordState, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.shares.environment import SharePartitionKey, ShareState, ShareStateStore
    from ottla.shares.in_flight import Batch
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
"""After one of these a share partition is of no use: whoever fetches next begins with a new one."""

_STORE_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


TRIED_AGAIN = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
"""A store that answers so is asked again, after a second, then two, and so on."""
ATTEMPTS, FIRST_PAUSE = 5, 1.0

R = TypeVar("R")


class Phase(Enum):
    """How far a share partition is."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class Acknowledgement(NamedTuple):
    """What a member says of records it holds: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Gap(NamedTuple):
    """While `end` is the end offset, records from `start` on may lie between the batches that the store had."""

    end: int
    start: int


class SharePartition:
    """One partition, shared by the members of one group.

    `reset_offset` says where a group begins that never read it (it may raise), `changed` is called whenever somebody
    who waits for records might find some.
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
        changed: Callable[[SharePartition], None] = lambda partition: None,
        counts: ShareCounts | None = None,
    ) -> None:
        self.key = key
        self.leader_epoch = leader_epoch
        self.settings = settings
        self.phase = Phase.EMPTY
        self.state_epoch = 0
        self.start_offset = 0
        self.end_offset = 0
        """The last offset that was ever in flight; where nothing is in flight, the next to fetch."""
        self.in_flight = InFlight()
        self.look_for_free = False
        """Whether there may be free records among those in flight."""
        self._gap: Gap | None = None
        self._clock = clock
        self._store = store
        self._reset_offset = reset_offset
        self._changed = changed
        self._counts = counts if counts is not None else ShareCounts()
        self.failure: KafkaError | None = None
        """Why it could not begin."""

    def __repr__(self) -> str:
        return f"<SharePartition {self.key} {self.phase.value} {self.start_offset}..{self.end_offset}>"

    # Beginning and end.

    def initialize(self) -> None:
        """Read the state, once; `changed` tells when the phase is another."""
        if self.phase is not Phase.EMPTY:
            return
        self.phase = Phase.INITIALIZING
        read = self._patiently(lambda: self._store.read(self.key, self.leader_epoch), lambda state: state.error)
        read.on_complete(self._begin)

    def _begin(self, state: ShareState) -> None:
        if self.phase is not Phase.INITIALIZING:
            return
        try:
            self._load(state)
            self.phase = Phase.ACTIVE
        except KafkaError as error:
            self.failure = error
            self.phase = Phase.FAILED
        self._changed(self)

    def _load(self, state: ShareState) -> None:
        if state.error is not ErrorCode.NONE:
            raise _store_error(state.error)
        unread = state.start_offset == NO_START_OFFSET
        self.start_offset = self._reset_offset() if unread else state.start_offset
        self.state_epoch = state.state_epoch
        self.end_offset = self.start_offset
        gap_start, expected = -1, self.start_offset
        for each in state.batches:
            if each.first_offset < self.start_offset or each.last_offset < each.first_offset:
                message = f"Failed to initialize the share partition {self.key.group_id}: its state is not one."
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
            if gap_start == -1 and each.first_offset > expected:
                gap_start = expected
            expected = each.last_offset + 1
            try:
                state_of_run = RecordState(each.delivery_state)
            except ValueError as error:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown delivery state: {error}") from error
            run = Run(each.first_offset, each.last_offset, state_of_run, each.delivery_count)
            self.in_flight.add(run)
        if self.in_flight:
            self.look_for_free = True
            self.end_offset = self.in_flight.last.last
            if gap_start != -1:
                self._gap = Gap(self.end_offset, gap_start)
            self.move_start()

    def fence(self) -> None:
        """It is over: another leads, or the topic or the group is gone. Nothing that is in flight counts any more."""
        if self.phase is not Phase.FAILED:
            self.phase = Phase.FENCED
        for batch in self.in_flight:
            for run in batch.runs:
                run.lock = None
        self._changed(self)

    # Where to read.

    @property
    def gap(self) -> Gap | None:
        """Where there may be records between batches, if anywhere."""
        gap = self._gap
        return gap if gap is not None and gap.end == self.end_offset else None

    def gap_moved(self, start: int) -> None:
        """Everything below an offset is in flight now."""
        if self._gap is not None:
            still = self._gap.end == self.end_offset and start <= self._gap.end
            self._gap = Gap(self._gap.end, start) if still else None

    @property
    def next_fetch_offset(self) -> int:
        """The offset from which records may be acquired: the first that is free, else the first never seen."""
        if not self.in_flight or self.start_offset > self.in_flight.last.last:
            self.look_for_free = False
            return self.end_offset
        if not self.look_for_free:
            return self.end_offset + 1
        gap = self.gap
        unseen = gap.start if gap is not None else -1
        for batch in self.in_flight:
            if gap is not None:
                if batch.first > unseen:
                    return unseen
                unseen = max(batch.last + 1, unseen)
            for run in batch.runs:
                if run.is_free:
                    return run.first
        self.look_for_free = False
        return self.end_offset + 1

    @property
    def records_in_flight(self) -> int:
        """How many offsets lie between what is done with and what was never seen."""
        return self.end_offset - self.start_offset + 1 if self.in_flight else 0

    @property
    def delivery_complete_count(self) -> int:
        """How many records from the start on are done with."""
        return sum(
            run.last - max(self.start_offset, run.first) + 1
            for batch in self.in_flight
            for run in batch.runs
            if run.state.is_terminal and run.last >= self.start_offset
        )

    @property
    def can_acquire(self) -> bool:
        """Whether a fetch could acquire something, if the log has it."""
        if self.phase is not Phase.ACTIVE:
            return False
        if self.next_fetch_offset != self.end_offset + 1:
            return True
        return self.records_in_flight < self.settings().max_record_locks

    def lock(self) -> Lock:
        """A new lock, from now on."""
        lock = Lock()
        duration = self.settings().record_lock_duration_ms / 1000
        lock.timer = self._clock.call_later(duration, self._lock_expired, lock)
        return lock

    # What members say.

    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement]) -> Pending[KafkaError | None]:
        """Do what a member says of records it holds, all of it or nothing; the answer comes when that is written."""
        change = Change()
        limit = self.settings().delivery_count_limit
        try:
            for each in acknowledgements:
                if any(kind not in (GAP, ACCEPT, RELEASE, REJECT, RENEW) for kind in each.types):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(each.types)}")
                if each.last < self.start_offset:
                    continue
                for batch in self._named(each):
                    if batch.last >= self.start_offset:
                        self._acknowledge(member, each, batch, change, limit)
        except KafkaError as error:
            self._settle(change, written=False)
            return kept(error)
        for each in acknowledgements:
            one_for_all = len(each.types) == 1
            self._counts.acknowledged.update({each.types[0]: each.last - each.first + 1} if one_for_all else each.types)
        return self._write(change)

    def release(self, member: str) -> Pending[KafkaError | None]:
        """Take back all that a member holds, because its session is over."""
        change = Change()
        limit = self.settings().delivery_count_limit
        for batch in self.in_flight:
            if any(run.state is RecordState.ACQUIRED and run.member == member for run in batch.runs):
                batch.cut(self.start_offset)
                for run in batch.runs:
                    if run.state is RecordState.ACQUIRED and run.member == member:
                        self._begin_change(run, change, RecordState.AVAILABLE, limit)
        return self._write(change)

    def _named(self, named: Acknowledgement) -> list[Batch]:
        """The batches that an acknowledgement speaks of; it may speak of nothing else."""
        below = self.in_flight.floor(named.first)
        if below is None and named.first < self.start_offset <= named.last:
            below = self.in_flight.floor(self.start_offset)
        if below is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        batches = self.in_flight.beginning_in(below.first, named.last)
        if batches[-1].last < named.first:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The first offset in request is past acquired records.",
            )
        if batches[-1].last < named.last:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The last offset in request is past acquired records.",
            )
        return batches

    def _acknowledge(self, member: str, named: Acknowledgement, batch: Batch, change: Change, limit: int) -> None:
        if batch.whole:
            _check_whole(member, batch.runs[0])
            covered = named.first <= batch.first and batch.last <= named.last
            if not covered or len(named.types) > 1 or batch.first < self.start_offset:
                if batch.runs[0].state is not RecordState.ACQUIRED:
                    raise _invalid("The batch cannot be acknowledged. The subset batch is not in the acquired state.")
                batch.whole = False
        first, last = max(named.first, batch.first, self.start_offset), min(named.last, batch.last)
        begin = first
        while begin <= last:
            kind = named.types[begin - named.first] if len(named.types) > 1 else named.types[0]
            end = last
            if len(named.types) > 1:
                end = begin
                while end < last and named.types[end + 1 - named.first] == kind:
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

    # What becomes of records.

    def _begin_change(self, run: Run, change: Change, state: RecordState, limit: int) -> None:
        below = run.last < self.start_offset
        run.begin(change, RecordState.ARCHIVED if below else state, limit)
        change.batches.append(StateBatch(run.first, run.last, int(run.state), run.count))

    def _write(self, change: Change) -> Pending[KafkaError | None]:
        if not change.batches:
            return kept(None)
        answer: Pending[KafkaError | None] = Pending()

        def written(code: ErrorCode) -> None:
            self._settle(change, written=code is ErrorCode.NONE)
            self.move_start()
            answer.complete(None if code is ErrorCode.NONE else _write_error(code))
            self._changed(self)

        self._store_write(change.batches).on_complete(written)
        return answer

    def _store_write(self, batches: Sequence[StateBatch]) -> Pending[ErrorCode]:
        start, done = self.start_offset, self.delivery_complete_count
        return self._patiently(
            lambda: self._store.write(self.key, self.state_epoch, self.leader_epoch, start, done, batches),
            lambda code: code,
        )

    def _patiently(self, ask: Callable[[], Pending[R]], code: Callable[[R], ErrorCode]) -> Pending[R]:
        """What the store answers, asked some times while its coordinator is not to be had."""
        answer: Pending[R] = Pending()

        def attempt(left: int, pause: float) -> None:
            ask().on_complete(lambda response: answered(response, left, pause))

        def answered(response: R, left: int, pause: float) -> None:
            if left and code(response) in TRIED_AGAIN:
                self._clock.call_later(pause, again, response, left - 1, pause * 2)
            else:
                answer.complete(response)

        def again(response: R, left: int, pause: float) -> None:
            if self.phase is Phase.FENCED:
                answer.complete(response)
            else:
                attempt(left, pause)

        attempt(ATTEMPTS - 1, FIRST_PAUSE)
        return answer

    def _settle(self, change: Change, *, written: bool) -> None:
        for run in change.runs:
            run.finish(written)
            if run.state is RecordState.AVAILABLE:
                self.look_for_free = True

    def _lock_expired(self, lock: Lock) -> None:
        """Offer to others what was held for too long; that holds at once, and is written as well."""
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
                run.leave(RecordState.ARCHIVED if run.last < self.start_offset else RecordState.AVAILABLE, limit)
                batches.append(StateBatch(run.first, run.last, int(run.state), run.count))
                self.look_for_free |= run.is_free
        if not batches:
            return

        def written(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                log.warning("The state of %r after a lock ended was not written: %s", self.key, code.name)
            self.move_start()

        self._store_write(batches).on_complete(written)
        self._changed(self)

    def archive(self, first: int, last: int, state: RecordState) -> None:
        """Records of a range that are in a state will never be delivered: they are not in the log, or were aborted."""
        for batch in self.in_flight.touching(first, last):
            begin, end = max(first, batch.first), min(last, batch.last)
            if not any(run.state is state for run in batch.runs if run.last >= begin and run.first <= end):
                continue
            for run in batch.within(begin, end):
                if run.state is state:
                    run.archive()
                    self.look_for_free = True

    def log_start_moved(self, offset: int) -> None:
        """The log begins later than the group has got to: what is below is gone."""
        if offset <= self.start_offset:
            return
        if not self.in_flight:
            self.start_offset = self.end_offset = offset
            return
        self.archive(self.start_offset, offset - 1, RecordState.AVAILABLE)
        self.start_offset = offset
        self.end_offset = max(self.end_offset, offset)
        self.move_start()

    def move_start(self) -> None:
        """Forget what is done with at the beginning."""
        if not self._start_is_done():
            return
        done = self._done_until()
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

    def _start_is_done(self) -> bool:
        if not self.in_flight:
            return False
        holder = self.in_flight.floor(self.start_offset)
        if holder is None:
            if self.gap is not None and self.gap.start < self.in_flight.first.first:
                return False
            holder = self.in_flight.first  # below it the log has nothing, or it would be in flight as well
        run = next((each for each in holder.runs if each.last >= self.start_offset), holder.runs[-1])
        return run.is_done

    def _done_until(self) -> int:
        """The last offset of those at the beginning that are done with."""
        done, gap = -1, self.gap
        unseen = gap.start if gap is not None else -1
        for batch in self.in_flight:
            if gap is not None:
                if batch.first > unseen:
                    break
                unseen = max(unseen, batch.last + 1)
            for run in batch.runs:
                if not run.is_done:
                    return done
                done = run.last
        return done


def _store_error(code: ErrorCode, message: str | None = None) -> KafkaError:
    """What a client is told when the state could not be read or written."""
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
