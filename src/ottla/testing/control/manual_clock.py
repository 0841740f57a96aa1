"""A clock that only a test moves, for a broker that serves real clients on a real event loop.

`call_soon` runs on the loop as usual; `call_later` waits until the test has moved time that far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ottla.world.clock import Timer, VirtualClock


class ManualClock:
    """Virtual time for a broker on a real event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time: VirtualClock) -> None:
        self._loop = loop
        self.time = time

    def now_ms(self) -> int:
        """Return the virtual wall-clock time in milliseconds since 1970."""
        return self.time.now_ms()

    def monotonic(self) -> float:
        """Return the seconds that time has been moved."""
        return self.time.monotonic()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back when time has been moved by `delay` seconds."""
        return self.time.call_later(delay, callback, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back on the next iteration of the event loop."""
        return _SoonTimer(self._loop.call_soon(callback, *args), self.time.monotonic())


class _SoonTimer:
    """The timer of a callback on the next iteration of the event loop."""

    __slots__ = ("_handle", "when")

    def __init__(self, handle: asyncio.Handle, when: float) -> None:
        self._handle = handle
        self.when = when

    def cancel(self) -> None:
        """Do not call back."""
        self._handle.cancel()
