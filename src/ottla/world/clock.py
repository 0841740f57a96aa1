"""Time: the wall's, the one that never goes back, and what is to happen later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


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
