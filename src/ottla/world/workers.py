"""Runs work that would block the loop: in threads on the real machine, inline in simulations.

The work must not touch state of the loop; its result is delivered on the loop.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from ottla.world.clock import Clock

T = TypeVar("T")


class Workers(Protocol):
    """Runs slow work."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run `work` in the background, then call `done(result, error)` on the loop."""
        ...

    def submit_request(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run work that a client waits for, in the same way; it never waits for background work such as compaction."""
        ...

    def submit_waiting(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run work that waits for another machine, in the same way.

        It delays no other work, and `close` does not wait for it.
        """
        ...

    def close(self) -> None:
        """Wait for started work; accept no new work and call no callbacks."""
        ...


REQUEST_THREADS = 2  # The number of batches decompressed at once, which bounds their memory.


class ThreadWorkers:
    """One thread for background work and two for requests, each started on first use."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._background: ThreadPoolExecutor | None = None
        self._requests: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run `work` in the background thread, then call `done(result, error)` on the loop."""
        assert not self._closed, "work was given to workers that are closed"
        if self._background is None:
            self._background = _threads(1, "ottla-worker")
        self._background.submit(self._run, work, done)

    def submit_request(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run `work` in a thread for requests, then call `done(result, error)` on the loop."""
        assert not self._closed, "work was given to workers that are closed"
        if self._requests is None:
            self._requests = _threads(REQUEST_THREADS, "ottla-request")
        self._requests.submit(self._run, work, done)

    def submit_waiting(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run `work` in a new thread, then call `done(result, error)` on the loop."""
        assert not self._closed, "work was given to workers that are closed"
        threading.Thread(target=self._run, args=(work, done), name="ottla-waiting", daemon=True).start()

    def close(self) -> None:
        """Wait for started work."""
        self._closed = True
        for threads in (self._background, self._requests):
            if threads is not None:
                threads.shutdown(wait=True, cancel_futures=True)
        self._background = self._requests = None

    def _run(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], object]) -> None:
        result, error = _attempt(work)
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, done, result, error)

    def _deliver(self, done: Callable[[Any, Exception | None], object], result: Any, error: Exception | None) -> None:
        if not self._closed:
            done(result, error)


class InlineWorkers:
    """No threads: work runs on the next turn of a clock, so that runs are repeatable."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed = False

    def submit(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], object]) -> None:
        """Run `work` on the next turn."""
        self._clock.call_soon(self._run, work, done)

    submit_request = submit_waiting = submit

    def close(self) -> None:
        """Drop pending callbacks."""
        self._closed = True

    def _run(self, work: Callable[[], Any], done: Callable[[Any, Exception | None], object]) -> None:
        if not self._closed:
            done(*_attempt(work))


def _threads(count: int, name: str) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # imported on first use

    return ThreadPoolExecutor(count, thread_name_prefix=name)


def _attempt(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error
