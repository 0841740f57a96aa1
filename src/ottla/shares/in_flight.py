"""Records in flight: which are free, in whose hands, or done with, kept as runs of equal neighbours.

Pure data and its rules. A batch is what was acquired in one piece; its runs split where records of it fare differently.
When locks end, when state is written and where a partition starts is the business of `shares.partition`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.shares.environment import StateBatch
    from ottla.world.clock import Timer

NOBODY = ""


class RecordState(IntEnum):
    """Where a record is on its way; the numbers are those of the state topic."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record will never be delivered again."""
        return self >= RecordState.ACKNOWLEDGED


class Lock:
    """The time for which one member holds what it acquired together; it ends early when nothing is held any more."""

    __slots__ = ("expired", "held", "timer")

    def __init__(self) -> None:
        self.timer: Timer | None = None
        self.held = 0
        self.expired = False

    def let_go(self) -> None:
        """One run less is held."""
        self.held -= 1
        if self.held <= 0:
            self.cancel()

    def cancel(self) -> None:
        """Let it never expire."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Change:
    """Runs that have a new state which counts only when it is written."""

    __slots__ = ("batches", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.batches: list[StateBatch] = []


class Run:
    """Neighbouring records of one batch that have everything in common."""

    __slots__ = ("_before", "_forced", "_lock", "change", "count", "first", "last", "member", "state")

    def __init__(self, first: int, last: int, state: RecordState, count: int, member: str = NOBODY) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.member = member
        self.change: Change | None = None
        self._before: tuple[RecordState, str, int] | None = None
        self._forced = False
        self._lock: Lock | None = None

    def __repr__(self) -> str:
        return f"<{self.first}-{self.last} {self.state.name} {self.count} {self.member!r}>"

    @property
    def lock(self) -> Lock | None:
        """Until when it is in its member's hands."""
        return self._lock

    @lock.setter
    def lock(self, lock: Lock | None) -> None:
        if lock is not None:
            lock.held += 1
        if self._lock is not None:
            self._lock.let_go()
        self._lock = lock

    @property
    def is_free(self) -> bool:
        """Whether it may be acquired."""
        return self.state is RecordState.AVAILABLE and self.change is None

    @property
    def is_done(self) -> bool:
        """Whether it is done with, and that is written."""
        return self.state.is_terminal and self.change is None

    def acquire(self, member: str, lock: Lock) -> None:
        """Give it to a member."""
        assert self.is_free
        self.state, self.member = RecordState.ACQUIRED, member
        self.count += 1
        self.lock = lock

    def leave(self, state: RecordState, limit: int) -> None:
        """Take it out of its member's hands for good; what was delivered too often is not offered again."""
        assert self.state is RecordState.ACQUIRED
        assert self.change is None
        self._set(state, limit)
        self.lock = None

    def begin(self, change: Change, state: RecordState, limit: int) -> None:
        """Take it out of its member's hands as soon as that is written; until then nobody may touch it."""
        assert self.state is RecordState.ACQUIRED
        assert self.change is None
        self._before = (self.state, self.member, limit)
        self._set(state, limit)
        self.change = change
        change.runs.append(self)

    def finish(self, written: bool) -> None:
        """The new state is written, or is not and never was."""
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
        """It is gone from the log, or nobody may see it: done with, whatever else is under way."""
        self.state, self.member, self._forced = RecordState.ARCHIVED, NOBODY, True
        self.lock = None

    def split(self, at: int) -> Run:
        """Cut off what begins at an offset."""
        rest = Run(at, self.last, self.state, self.count, self.member)
        rest.lock, rest._before, rest._forced, rest.change = self._lock, self._before, self._forced, self.change
        if rest.change is not None:
            rest.change.runs.append(rest)
        self.last = at - 1
        return rest

    def _set(self, state: RecordState, limit: int) -> None:
        if state is RecordState.AVAILABLE and self.count >= limit:
            state = RecordState.ARCHIVED
        self.state, self.member = state, NOBODY


class Batch:
    """Records that were first acquired in one piece."""

    __slots__ = ("first", "last", "runs", "whole")

    def __init__(self, run: Run) -> None:
        self.first = run.first
        self.last = run.last
        self.runs = [run]
        self.whole = True
        """No part of it was ever looked at on its own."""

    def __repr__(self) -> str:
        return f"<Batch {self.runs}>"

    def __len__(self) -> int:
        return self.last - self.first + 1

    def within(self, first: int, last: int) -> list[Run]:
        """The runs of a range, cut to it."""
        self.cut(first)
        self.cut(last + 1)
        return [run for run in self.runs if run.first >= first and run.last <= last]

    def cut(self, at: int) -> None:
        """Let a run begin at an offset."""
        if not self.first < at <= self.last:
            return
        self.whole = False
        slot = bisect_right(self.runs, at, key=lambda run: run.first) - 1
        if self.runs[slot].first < at:
            self.runs.insert(slot + 1, self.runs[slot].split(at))


class InFlight:
    """The batches of a partition by their first offset; between them nothing was ever acquired."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    @property
    def first(self) -> Batch:
        """The first batch."""
        return self._batches[0]

    @property
    def last(self) -> Batch:
        """The last batch."""
        return self._batches[-1]

    def add(self, run: Run) -> Batch:
        """Keep a new batch."""
        batch = Batch(run)
        if self._batches and batch.first < self._batches[-1].first:
            insort(self._batches, batch, key=_first)
        else:
            self._batches.append(batch)
        return batch

    def floor(self, offset: int) -> Batch | None:
        """The last batch that begins at an offset or before."""
        slot = bisect_right(self._batches, offset, key=_first)
        return self._batches[slot - 1] if slot else None

    def above(self, offset: int) -> Batch | None:
        """The first batch that begins behind an offset."""
        slot = bisect_right(self._batches, offset, key=_first)
        return self._batches[slot] if slot < len(self._batches) else None

    def beginning_in(self, first: int, last: int) -> list[Batch]:
        """The batches whose first offset is in a range."""
        batches = self._batches
        return batches[bisect_left(batches, first, key=_first) : bisect_right(batches, last, key=_first)]

    def touching(self, first: int, last: int) -> list[Batch]:
        """The batches that have an offset in a range."""
        below = self.floor(first)
        begin = below.first if below is not None and below.last >= first else first
        return self.beginning_in(begin, last)

    def drop_through(self, offset: int) -> None:
        """Forget the batches that begin at an offset or before."""
        del self._batches[: bisect_right(self._batches, offset, key=_first)]

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()


def _first(batch: Batch) -> int:
    return batch.first
