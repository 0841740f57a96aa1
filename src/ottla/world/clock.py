"""Time: wall clock, monotonic clock and timers.

`LoopClock` is that of an event loop; `VirtualClock` moves only when a test advances it.
"""

from __future__ import annotations

import heapq
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_SECOND = 1_000_000_000
_FEW_CANCELLED = 64


class Timer(Protocol):
    """A scheduled callback."""

    @property
    def when(self) -> float:
        """Return the monotonic time at which the timer is due."""
        ...

    def cancel(self) -> None:
        """Cancel the timer. Cancelling twice, or too late, does nothing."""
        ...


class Clock(Protocol):
    """Time and timers. Callbacks run on the loop, never inside the call that schedules them."""

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds since an arbitrary start."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Schedule a callback after `delay` seconds."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        """Schedule a callback on the next turn of the loop, after those scheduled before."""
        ...


class LoopTimer:
    """A timer of an event loop."""

    __slots__ = ("_handle", "when")

    def __init__(self, handle: asyncio.Handle, when: float) -> None:
        self._handle = handle
        self.when = when

    def cancel(self) -> None:
        """Cancel the timer."""
        self._handle.cancel()


class LoopClock:
    """The machine's time and the timers of an event loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Return wall time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return the loop's time, comparable with `Timer.when`."""
        return self._loop.time()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> LoopTimer:
        """Schedule a callback after `delay` seconds."""
        loop = self._loop
        delay = max(delay, 0)
        return LoopTimer(loop.call_later(delay, callback, *args), loop.time() + delay)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> LoopTimer:
        """Schedule a callback on the loop's next turn."""
        return LoopTimer(self._loop.call_soon(callback, *args), self._loop.time())


class VirtualTimer:
    """A timer of a virtual clock."""

    __slots__ = ("_args", "_callback", "_clock", "_due")

    def __init__(self, clock: VirtualClock, due: int, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._clock = clock
        self._due = due
        self._callback: Callable[..., object] | None = callback
        self._args = args

    @property
    def when(self) -> float:
        """Return the monotonic time at which the timer is due."""
        return self._due / _SECOND

    @property
    def cancelled(self) -> bool:
        """Return whether the timer was cancelled or has fired."""
        return self._callback is None

    def cancel(self) -> None:
        """Cancel the timer and drop its callback at once."""
        if self._callback is not None:
            self._callback = None
            self._args = ()
            self._clock._forget_one()


class VirtualClock:
    """A clock that moves only when a test advances it.

    It counts whole nanoseconds, so that sums of many small steps are exact. Timers fire in order of their time, and of
    their creation for the same time; while one fires, the clock shows exactly its time.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now = 0
        self._made = 0
        self._cancelled = 0
        self._firing = False
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def now_ms(self) -> int:
        """Return virtual wall time in milliseconds since 1970."""
        return self._start_ms + self._now // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since the clock was created."""
        return self._now / _SECOND

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Schedule a callback after `delay` virtual seconds."""
        return self._at(self._now + _nanoseconds(max(delay, 0)), callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Schedule a callback at the time `when`, or on the next turn if that has passed."""
        return self._at(max(self._now, _nanoseconds(when)), callback, args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Schedule a callback on the next turn, without moving time."""
        return self._at(self._now, callback, args)

    def advance(self, seconds: float) -> None:
        """Move time and fire due timers; an exception of a callback stops the clock at its time."""
        if seconds < 0:
            raise ValueError("time cannot move backwards")
        end = self._now + _nanoseconds(seconds)
        while self._fire_next(end):
            pass
        self._now = end

    def step(self) -> bool:
        """Move to the next timer and fire it; return False if there is none."""
        return self._fire_next(None)

    def run_until_idle(self, max_timers: int = 1_000_000) -> None:
        """Fire timers until there are none; raise RuntimeError if they never end."""
        for _ in range(max_timers):
            if not self._fire_next(None):
                return
        raise RuntimeError(f"still busy after {max_timers} timers, at {self.monotonic()} s")

    def next_due(self) -> float | None:
        """Return the monotonic time of the next timer."""
        self._drop_cancelled()
        return self._timers[0][0] / _SECOND if self._timers else None

    def set_wall_ms(self, now_ms: int) -> None:
        """Set the wall clock, as an operator may; timers are not affected."""
        self._start_ms += now_ms - self.now_ms()

    def __len__(self) -> int:
        """Return the number of scheduled timers."""
        return len(self._timers) - self._cancelled

    def __bool__(self) -> bool:
        return True

    def _at(self, due: int, callback: Callable[..., object], args: tuple[Any, ...]) -> VirtualTimer:
        timer = VirtualTimer(self, due, callback, args)
        self._made += 1
        heapq.heappush(self._timers, (due, self._made, timer))
        return timer

    def _fire_next(self, end: int | None) -> bool:
        if self._firing:
            raise RuntimeError("a timer's callback cannot move the clock that is calling it")
        self._drop_cancelled()
        if not self._timers or (end is not None and self._timers[0][0] > end):
            return False
        due, _, timer = heapq.heappop(self._timers)
        self._now = due
        callback, args = timer._callback, timer._args
        timer._callback, timer._args = None, ()
        assert callback is not None
        self._firing = True
        try:
            callback(*args)
        finally:
            self._firing = False
        return True

    def _drop_cancelled(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._callback is None:
            heapq.heappop(timers)
            self._cancelled -= 1

    def _forget_one(self) -> None:
        """Remove cancelled timers: at the head of the queue, or all of them when they are the majority."""
        self._cancelled += 1
        if self._cancelled > _FEW_CANCELLED and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2]._callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0


def _nanoseconds(seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a time")
    return round(seconds * _SECOND)
