from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from ottla.world import SimulatedCrash, SimulatedLoop, VirtualClock, World, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_sleep_takes_no_real_time_and_tasks_wake_in_order() -> None:
    world = World.simulated(1)
    seen: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        for _ in range(2):
            await asyncio.sleep(seconds)
            seen.append((asyncio.get_running_loop().time(), name))

    async def main() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(sleeper("slow", 3_600))
            group.create_task(sleeper("fast", 1_800))
        return "done"

    assert run(world, main()) == "done"
    assert seen == [(1_800, "fast"), (3_600, "slow"), (3_600, "fast"), (7_200, "slow")]
    assert world.clock.monotonic() == 7_200


def test_asyncio_timeout_uses_virtual_time() -> None:
    clock = VirtualClock()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(clock, main()) == 30


def test_clock_and_loop_timers_share_one_order() -> None:
    clock = VirtualClock()
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, seen.append, "loop 1")
        clock.call_later(1, seen.append, "clock 1")
        loop.call_soon(seen.append, "loop 0")
        clock.call_soon(seen.append, "clock 0")
        loop.call_later(0.5, seen.append, "never").cancel()
        await asyncio.sleep(1)

    run(clock, main())
    assert seen == ["loop 0", "clock 0", "loop 1", "clock 1"]


def test_deadlock_raises_instead_of_hanging() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is left to happen"):
        run(VirtualClock(), main())


def test_remaining_tasks_are_cancelled_in_creation_order() -> None:
    ended: list[int] = []

    async def forever(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(forever(number)) for number in range(20)]
        await asyncio.sleep(0)
        return tasks

    run(VirtualClock(), main())
    assert ended == list(range(20))


def test_remaining_async_generators_are_closed() -> None:
    ended: list[str] = []
    kept: list[AsyncIterator[int]] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("closed")

    async def main() -> None:
        kept.append(numbers())
        assert await anext(kept[0]) == 1

    run(VirtualClock(), main())
    assert ended == ["closed"]


def test_executor_function_runs_on_loop() -> None:
    async def main() -> tuple[int, str]:
        thread = await asyncio.to_thread(threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return thread, "ok"

    assert run(VirtualClock(), main()) == (threading.get_ident(), "ok")


def test_call_from_other_thread_is_refused() -> None:
    async def main() -> list[BaseException]:
        loop = asyncio.get_running_loop()
        errors: list[BaseException] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    assert len(run(VirtualClock(), main())) == 1


def test_sockets_are_refused() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError):
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        with pytest.raises(RuntimeError):
            await loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)

    run(VirtualClock(), main())


@pytest.mark.parametrize("where", ["task", "callback", "clock", "main"])
def test_simulated_crash_ends_run_from_any_callback(where: str) -> None:
    clock = VirtualClock()

    def crash() -> None:
        raise SimulatedCrash("now")

    async def task() -> None:
        crash()

    kept: list[Any] = []

    async def main() -> None:
        kept.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        if where == "task":
            kept.append(asyncio.create_task(task()))
        elif where == "callback":
            asyncio.get_running_loop().call_later(1, crash)
        elif where == "clock":
            clock.call_later(1, crash)
        else:
            crash()
        await asyncio.sleep(60)

    with pytest.raises(SimulatedCrash):
        run(clock, main())
    assert clock.monotonic() < 60
    assert run(clock, asyncio.sleep(1, "the clock still works")) == "the clock still works"


def test_callback_error_is_reported_and_loop_continues() -> None:
    contexts: list[dict[str, Any]] = []
    loop = SimulatedLoop(VirtualClock())
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    loop.call_soon(lambda: 1 // 0)
    loop.call_later(2, loop.stop)
    loop.run_forever()
    assert [type(context["exception"]) for context in contexts] == [ZeroDivisionError]
    assert loop.time() == 2
    loop.close()
    with pytest.raises(RuntimeError):
        loop.call_soon(print)
