"""A running cluster that a test controls, in its own process or in `ottla serve`. It owns neither socket nor thread."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.events import RecentEvents
from ottla.testing.control import cluster_changes
from ottla.testing.control.broker_exchange import NodeInterceptor
from ottla.testing.control.disk import FaultyDisk
from ottla.testing.control.faults import FaultInjector
from ottla.testing.control.paused_nodes import PausedNodes
from ottla.testing.control.reading import StateReader
from ottla.testing.control.rules import RuleBuilder, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from ottla.broker.runtime import BrokerRuntime
    from ottla.events import Events
    from ottla.server.run import RunningCluster
    from ottla.testing.control.matching import Api
    from ottla.testing.control.requests import ReceivedRequest
    from ottla.testing.control.run_history import RunHistory
    from ottla.testing.explore.remote import RemoteExplorations
    from ottla.world.clock import VirtualClock
    from ottla.world.world import World

T = TypeVar("T")
POLL_SECONDS = 1.0


class ControlledCluster(StateReader, FaultInjector):
    """A running cluster whose state tests read and change from other threads than its own."""

    def __init__(self, topics: Mapping[str, Mapping[str, Any]], *, sync: bool, virtual: VirtualClock | None) -> None:
        self._topics = topics
        self._sync = sync
        self._virtual = virtual
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._running: RunningCluster | None = None
        self._rules: Rules | None = None
        self._disk: FaultyDisk | None = None
        self._recent = RecentEvents()
        self._history: RunHistory | None = None
        self._explorations: RemoteExplorations | None = None

    def prepare(self, world: World) -> None:
        """Replace disk and node clocks of a world by controllable ones, before a cluster is started in it."""
        self._disk = world.disk = FaultyDisk(world.disk, world.clock)
        self._paused = PausedNodes(world.clock)
        world.clock_of_node = self._paused.node_clock

    def attach(self, running: RunningCluster, events: Events) -> None:
        """Take control of a cluster that has just started, on its event loop, and create its topics."""
        runtime = running.runtime
        assert runtime is not None
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.current_thread()
        self._running = running
        world = runtime.world
        random = world.random.fork("rules")
        self._rules = Rules(world.clock, random, lambda action: self.call(lambda _: action()), events)
        self._intercept_requests()
        self._create_topics(runtime)

    def _intercept_requests(self) -> None:
        """Pass the requests of all nodes to the rules."""
        assert self._running is not None
        for server in self._running.servers.values():
            if server.dispatch is not None and server.dispatch.interceptor is None:
                server.dispatch.interceptor = NodeInterceptor(self.rules, server)

    def _create_topics(self, runtime: BrokerRuntime) -> None:
        for name, topic in self._topics.items():
            runtime.create_topic(
                name, topic.get("partitions", 1), topic.get("replication_factor", 1), topic.get("configs")
            )

    def reset(self) -> None:
        """Return to the state after the start: close connections, delete topics, groups, transactions and rules.

        Faults end, stopped nodes run again, and the topics that the cluster was created with exist, empty.
        """
        self.call_async(self._reset)

    async def _reset(self) -> None:
        assert self._running is not None
        running, runtime = self._running, self._call(lambda runtime: runtime)
        self.rules.clear()
        self.disk.full.clear()
        self.disk.sync_seconds.clear()
        self._paused.resume_all(running)
        for node_id, server in running.servers.items():
            for connection in list(server.connections):
                connection.abort()
            await self._start_node(node_id)
        cluster_changes.delete_everything(runtime)
        self._create_topics(runtime)
        self._recent.clear()
        self._history = None

    def history(self) -> RunHistory:
        """Return what happened to the records since the start or the last reset, for checks.

        history = cluster.history()
        ...
        history.processed("orders", 0, message.offset())   # called by the application under test
        assert not history.violations()
        """
        if self._history is None:
            from ottla.testing.control.run_history import RunHistory

            self._history = RunHistory(self)
        return self._history

    @property
    def explorations(self) -> RemoteExplorations:
        """The explorations that tests in other languages drive over the control API."""
        if self._explorations is None:
            from ottla.testing.explore.remote import RemoteExplorations

            self._explorations = RemoteExplorations(self)
        return self._explorations

    # Rules and time

    def on(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        partition: int | Collection[int] | None = None,
        client_id: str | None = None,
        times: int | None = 1,
        where: Callable[[ReceivedRequest], bool] | None = None,
    ) -> RuleBuilder:
        """Choose requests; a method of the result decides what happens to them.

        Requests are chosen by API (name or key, one or several), node, topic and partitions, client id, and by a
        function of the request. The rule acts on the first `times` of them, with None on all.

            rule = cluster.on("Fetch", topic="orders", times=None).delay(0.5)
            ...
            rule.remove()
        """
        return self.rules.on(
            api, node=node, topic=topic, partition=partition, client_id=client_id, times=times, where=where
        )

    @property
    def rules(self) -> Rules:
        """The active rules and the received requests."""
        if self._rules is None:
            raise RuntimeError("the cluster is not running")
        return self._rules

    @property
    def disk(self) -> FaultyDisk:
        """The disk of all nodes."""
        if self._disk is None:
            raise RuntimeError("the cluster is not running")
        return self._disk

    def advance(self, seconds: float) -> None:
        """Move virtual time: timers that become due fire, in order. Requires `Cluster(clock=VirtualClock())`."""
        if self._virtual is None:
            raise RuntimeError("this cluster runs in real time; use Cluster(clock=VirtualClock()) to move time")
        if seconds < 0:
            raise ValueError("time cannot be moved backwards")
        self.call_async(partial(self._advance, self._virtual, seconds))

    async def _advance(self, virtual: VirtualClock, seconds: float) -> None:
        """Move time from timer to timer; between two, let the event loop run what the first one scheduled."""
        end = virtual.monotonic() + seconds
        while (due := virtual.next_due()) is not None and due <= end:
            virtual.advance(max(due - virtual.monotonic(), 0.0))
            await asyncio.sleep(0)
        virtual.advance(max(end - virtual.monotonic(), 0.0))
        await asyncio.sleep(0)

    # Calls to the cluster's event loop

    def call(self, function: Callable[[BrokerRuntime], T]) -> T:
        """Call a function of the broker's state on its event loop, and return its result."""
        if threading.current_thread() is self._loop_thread:
            return self._call(function)

        async def run() -> T:
            return self._call(function)

        return self._run(run())

    def call_async(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's event loop and return its result; not from the cluster's own thread."""
        if threading.current_thread() is self._loop_thread:
            raise RuntimeError("this call blocks, so it cannot be made on the cluster's own thread")
        return self._run(action())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_on(self._loop, coroutine, "the cluster is not running")

    def _call(self, function: Callable[[BrokerRuntime], T]) -> T:
        assert self._running is not None
        if self._running.runtime is None:
            raise RuntimeError("the cluster is not running")
        return function(self._running.runtime)


def run_on(loop: asyncio.AbstractEventLoop | None, coroutine: Coroutine[Any, Any, T], problem: str) -> T:
    """Run a coroutine on another thread's event loop and return its result.

    Raise RuntimeError with `problem` if the loop is closed before the coroutine ends.
    """
    try:
        if loop is None:
            raise RuntimeError(problem)
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise RuntimeError(problem) from None
    while not wait([future], POLL_SECONDS).done:
        if loop.is_closed() and not future.done():
            coroutine.close()
            raise RuntimeError(problem)
    try:
        return future.result()
    except CancelledError:
        raise RuntimeError(problem) from None
