"""Named timers of a shard: scheduling a name again replaces its timer.

A heartbeat only moves a deadline, and the clock's timer is renewed when the old deadline passes: thousands of members
cost dictionary entries, not timers.

A timer that fires late, because the event loop was busy or the machine was suspended, first lets the loop read its
sockets, so that a member whose heartbeat has already arrived is not evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ottla.world.clock import Clock, Timer

_RESOLUTION: Final = 1e-6  # rounding of floating-point sums
_LATE: Final = 0.05
_TURN: Final = 0.001  # a timer, not call_soon: the loop polls its sockets in between


# The timers of members, by kind: a session ends, a revocation takes too long, a classic member of a consumer group does
# not rejoin or does not sync.
SESSION: Final = "session"
REBALANCE: Final = "rebalance"
JOIN: Final = "consumer-join"
SYNC: Final = "consumer-sync"


def member_timer(kind: str, group_id: str, member_id: str) -> tuple[str, str, str]:
    """Return the name of a member's timer."""
    return (kind, group_id, member_id)


class _Entry:
    __slots__ = ("callback", "deadline", "timer", "waited")

    def __init__(self, deadline: float, callback: Callable[[], object], timer: Timer) -> None:
        self.deadline = deadline
        self.callback = callback
        self.timer = timer
        self.waited = False


class Timers:
    """Timers by name."""

    __slots__ = ("_clock", "_entries")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._entries

    def schedule(self, name: Hashable, delay_ms: int, callback: Callable[[], object]) -> None:
        """Schedule a callback after `delay_ms`, replacing the timer of that name."""
        delay = max(delay_ms, 0) / 1_000
        deadline = self._clock.monotonic() + delay
        entry = self._entries.get(name)
        if entry is not None and entry.timer.when <= deadline:
            entry.deadline = deadline
            entry.callback = callback
            entry.waited = False
            return
        if entry is not None:
            entry.timer.cancel()
        self._entries[name] = _Entry(deadline, callback, self._clock.call_later(delay, self._due, name))

    def schedule_if_absent(self, name: Hashable, delay_ms: int, callback: Callable[[], object]) -> None:
        """Schedule a callback after `delay_ms` unless a timer of that name is set."""
        if name not in self._entries:
            self.schedule(name, delay_ms, callback)

    def cancel(self, name: Hashable) -> None:
        """Cancel a timer if it is set."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.timer.cancel()

    def fire(self, name: Hashable) -> bool:
        """Fire a timer now; return False if it is not set."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return False
        entry.timer.cancel()
        entry.callback()
        return True

    def cancel_member(self, group_id: str, member_id: str) -> None:
        """Cancel all timers of a member."""
        for kind in (SESSION, REBALANCE, JOIN, SYNC):
            self.cancel(member_timer(kind, group_id, member_id))

    def cancel_all(self) -> None:
        """Cancel all timers."""
        for entry in self._entries.values():
            entry.timer.cancel()
        self._entries.clear()

    def _due(self, name: Hashable) -> None:
        entry = self._entries[name]
        remaining = entry.deadline - self._clock.monotonic()
        if remaining > _RESOLUTION:
            entry.timer = self._clock.call_later(remaining, self._due, name)
            return
        if remaining < -_LATE and not entry.waited:
            entry.waited = True
            entry.timer = self._clock.call_later(_TURN, self._due, name)
            return
        del self._entries[name]
        entry.callback()
