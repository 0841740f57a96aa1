"""In-flight records of a share partition: available, acquired, acknowledged or archived, as runs of equal neighbours.

A batch (Kafka's InFlightBatch) is acquired as a whole; its runs (Kafka's InFlightState) split where the states of its
records differ. AcquisitionLock timers, persistence and the start offset are in `shares.partition`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.shares.environment import StateBatch
    from ottla.world.clock import Timer

NO_MEMBER = ""


class RecordState(IntEnum):
    """The delivery state of a record, with its number in `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is never delivered again."""
        return self >= RecordState.ACKNOWLEDGED


class AcquisitionLock:
    """The acquisition lock of the records that a member acquired in one fetch; cancelled when it holds none of them."""

    __slots__ = ("expired", "held", "timer")

    def __init__(self) -> None:
        self.timer: Timer | None = None
        self.held = 0
        self.expired = False

    def release(self) -> None:
        """Release one run; cancel the lock with the last one."""
        self.held -= 1
        if self.held <= 0:
            self.cancel()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class StateChange:
    """Runs with a new state that takes effect once it is persisted."""

    __slots__ = ("batches", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.batches: list[StateBatch] = []


class Run:
    """Neighbouring records of a batch with the same state, delivery count and member (Kafka's InFlightState)."""

    __slots__ = ("_before", "_forced", "_lock", "change", "count", "first", "last", "member", "state")

    def __init__(self, first: int, last: int, state: RecordState, count: int, member: str = NO_MEMBER) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.member = member
        self.change: StateChange | None = None
        self._before: tuple[RecordState, str, int] | None = None
        self._forced = False
        self._lock: AcquisitionLock | None = None

    def __repr__(self) -> str:
        return f"<{self.first}-{self.last} {self.state.name} {self.count} {self.member!r}>"

    @property
    def lock(self) -> AcquisitionLock | None:
        """The acquisition lock, if the run is acquired."""
        return self._lock

    @lock.setter
    def lock(self, lock: AcquisitionLock | None) -> None:
        if lock is not None:
            lock.held += 1
        if self._lock is not None:
            self._lock.release()
        self._lock = lock

    @property
    def is_available(self) -> bool:
        """Whether the run can be acquired."""
        return self.state is RecordState.AVAILABLE and self.change is None

    @property
    def is_finished(self) -> bool:
        """Whether the run is in a terminal state that is persisted."""
        return self.state.is_terminal and self.change is None

    def acquire(self, member: str, lock: AcquisitionLock) -> None:
        """Acquire the run for a member; increments the delivery count."""
        assert self.is_available
        self.state, self.member = RecordState.ACQUIRED, member
        self.count += 1
        self.lock = lock

    def set_state(self, state: RecordState, limit: int) -> None:
        """StateChange the state at once; an available run at the delivery count limit is archived instead."""
        assert self.state is RecordState.ACQUIRED
        assert self.change is None
        self._set(state, limit)
        self.lock = None

    def begin_transition(self, change: StateChange, state: RecordState, limit: int) -> None:
        """Start a transition that takes effect once it is persisted (Kafka's startStateTransition)."""
        assert self.state is RecordState.ACQUIRED
        assert self.change is None
        self._before = (self.state, self.member, limit)
        self._set(state, limit)
        self.change = change
        change.runs.append(self)

    def complete_transition(self, written: bool) -> None:
        """Complete or roll back a transition (Kafka's completeStateTransition)."""
        assert self._before is not None
        (state, member, limit), self._before, self.change = self._before, None, None
        if written or self._forced:
            self.lock = None
        elif self._lock is not None and self._lock.expired:
            self.state = RecordState.ARCHIVED if self.count >= limit else RecordState.AVAILABLE
            self.lock = None
        else:
            self.state, self.member = state, member

    def archive(self) -> None:
        """Archive the run, whatever transition is in progress: its records are deleted or aborted."""
        self.state, self.member, self._forced = RecordState.ARCHIVED, NO_MEMBER, True
        self.lock = None

    def split(self, offset: int) -> Run:
        """Split the run at an offset and return the second part."""
        rest = Run(offset, self.last, self.state, self.count, self.member)
        rest.lock, rest._before, rest._forced, rest.change = self._lock, self._before, self._forced, self.change
        if rest.change is not None:
            rest.change.runs.append(rest)
        self.last = offset - 1
        return rest

    def _set(self, state: RecordState, limit: int) -> None:
        if state is RecordState.AVAILABLE and self.count >= limit:
            state = RecordState.ARCHIVED
        self.state, self.member = state, NO_MEMBER


class InFlightBatch:
    """Records that were first acquired together (Kafka's InFlightBatch)."""

    __slots__ = ("first", "last", "runs", "whole")

    def __init__(self, run: Run) -> None:
        self.first = run.first
        self.last = run.last
        self.runs = [run]
        self.whole = True
        """Whether the state is tracked for the batch as a whole, not for parts of it."""

    def __repr__(self) -> str:
        return f"<InFlightBatch {self.runs}>"

    def __len__(self) -> int:
        return self.last - self.first + 1

    def within(self, first: int, last: int) -> list[Run]:
        """Return the runs of a range, split at its ends."""
        self.cut(first)
        self.cut(last + 1)
        return [run for run in self.runs if run.first >= first and run.last <= last]

    def cut(self, offset: int) -> None:
        """Split a run so that one begins at an offset."""
        if not self.first < offset <= self.last:
            return
        self.whole = False
        slot = bisect_right(self.runs, offset, key=lambda run: run.first) - 1
        if self.runs[slot].first < offset:
            self.runs.insert(slot + 1, self.runs[slot].split(offset))


class InFlight:
    """The in-flight batches of a share partition, sorted by first offset (Kafka's cachedState)."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: list[InFlightBatch] = []

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        return iter(self._batches)

    @property
    def first(self) -> InFlightBatch:
        """The first batch."""
        return self._batches[0]

    @property
    def last(self) -> InFlightBatch:
        """The last batch."""
        return self._batches[-1]

    def add(self, run: Run) -> InFlightBatch:
        """Add a new batch of one run."""
        batch = InFlightBatch(run)
        if self._batches and batch.first < self._batches[-1].first:
            insort(self._batches, batch, key=_first)
        else:
            self._batches.append(batch)
        return batch

    def floor(self, offset: int) -> InFlightBatch | None:
        """Return the last batch that begins at or before an offset."""
        slot = bisect_right(self._batches, offset, key=_first)
        return self._batches[slot - 1] if slot else None

    def above(self, offset: int) -> InFlightBatch | None:
        """Return the first batch that begins after an offset."""
        slot = bisect_right(self._batches, offset, key=_first)
        return self._batches[slot] if slot < len(self._batches) else None

    def beginning_in(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches whose first offset is in a range."""
        batches = self._batches
        return batches[bisect_left(batches, first, key=_first) : bisect_right(batches, last, key=_first)]

    def touching(self, first: int, last: int) -> list[InFlightBatch]:
        """Return the batches that overlap a range."""
        below = self.floor(first)
        begin = below.first if below is not None and below.last >= first else first
        return self.beginning_in(begin, last)

    def drop_through(self, offset: int) -> None:
        """Remove the batches that begin at or before an offset."""
        del self._batches[: bisect_right(self._batches, offset, key=_first)]

    def clear(self) -> None:
        """Remove all batches."""
        self._batches.clear()


def _first(batch: InFlightBatch) -> int:
    return batch.first
