"""The test kit's hold on a running cluster, whoever runs it: a test on a thread of its own, or `ottla serve`."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.events import RecentEvents
from ottla.testing.control import cluster_changes
from ottla.testing.control.broker_exchange import NodeControl
from ottla.testing.control.disk import ControlledDisk
from ottla.testing.control.faults import Interventions
from ottla.testing.control.paused_nodes import HangingNodes
from ottla.testing.control.reading import StateReading
from ottla.testing.control.rules import Control, Controls, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping

    from ottla.broker.runtime import BrokerRuntime
    from ottla.events import Events
    from ottla.server.run import RunningCluster
    from ottla.testing.control.requests import SeenRequest
    from ottla.testing.control.rules import Api
    from ottla.world.clock import VirtualClock
    from ottla.world.world import World

T = TypeVar("T")
LOOK_SECONDS = 1.0


class ControlledCluster(StateReading, Interventions):
    """A running cluster that tests look at and do things to, from threads other than its own."""

    def __init__(self, topics: Mapping[str, Mapping[str, Any]], *, sync: bool, virtual: VirtualClock | None) -> None:
        self._topics = topics
        self._sync = sync
        self._virtual = virtual
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._running: RunningCluster | None = None
        self._controls: Controls | None = None
        self._disk: ControlledDisk | None = None
        self._recent = RecentEvents()

    def prepare(self, world: World) -> None:
        """Put what tests can take hold of into a world, before a cluster is made in it."""
        self._disk = world.disk = ControlledDisk(world.disk, world.clock)
        self._hanging = HangingNodes(world.clock)
        world.clock_of_node = self._hanging.clock_of

    def attach(self, running: RunningCluster, events: Events) -> None:
        """Take hold of a cluster that has just started, on its loop; its topics are created."""
        cluster = running.cluster
        assert cluster is not None
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.current_thread()
        self._running = running
        world = cluster.world
        random = world.random.fork("control functions")
        self._controls = Controls(world.clock, random, lambda action: self.call(lambda _: action()), events)
        self._attach()
        self._create_topics(cluster)

    def _attach(self) -> None:
        """Put the control functions in front of all nodes."""
        assert self._running is not None
        for server in self._running.servers.values():
            if server.dispatch is not None and server.dispatch.control is None:
                server.dispatch.control = NodeControl(self.controls, server)

    def _create_topics(self, cluster: BrokerRuntime) -> None:
        for name, wanted in self._topics.items():
            cluster.create_topic(
                name, wanted.get("partitions", 1), wanted.get("replication_factor", 1), wanted.get("configs")
            )

    def reset(self) -> None:
        """As new: connections are closed, topics, groups, transactions and control functions gone, nodes running.

        The topics that the cluster was made with are there again, empty.
        """
        self.call_async(self._reset)

    async def _reset(self) -> None:
        assert self._running is not None
        running, cluster = self._running, self._look(lambda cluster: cluster)
        self.controls.clear()
        self.disk.full.clear()
        self.disk.sync_seconds.clear()
        self._hanging.all_go_on(running)
        for node_id, server in running.servers.items():
            for connection in list(server.connections):
                connection.abort()
            await self._start_node(node_id)
        cluster_changes.delete_everything(cluster)
        self._create_topics(cluster)
        self._recent.clear()

    # Control.

    def on(
        self,
        api: Api | Collection[Api] | None = None,
        *,
        node: int | None = None,
        topic: str | None = None,
        partition: int | Collection[int] | None = None,
        client_id: str | None = None,
        times: int | None = 1,
        where: Callable[[SeenRequest], bool] | None = None,
    ) -> Rule:
        """Choose requests, and say with a method of what this returns what happens to them.

        By API (name or key, one or several), node, topic, partitions of it, client id, and any function of the
        request. It acts on the first `times` of them; None is on all.
        """
        return self.controls.on(
            api, node=node, topic=topic, partition=partition, client_id=client_id, times=times, where=where
        )

    @property
    def controls(self) -> Controls:
        """The control functions in force."""
        if self._controls is None:
            raise RuntimeError("the cluster is not running")
        return self._controls

    @property
    def disk(self) -> ControlledDisk:
        """The disk under all nodes."""
        if self._disk is None:
            raise RuntimeError("the cluster is not running")
        return self._disk

    def advance(self, seconds: float) -> None:
        """Move the cluster's time: what is due in between happens, in order. Only with a clock of the test's own."""
        if self._virtual is None:
            raise RuntimeError("time moves by itself here; Cluster(clock=VirtualClock()) has time that can be moved")
        if seconds < 0:
            raise ValueError("time does not go back")
        self.call_async(partial(self._advance, self._virtual, seconds))

    async def _advance(self, virtual: VirtualClock, seconds: float) -> None:
        """Let the loop do what each timer gives it to do before time goes on to the next."""
        end = virtual.monotonic() + seconds
        while (due := virtual.next_due()) is not None and due <= end:
            virtual.advance(max(due - virtual.monotonic(), 0.0))
            await asyncio.sleep(0)
        virtual.advance(max(end - virtual.monotonic(), 0.0))
        await asyncio.sleep(0)

    # Running things on the loop.

    def call(self, look: Callable[[BrokerRuntime], T]) -> T:
        """Run a function of the broker's state on its loop, and return what it returns."""
        if threading.current_thread() is self._loop_thread:
            return self._look(look)

        async def run() -> T:
            return self._look(look)

        return self._run(run())

    def call_async(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's loop, and wait for it; from other threads only."""
        if threading.current_thread() is self._loop_thread:
            raise RuntimeError("this cannot be waited for on the cluster's own thread")
        return self._run(action())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_on(self._loop, coroutine, "the cluster is not running")

    def _look(self, look: Callable[[BrokerRuntime], T]) -> T:
        assert self._running is not None
        if self._running.cluster is None:
            raise RuntimeError("the cluster is not running")
        return look(self._running.cluster)


def run_on(loop: asyncio.AbstractEventLoop | None, coroutine: Coroutine[Any, Any, T], gone: str) -> T:
    """Run a coroutine on another thread's loop and wait for it; RuntimeError if that loop ends before it does."""
    try:
        if loop is None:
            raise RuntimeError(gone)
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise RuntimeError(gone) from None
    while not wait([future], LOOK_SECONDS).done:
        if loop.is_closed() and not future.done():
            coroutine.close()
            raise RuntimeError(gone)
    try:
        return future.result()
    except CancelledError:
        raise RuntimeError(gone) from None


@dataclass(slots=True)
class Kit:
    """A cluster, and the control functions that were asked for over HTTP.

    `operations` are the first words of the paths that are offered; None is all.
    """

    cluster: ControlledCluster
    controls: dict[int, Control] = field(default_factory=dict)
    operations: frozenset[str] | None = None
