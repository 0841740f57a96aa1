from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.world import LoopClock, VirtualClock


def test_virtual_time_moves_only_on_advance() -> None:
    clock = VirtualClock(start_ms=1_000)
    assert (clock.now_ms(), clock.monotonic(), clock.next_due()) == (1_000, 0.0, None)
    clock.advance(0.29)
    assert (clock.now_ms(), clock.monotonic()) == (1_290, 0.29)


def test_small_steps_add_up_exactly() -> None:
    clock = VirtualClock(start_ms=0)
    for _ in range(1_000):
        clock.advance(0.001)
    assert clock.now_ms() == 1_000
    assert clock.monotonic() == 1.0


def test_timers_fire_in_order_of_deadline_then_creation() -> None:
    clock = VirtualClock()
    fired: list[tuple[str, float]] = []

    def note(name: str) -> None:
        fired.append((name, clock.monotonic()))

    clock.call_later(2, note, "late")
    clock.call_later(1, note, "first of a tie")
    clock.call_later(1, note, "second of a tie")
    clock.call_soon(note, "now")
    clock.call_later(3.5, note, "after")
    assert fired == []
    clock.advance(3)
    assert fired == [("now", 0.0), ("first of a tie", 1.0), ("second of a tie", 1.0), ("late", 2.0)]
    assert clock.monotonic() == 3.0
    assert clock.next_due() == 3.5


def test_timer_created_in_callback_fires_within_same_advance() -> None:
    clock = VirtualClock()
    fired: list[float] = []

    def again() -> None:
        fired.append(clock.monotonic())
        clock.call_later(0.4, again)

    clock.call_later(0.4, again)
    clock.advance(1.2)
    assert fired == [0.4, 0.8, 1.2]
    assert clock.next_due() == 1.6


def test_cancelled_timer_never_fires() -> None:
    clock = VirtualClock()

    class Held:
        def call(self) -> None:
            raise AssertionError

    held = Held()
    gone = weakref.ref(held)
    timer = clock.call_later(5, held.call)
    assert (timer.when, timer.cancelled, len(clock)) == (5.0, False, 1)
    timer.cancel()
    timer.cancel()
    del held
    gc.collect()
    assert gone() is None
    assert (timer.cancelled, len(clock), clock.next_due()) == (True, 0, None)
    clock.advance(10)


def test_cancelled_timers_leave_queue() -> None:
    clock = VirtualClock()
    clock.call_later(1_000, lambda: None)
    for _ in range(20_000):
        clock.call_later(500, lambda: None).cancel()
    assert len(clock._timers) < 200
    assert len(clock) == 1


def test_cancelling_fired_timer_has_no_effect() -> None:
    clock = VirtualClock()
    timers = [clock.call_later(1, lambda: None) for _ in range(3)]
    clock.advance(1)
    for timer in timers:
        timer.cancel()
    assert len(clock) == 0
    clock.call_later(1, lambda: None)
    assert len(clock) == 1


def test_timer_can_cancel_timer_due_at_same_time() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    second: Any = None
    clock.call_later(1, lambda: second.cancel())
    second = clock.call_later(1, fired.append, 2)
    clock.call_later(1, fired.append, 3)
    clock.advance(1)
    assert fired == [3]


def test_callback_error_stops_advance() -> None:
    clock = VirtualClock()
    fired: list[int] = []
    clock.call_later(1, lambda: 1 // 0)
    clock.call_later(2, fired.append, 2)
    with pytest.raises(ZeroDivisionError):
        clock.advance(5)
    assert clock.monotonic() == 1.0
    clock.advance(4)
    assert (fired, clock.monotonic()) == ([2], 5.0)


def test_clock_cannot_move_backwards_or_from_callback() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError):
        clock.advance(-1)
    with pytest.raises(ValueError):
        clock.call_later(float("inf"), print)
    clock.call_later(-5, clock.advance, 1)
    with pytest.raises(RuntimeError):
        clock.advance(1)


def test_run_until_idle_fails_on_endless_timers() -> None:
    clock = VirtualClock()
    clock.call_later(3_600, clock.call_later, 3_600, lambda: None)
    clock.run_until_idle()
    assert clock.monotonic() == 7_200

    def forever() -> None:
        clock.call_later(1, forever)

    forever()
    with pytest.raises(RuntimeError, match="still busy"):
        clock.run_until_idle(max_timers=100)


def test_wall_clock_jump_moves_no_timer() -> None:
    clock = VirtualClock(start_ms=5_000)
    clock.call_later(1, lambda: None)
    clock.set_wall_ms(1_000)
    assert (clock.now_ms(), clock.monotonic(), clock.next_due()) == (1_000, 0.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(0, 60))
def test_only_due_uncancelled_timers_fire(plan: list[tuple[int, bool]], until: int) -> None:
    clock = VirtualClock()
    fired: list[int] = []
    timers = [clock.call_later(delay, fired.append, index) for index, (delay, _) in enumerate(plan)]
    for timer, (_, cancel) in zip(timers, plan, strict=True):
        if cancel:
            timer.cancel()
    clock.advance(until)
    due = [(delay, index) for index, (delay, cancel) in enumerate(plan) if delay <= until and not cancel]
    assert fired == [index for _, index in sorted(due)]
    assert len(clock) == sum(not cancel for delay, cancel in plan if delay > until)


async def test_loop_clock_calls_back_in_order() -> None:
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    done = loop.create_future()
    fired: list[str] = []
    clock.call_later(0.001, fired.append, "later")
    clock.call_later(0.002, done.set_result, None)  # made last, so that it is due last however long that took
    clock.call_soon(fired.append, "soon")
    clock.call_later(0.0, fired.append, "cancelled").cancel()
    start = clock.monotonic()
    assert clock.call_later(60, print).when >= start + 60
    await done
    assert fired == ["soon", "later"]
    assert clock.monotonic() > start
    assert clock.now_ms() > 1_700_000_000_000
