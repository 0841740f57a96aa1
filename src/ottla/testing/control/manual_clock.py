"""A clock that a test moves while real clients are connected: time stands still between two moves.

What is to happen at once happens on the loop as ever; what is to happen later waits until time gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ottla.world.clock import Timer, VirtualClock


class ManualClock:
    """Virtual time for a broker on a real loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, time: VirtualClock) -> None:
        self._loop = loop
        self.time = time

    def now_ms(self) -> int:
        """Wall time, as far as it was moved."""
        return self.time.now_ms()

    def monotonic(self) -> float:
        """Seconds since the clock began."""
        return self.time.monotonic()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back when time has been moved that far."""
        return self.time.call_later(delay, callback, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back on the next turn of the loop; this needs no move."""
        return _Soon(self._loop.call_soon(callback, *args), self.time.monotonic())


class _Soon:
    """A timer that is due already."""

    __slots__ = ("_handle", "when")

    def __init__(self, handle: asyncio.Handle, when: float) -> None:
        self._handle = handle
        self.when = when

    def cancel(self) -> None:
        """Let it not happen."""
        self._handle.cancel()
