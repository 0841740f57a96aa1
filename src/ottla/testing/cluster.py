"""A cluster for tests: in this process, on a thread of its own, up in milliseconds.

    with Cluster(topics=["orders:3"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})

Everything that touches the broker runs on its loop; what a test gets are snapshots, safe on any thread.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.cluster.server_config import server_config
from ottla.events import EventFile, Events, RecentEvents
from ottla.records.iterate import iter_all_records
from ottla.server.run import RunningCluster
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom
from ottla.world.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ottla.broker.cluster import Cluster as BrokerCluster
    from ottla.events import Event
    from ottla.world.clock import VirtualClock

T = TypeVar("T")

_ABSENT = object()
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


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition at the moment it was asked for."""

    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it stands in a log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    transactional: bool


class Cluster:
    """One or more brokers in this process, for a test.

    `topics` are names, `name:partitions`, or names with partitions and configs in a dict. With `data_dir` the data is
    on disk, in Apache Kafka's format, else in memory. With `clock` time moves only by `advance`. With `seed` ids and
    choices are the same in every run. With `events` the event log is also appended to that file.
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
    ) -> None:
        self._ports = list(ports) if ports is not None else [0] * brokers
        self._topics = _wanted_topics(topics)
        self._configs = {**TEST_CONFIGS, **(VIRTUAL_CONFIGS if clock is not None else {}), **(configs or {})}
        self._data_dir = data_dir
        self._sync = sync
        self._cluster_id = cluster_id
        self._virtual = clock
        self._seed = seed
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningCluster | None = None
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

    # What a test asks.

    @property
    def bootstrap(self) -> str:
        """For a client's `bootstrap.servers`."""
        return self._bootstrap

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic without a client."""
        self.call(lambda broker: broker.create_topic(name, partitions, replication_factor, configs))

    def topics(self) -> list[str]:
        """The names of all topics, the broker's own included, in the order of creation."""
        return self.call(lambda broker: list(broker.image.topic_ids))

    def partition(self, topic: str, index: int = 0) -> PartitionState:
        """One partition as it is now; KeyError if there is none."""

        def look(broker: BrokerCluster) -> PartitionState:
            found = broker.partitions[topic, index]
            state, log = found.state, found.log
            return PartitionState(
                topic,
                index,
                state.leader,
                state.leader_epoch,
                state.replicas,
                state.isr,
                log.log_start_offset,
                log.high_watermark,
                log.last_stable_offset,
            )

        return self.call(look)

    def records(self, topic: str, index: int = 0) -> list[StoredRecord]:
        """All records of a partition, those of open and aborted transactions too, control records left out."""
        return self.call(lambda broker: _read_records(broker, topic, index))

    def events(self, *kinds: str, **fields: Any) -> list[Event]:
        """The last events, of some kinds, with these fields (docs/events.md); all there are without any."""
        return self.call(
            lambda _: [
                event
                for event in self._recent
                if (not kinds or event["kind"] in kinds)
                and all(event.get(name, _ABSENT) == value for name, value in fields.items())
            ]
        )

    def advance(self, seconds: float) -> None:
        """Move the cluster's time: what is due in between happens, in order. Only with a clock of the test's own."""
        assert self._virtual is not None, "Cluster(clock=VirtualClock()) is needed to move time"
        virtual = self._virtual
        self.call(lambda _: virtual.advance(seconds))

    def call(self, look: Callable[[BrokerCluster], T]) -> T:
        """Run a function of the broker's state on its loop, and return what it returns."""
        loop = self._loop
        if loop is None or self._thread is None:
            raise RuntimeError("the cluster is not running")
        if threading.current_thread() is self._thread:
            return self._look(look)

        async def run() -> T:
            return self._look(look)

        return asyncio.run_coroutine_threadsafe(run(), loop).result()

    def _look(self, look: Callable[[BrokerCluster], T]) -> T:
        assert self._running is not None
        assert self._running.cluster is not None
        return look(self._running.cluster)

    # The thread.

    def _main(self, ready: threading.Event) -> None:
        try:
            loop = _new_loop()
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._serve(loop, ready))
        except BaseException as error:
            self._failure = error
        finally:
            self._loop = None
            ready.set()

    async def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        world = World.real(loop, RealDisk(loop) if self._data_dir else MemoryDisk())
        if self._virtual is not None:
            from ottla.testing.manual_clock import ManualClock

            world.clock = ManualClock(loop, self._virtual)
        if self._seed is not None:
            world.random = SeededRandom(self._seed)
        root = self._data_dir or "/ottla"
        several = len(self._ports) > 1
        configs = [
            server_config(
                {
                    "node.id": str(number),
                    "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                    "log.dirs": f"{root}/node-{number}" if several else root,
                    **self._configs,
                }
            )
            for number, port in enumerate(self._ports, 1)
        ]
        self._stop = asyncio.Event()
        events = Events(world.clock.now_ms, [self._recent, *self._sinks])
        running = RunningCluster(world, configs, sync=self._sync, cluster_id=self._cluster_id, events=events)
        cluster = await running.start()
        for name, wanted in self._topics.items():
            cluster.create_topic(
                name, wanted.get("partitions", 1), wanted.get("replication_factor", 1), wanted.get("configs")
            )
        self._running, self._loop = running, loop
        self._bootstrap = running.bootstrap
        ready.set()
        await self._stop.wait()
        await running.stop(drain_seconds=0)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _wanted_topics(topics: Iterable[str] | Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
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


def _read_records(broker: BrokerCluster, topic: str, index: int) -> list[StoredRecord]:
    log = broker.partitions[topic, index].log
    found: list[StoredRecord] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        piece = log.read(offset, 1 << 20, end)
        if piece.records is None or not len(piece):
            break
        with piece.records as records:
            data = records.read_all()
        for header, record in iter_all_records(data, control=True):
            offset = header.next_offset
            if not header.is_control and record.offset >= log.log_start_offset:
                found.append(StoredRecord(*record, header.producer_id, header.is_transactional))
    return found
