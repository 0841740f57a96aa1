"""Time: the wall's, the one that never goes back, and what is to happen later.

`LoopClock` is an event loop's; `VirtualClock` stands still until somebody moves it.
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
    """Something that is to happen."""

    @property
    def when(self) -> float:
        """The monotonic time at which it is due."""
        ...

    def cancel(self) -> None:
        """Let it not happen. Cancelling twice, or too late, is fine."""
        ...


class Clock(Protocol):
    """Time and timers. Callbacks run on the loop, never inside the call that asked for them."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds from some start, never going back."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back after `delay` seconds."""
        ...

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back on the next turn, after what was asked for before."""
        ...


class LoopTimer:
    """A timer of an event loop."""

    __slots__ = ("_handle", "when")

    def __init__(self, handle: asyncio.Handle, when: float) -> None:
        self._handle = handle
        self.when = when

    def cancel(self) -> None:
        """Let it not happen."""
        self._handle.cancel()


class LoopClock:
    """The machine's time, and the timers of an event loop."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """The loop's time, so that it can be compared with `Timer.when`."""
        return self._loop.time()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> LoopTimer:
        """Call back after `delay` seconds."""
        loop = self._loop
        delay = max(delay, 0)
        return LoopTimer(loop.call_later(delay, callback, *args), loop.time() + delay)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> LoopTimer:
        """Call back on the loop's next turn."""
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
        """The monotonic time at which it is due."""
        return self._due / _SECOND

    @property
    def cancelled(self) -> bool:
        """Whether it has been cancelled, or has happened."""
        return self._callback is None

    def cancel(self) -> None:
        """Let it not happen, and let go of what it would have called at once."""
        if self._callback is not None:
            self._callback = None
            self._args = ()
            self._clock._forget_one()


class VirtualClock:
    """Time that moves only when it is told to.

    It counts whole nanoseconds, so that the sum of many small steps is exact. Timers fire in order of their
    time, and at the same time in order of their making; while one fires, the clock shows exactly its time.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now = 0
        self._made = 0
        self._cancelled = 0
        self._firing = False
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def now_ms(self) -> int:
        """Virtual wall time in milliseconds since 1970."""
        return self._start_ms + self._now // 1_000_000

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now / _SECOND

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Call back when the clock has moved on by `delay` seconds."""
        return self._at(self._now + _nanoseconds(max(delay, 0)), callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Call back when the clock shows `when`, or on the next turn if it is past that."""
        return self._at(max(self._now, _nanoseconds(when)), callback, args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> VirtualTimer:
        """Call back on the next turn, without time passing."""
        return self._at(self._now, callback, args)

    def advance(self, seconds: float) -> None:
        """Move on, firing what falls due on the way; an exception of a callback ends it at that time."""
        if seconds < 0:
            raise ValueError("time does not go back")
        end = self._now + _nanoseconds(seconds)
        while self._fire_next(end):
            pass
        self._now = end

    def step(self) -> bool:
        """Fire the next timer, moving on to its time; False if there is none."""
        return self._fire_next(None)

    def run_until_idle(self, max_timers: int = 1_000_000) -> None:
        """Fire timers, moving on as needed, until there are none; RuntimeError if there is no end to them."""
        for _ in range(max_timers):
            if not self._fire_next(None):
                return
        raise RuntimeError(f"still busy after {max_timers} timers, at {self.monotonic()} s")

    def next_due(self) -> float | None:
        """The monotonic time of the next timer."""
        self._drop_cancelled()
        return self._timers[0][0] / _SECOND if self._timers else None

    def set_wall_ms(self, now_ms: int) -> None:
        """Let the wall clock jump, as it may when somebody sets it; timers do not notice."""
        self._start_ms += now_ms - self.now_ms()

    def __len__(self) -> int:
        """How many timers are waiting."""
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
        """Cancelled timers leave the queue at its head, or all together when they are most of it."""
        self._cancelled += 1
        if self._cancelled > _FEW_CANCELLED and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2]._callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0


def _nanoseconds(seconds: float) -> int:
    if not math.isfinite(seconds):
        raise ValueError(f"{seconds} is not a time")
    return round(seconds * _SECOND)
