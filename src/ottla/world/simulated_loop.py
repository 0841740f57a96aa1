"""An asyncio event loop on a virtual clock: no selector, no threads, no waiting.

When nothing is ready it moves the clock to the next timer: `await asyncio.sleep(3600)` takes no time, and the clock
decides the order of everything. It opens no sockets; connections come from `SimulatedTransport`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from ottla.world.clock import VirtualClock

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from concurrent.futures import Executor

    from ottla.world.clock import VirtualTimer
    from ottla.world.world import SimulatedWorld

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimulatedHandle(asyncio.TimerHandle):
    """A callback scheduled on the virtual clock."""

    __slots__ = ("_timer",)
    _timer: VirtualTimer

    def cancel(self) -> None:
        """Cancel the callback and remove it from the clock."""
        if not self.cancelled():
            asyncio.Handle.cancel(self)
            self._timer.cancel()


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; every run is the same.

    `run_in_executor` runs the function on the loop in a separate turn: a thread could not be replayed.
    """

    _stopping: bool

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._runner: int | None = None
        self._out_of_work = False
        self._until: asyncio.Future[Any] | None = None
        self._fatal: BaseException | None = None
        self._cancelling = False
        # In order of creation; the order of asyncio's own set of tasks depends on addresses.
        self._living: dict[asyncio.Task[Any], None] = {}

    def time(self) -> float:
        """Return the clock's monotonic time."""
        return self.clock.monotonic()

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        """Schedule a callback on the next turn."""
        return self.call_at(self.time(), callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        """Schedule a callback as `call_soon` does: there is one thread."""
        return self.call_at(self.time(), callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        """Schedule a callback after `delay` virtual seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> SimulatedHandle:
        """Schedule a callback at a virtual time."""
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        if self._runner is not None and self._runner != threading.get_ident():
            raise RuntimeError("another thread called into a simulated loop; its order could not be replayed")
        handle = SimulatedHandle(when, callback, args, self, context)
        handle._timer = self.clock.call_at(when, handle._run)
        return handle

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        """Run a coroutine as a task."""
        task = super().create_task(coro, **options)
        self._living[task] = None
        task.add_done_callback(self._forget)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function on the loop in a separate turn."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(work)
        return future

    def run_forever(self) -> None:
        """Run until `stop`, or until nothing is scheduled."""
        self._out_of_work = False
        self._runner = threading.get_ident()
        try:
            super().run_forever()
        finally:
            self._runner = None

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until a future is done; raise RuntimeError if nothing scheduled can complete it."""
        waited = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        self._until = waited
        try:
            self.run_forever()
        except BaseException:
            if waited is not future and waited.done() and not waited.cancelled():
                waited.exception()  # the exception raised here reports it
            raise
        finally:
            self._until = None
        if not waited.done():
            why = "nothing is left to happen" if self._out_of_work else "the loop was stopped"
            raise RuntimeError(f"{why}, but the future is not done: {future!r}")
        return waited.result()

    def cancel_all(self) -> None:
        """Cancel the remaining tasks in order of creation and let them end."""
        tasks = list(self._living)
        for task in tasks:
            task.cancel()
        if tasks:
            # a second crash during cancellation adds nothing
            self._cancelling = True
            self.run_until_complete(asyncio.wait(tasks))
            self._cancelling = False
            self._fatal = None
        for task in tasks:
            if not task.cancelled() and isinstance(error := task.exception(), Exception):
                self.call_exception_handler(
                    {"message": "a task failed while it was cancelled", "exception": error, "task": task}
                )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an uncaught exception; one that is no `Exception` ends the run."""
        error = context.get("exception")
        if error is None or isinstance(error, Exception | asyncio.CancelledError):
            super().call_exception_handler(context)
        else:
            self._fatal = error

    async def create_server(self, *args: Any, **options: Any) -> NoReturn:
        """Raise: a simulated loop has no sockets."""
        raise RuntimeError("a simulated loop has no sockets: listen with SimulatedTransport")

    async def create_connection(self, *args: Any, **options: Any) -> NoReturn:
        """Raise: a simulated loop has no sockets."""
        raise RuntimeError("a simulated loop has no sockets: connect with SimulatedTransport")

    def _run_once(self) -> None:
        """Run one turn, for asyncio's own `run_forever`."""
        if self._until is not None and self._until.done():
            self.stop()
        elif not self.clock.step():
            self._out_of_work = True
            self.stop()
        elif self._fatal is not None and not self._cancelling:
            fatal, self._fatal = self._fatal, None
            raise fatal

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._living.pop(task, None)
        if not task.cancelled():
            error = task._exception  # `exception()` would mark it as retrieved
            if error is not None and not isinstance(error, Exception):
                self._fatal = error


def run(world: SimulatedWorld | VirtualClock, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a simulated world's time, then cancel the remaining tasks."""
    loop = SimulatedLoop(world if isinstance(world, VirtualClock) else world.clock)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.cancel_all()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
