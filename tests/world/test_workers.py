"""Workers run slow work outside the loop and call back on the loop."""

from __future__ import annotations

import asyncio
import threading

from ottla.world import InlineWorkers, ThreadWorkers, VirtualClock


async def test_work_runs_in_thread_and_calls_back_on_loop() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    response: asyncio.Future[tuple[int | None, int]] = asyncio.get_running_loop().create_future()
    loop_thread = threading.get_ident()

    def done(result: int | None, error: Exception | None) -> None:
        assert error is None
        response.set_result((result, threading.get_ident()))

    workers.submit(threading.get_ident, done)
    worker_thread, called_on = await response
    assert worker_thread != loop_thread
    assert called_on == loop_thread
    workers.close()


async def test_work_error_is_passed_to_callback() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    response: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    workers.submit(lambda: 1 // 0, lambda _, error: response.set_result(error))
    assert isinstance(await response, ZeroDivisionError)
    workers.close()


async def test_close_waits_for_work_without_callbacks() -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    begun, go_on, finished = threading.Event(), threading.Event(), threading.Event()
    called: list[object] = []

    def work() -> None:
        begun.set()
        go_on.wait(60)
        finished.set()

    workers.submit(work, lambda result, _: called.append(result))
    assert begun.wait(60)
    threading.Timer(0.01, go_on.set).start()
    workers.close()
    assert finished.is_set()
    await asyncio.sleep(0)
    assert called == []


def test_simulated_work_runs_on_next_clock_turn() -> None:
    clock = VirtualClock()
    workers = InlineWorkers(clock)
    called: list[tuple[int | None, Exception | None]] = []
    workers.submit(lambda: 41 + 1, lambda result, error: called.append((result, error)))
    assert called == []
    clock.advance(0)
    assert called == [(42, None)]
