"""Named timers: rescheduled by heartbeats, and tolerant of a late event loop."""

from __future__ import annotations

from ottla.groups.timers import Timers
from ottla.world.clock import VirtualClock


class LateClock(VirtualClock):
    """A clock whose timers fire late by a set time."""

    def __init__(self) -> None:
        super().__init__()
        self.late = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late


def test_timer_fires_once_at_its_deadline():
    clock, fired = VirtualClock(), []
    timers = Timers(clock)
    timers.schedule("a", 1_000, lambda: fired.append(clock.monotonic()))
    clock.advance(5)
    assert fired == [1.0]
    assert "a" not in timers


def test_rescheduling_moves_the_deadline():
    clock, fired = VirtualClock(), []
    timers = Timers(clock)
    timers.schedule("a", 1_000, lambda: fired.append("old"))
    clock.advance(0.9)
    timers.schedule("a", 1_000, lambda: fired.append("new"))
    clock.advance(0.9)
    assert fired == []
    clock.advance(0.2)
    assert fired == ["new"]


def test_timer_can_be_rescheduled_earlier():
    clock, fired = VirtualClock(), []
    timers = Timers(clock)
    timers.schedule("a", 1_000, lambda: fired.append("old"))
    timers.schedule("a", 100, lambda: fired.append("new"))
    clock.advance(0.1)
    assert fired == ["new"]
    clock.advance(2)
    assert fired == ["new"]


def test_late_timer_lets_the_loop_read_its_sockets():
    clock, fired = LateClock(), []
    timers = Timers(clock)
    timers.schedule("session", 1_000, lambda: fired.append("ended"))
    clock.late = 0.5
    clock.advance(1)
    assert fired == []
    timers.schedule("session", 1_000, lambda: fired.append("ended later"))  # the heartbeat that was waiting in a socket
    clock.advance(0.9)
    assert fired == []
    clock.advance(0.2)
    assert fired == ["ended later"]


def test_late_timer_waits_only_once():
    clock, fired = LateClock(), []
    timers = Timers(clock)
    timers.schedule("session", 1_000, lambda: fired.append("ended"))
    clock.late = 0.5
    clock.advance(1)
    assert fired == []
    clock.advance(0.001)
    assert fired == ["ended"]


def test_cancelled_timer_does_not_fire():
    clock, fired = VirtualClock(), []
    timers = Timers(clock)
    timers.schedule("a", 1_000, lambda: fired.append("a"))
    timers.schedule_if_absent("a", 10, lambda: fired.append("another"))
    timers.schedule_if_absent("b", 10, lambda: fired.append("b"))
    timers.cancel("a")
    timers.cancel("never set")
    clock.advance(2)
    assert fired == ["b"]
    timers.cancel_all()
    assert len(timers) == 0
