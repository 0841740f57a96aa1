"""Runs blocking calls of `ottla.client` on threads with one client each, and tracks if the cluster answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ottla.client.connection import ConnectionFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.client.client import Client

P = ParamSpec("P")
T = TypeVar("T")
THREADS: Final = 6
STREAM_THREADS: Final = 32
"""Tails and searches that may run at the same time."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether the cluster answered the last call, and since when that holds."""

    answers: bool
    since: float
    problem: str = ""


class ClusterAccess:
    """Clients of one cluster for the pages.

        topics = await access.run(Client.topics)

    `connect` makes a client. Calls run on a few threads; an idle page uses none.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._idle: deque[Client] = deque()
        self._calls = ThreadPoolExecutor(THREADS, "ottla-console")
        self._streams = ThreadPoolExecutor(STREAM_THREADS, "ottla-console-stream")
        self._cached: dict[Any, tuple[float, asyncio.Task[Any]]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.reachability = Reachability(True, time.time())

    async def run(self, function: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with a client on a thread; return its result."""
        return await asyncio.get_running_loop().run_in_executor(
            self._calls, lambda: self._call(function, *args, **kwargs)
        )

    async def stream(self, function: Callable[Concatenate[Client, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that takes long, such as a search, on a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(
            self._streams, lambda: self._call(function, *args, **kwargs)
        )

    async def cached(self, key: Any, seconds: float, function: Callable[[Client], T]) -> T:
        """Return a result that is at most this old; pages that ask for it at the same time share one call."""
        now = time.monotonic()
        known = self._cached.get(key)
        if known is None or now - known[0] > seconds or (known[1].done() and _failed(known[1])):
            self._drop_old(now)
            known = now, asyncio.get_running_loop().create_task(self.run(function))
            self._cached[key] = known
        result: T = await asyncio.shield(known[1])
        return result

    def forget(self) -> None:
        """Drop cached results, because the cluster was changed."""
        self._cached.clear()

    def close(self) -> None:
        """Stop the threads and disconnect."""
        self._closed = True
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._streams.shutdown(wait=False, cancel_futures=True)
        while self._idle:
            self._idle.pop().close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called: long calls end when it is true."""
        return self._closed

    def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with self._client() as client:
            return function(client, *args, **kwargs)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Client]:
        """Lend a client; one whose connection failed is not used again."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._connect()
        try:
            yield client
        except ConnectionFailedError as error:
            client.close()
            self._note(answers=False, problem=str(error))
            raise
        except BaseException:
            client.close()
            raise
        self._note(answers=True)
        if self._closed:
            client.close()
        else:
            self._idle.append(client)

    def _note(self, *, answers: bool, problem: str = "") -> None:
        with self._lock:
            before = self.reachability
            since = before.since if before.answers == answers else time.time()
            self.reachability = Reachability(answers, since, problem)

    def _drop_old(self, now: float) -> None:
        for key in [key for key, (when, task) in self._cached.items() if task.done() and now - when > 60]:
            del self._cached[key]


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
