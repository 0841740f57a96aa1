"""A cluster for tests: in this process, on a thread of its own, up in milliseconds.

    with Cluster(topics=["orders:3"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

Everything that touches the broker runs on its loop; what a test gets are snapshots, safe on any thread. What it can be
asked is in `StateReading`, what can be done to it in `Interventions`, and `on` chooses requests for control functions.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cluster.server_config import server_config
from ottla.events import EventFile, Events, RecentEvents
from ottla.server.run import RunningCluster
from ottla.testing import moves
from ottla.testing.broker_control import NodeControl
from ottla.testing.control import Controls, Rule
from ottla.testing.disk import ControlledDisk
from ottla.testing.interventions import Interventions
from ottla.testing.reading import StateReading
from ottla.testing.security import LISTENER, add_users_and_acls, security_configs
from ottla.testing.state import PartitionState, StoredRecord
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from ottla.broker.cluster import Cluster as BrokerCluster
    from ottla.cluster.registrations import Acl
    from ottla.cluster.server_config import ServerConfig
    from ottla.testing.control import Api
    from ottla.testing.requests_seen import SeenRequest
    from ottla.world.clock import VirtualClock

__all__ = ["Cluster", "PartitionState", "StoredRecord"]

T = TypeVar("T")

START_SECONDS = 30.0
# What makes tests quick: groups do not wait for members that are not coming, heartbeats are frequent.
TEST_CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
# Clients stamp their records with a time of their own, which is in the future of a clock that stands still.
VIRTUAL_CONFIGS = {"log.message.timestamp.after.max.ms": str(2**63 - 1)}


class Cluster(StateReading, Interventions):
    """One or more brokers in this process, for a test.

    `topics` are names, `name:partitions`, or names with partitions and configs in a dict. With `data_dir` the data is
    on disk, in Apache Kafka's format, else in memory. With `clock` time moves only by `advance`. With `seed` ids and
    choices are the same in every run. With `events` the event log is also appended to that file.

    `users` are names with passwords, for PLAIN and SCRAM over SASL_PLAINTEXT; with `super_users` or `acls` (see
    `ottla.testing.security`) only what is allowed is answered. OAUTHBEARER takes tokens that nobody signed only if told.

    Use it with `with`, `async with`, or as a decorator: the function gets a cluster of its own as the keyword
    argument `cluster` in every call.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        ports: Iterable[int] | None = None,
        topics: Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
        configs: Mapping[str, str] | None = None,
        data_dir: str | None = None,
        sync: bool = False,
        cluster_id: str | None = None,
        clock: VirtualClock | None = None,
        seed: int | str | None = None,
        events: str | None = None,
        users: Mapping[str, str] | None = None,
        super_users: Iterable[str] | None = None,
        acls: Iterable[Acl] | None = None,
        allow_unsigned_tokens: bool = False,
    ) -> None:
        self._arguments = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        self._ports = list(ports) if ports is not None else [0] * brokers
        self._topics = wanted_topics(topics)
        self._users = dict(users or {})
        self._acls = None if acls is None else list(acls)
        self._allow_unsigned_tokens = allow_unsigned_tokens
        self._configs = {
            **TEST_CONFIGS,
            **(VIRTUAL_CONFIGS if clock is not None else {}),
            **security_configs(self._users, super_users, self._acls),
            **(configs or {}),
        }
        self._data_dir = data_dir
        self._sync = sync
        self._cluster_id = cluster_id
        self._virtual = clock
        self._seed = seed
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningCluster | None = None
        self._controls: Controls | None = None
        self._disk: ControlledDisk | None = None
        self._stop: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        self._bootstrap = ""
        self._recent = RecentEvents()
        self._sinks = [] if events is None else [EventFile(events)]

    # Life.

    def start(self) -> Cluster:
        """Come up; returns when clients can connect and the topics are there."""
        if self._thread is not None:
            return self
        ready = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="ottla-cluster", daemon=True)
        self._thread.start()
        if not ready.wait(START_SECONDS):
            raise TimeoutError("the cluster did not come up")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def close(self) -> None:
        """Go down, cleanly; closing twice, from another thread or with clients connected is fine."""
        with self._closing:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(stop.set)
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Cluster:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a function, or a coroutine function: each call of it has a cluster like this one."""
        signature = inspect.signature(function)
        if "cluster" not in signature.parameters:
            raise TypeError(f"{function.__name__} needs a parameter `cluster` to be given one")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def with_cluster(*args: Any, **kwargs: Any) -> Any:
                async with Cluster(**self._arguments) as cluster:
                    return await function(*args, cluster=cluster, **kwargs)
        else:

            @functools.wraps(function)
            def with_cluster(*args: Any, **kwargs: Any) -> Any:
                with Cluster(**self._arguments) as cluster:
                    return function(*args, cluster=cluster, **kwargs)

        others = [each for name, each in signature.parameters.items() if name != "cluster"]
        with_cluster.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return with_cluster

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
        for node_id, server in running.servers.items():
            for connection in list(server.connections):
                connection.abort()
            await self._start_node(node_id)
        moves.delete_everything(cluster)
        self._create_topics(cluster)
        self._recent.clear()

    # Control.

    @property
    def bootstrap(self) -> str:
        """For a client's `bootstrap.servers`."""
        return self._bootstrap

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
            raise RuntimeError("time moves by itself; use Cluster(clock=VirtualClock()) to move it")
        virtual = self._virtual
        self.call(lambda _: virtual.advance(seconds))

    # Running things on the loop.

    def call(self, look: Callable[[BrokerCluster], T]) -> T:
        """Run a function of the broker's state on its loop, and return what it returns."""
        if threading.current_thread() is self._thread:
            return self._look(look)

        async def run() -> T:
            return self._look(look)

        return self._run(run())

    def call_async(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the broker's loop, and wait for it; from other threads only."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("this cannot be waited for on the cluster's own thread")
        return self._run(action())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None or self._thread is None:
            coroutine.close()
            raise RuntimeError("the cluster is not running")
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _look(self, look: Callable[[BrokerCluster], T]) -> T:
        assert self._running is not None
        assert self._running.cluster is not None
        return look(self._running.cluster)

    # The thread.

    def _main(self, ready: threading.Event) -> None:
        try:
            loop = new_loop()
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve(loop, ready))
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = None
            for sink in self._sinks:
                sink.close()
            ready.set()

    async def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        world = World.real(loop, RealDisk(loop) if self._data_dir else MemoryDisk())
        if self._virtual is not None:
            from ottla.testing.manual_clock import ManualClock

            world.clock = ManualClock(loop, self._virtual)
        if self._seed is not None:
            world.random = SeededRandom(self._seed)
        self._disk = ControlledDisk(world.disk, world.clock)
        world.disk = self._disk
        configs = [self._node_config(number, port) for number, port in enumerate(self._ports, 1)]
        self._stop = asyncio.Event()
        events = Events(world.clock.now_ms, [self._recent, *self._sinks])
        running = RunningCluster(
            world,
            configs,
            sync=self._sync,
            cluster_id=self._cluster_id,
            events=events,
            allow_unsigned_tokens=self._allow_unsigned_tokens,
        )
        cluster = await running.start()
        self._running, self._loop = running, loop
        random = world.random.fork("control functions")
        self._controls = Controls(world.clock, random, lambda action: self.call(lambda _: action()), events)
        self._attach()
        self._create_topics(cluster)
        self._bootstrap = running.bootstrap
        ready.set()
        await self._stop.wait()
        self._controls.clear()
        await running.stop(drain_seconds=0)

    def _node_config(self, number: int, port: int) -> ServerConfig:
        root = self._data_dir or "/ottla"
        several = len(self._ports) > 1 or number > 1
        return server_config(
            {
                "node.id": str(number),
                "listeners": f"{LISTENER if self._users else 'PLAINTEXT'}://127.0.0.1:{port}",
                "log.dirs": f"{root}/node-{number}" if several else root,
                **self._configs,
            }
        )

    def _attach(self) -> None:
        """Put the control functions in front of all nodes."""
        assert self._running is not None
        for server in self._running.servers.values():
            if server.dispatch is not None and server.dispatch.control is None:
                server.dispatch.control = NodeControl(self.controls, server)

    def _create_topics(self, cluster: BrokerCluster) -> None:
        for name, wanted in self._topics.items():
            cluster.create_topic(
                name, wanted.get("partitions", 1), wanted.get("replication_factor", 1), wanted.get("configs")
            )


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop, the fast one where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def wanted_topics(topics: Iterable[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Topics as a test writes them: names, `name:partitions`, or names with partitions and configs."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in topics:
        name, colon, partitions = each.rpartition(":")
        if isinstance(topics, dict):
            found[each] = topics[each]
        elif colon:
            if not partitions.isdigit():
                raise ValueError(f"topic {each!r}: write name:partitions, such as orders:3")
            found[name] = {"partitions": int(partitions)}
        else:
            found[each] = {}
    return found
