"""Seeded schedules of producers and consumers with crashes, leader changes, lost and repeated requests.

What the clients saw goes through the history checker. A failure prints its seed; OTTLA_SIMULATION_FIRST_SEED and
OTTLA_SIMULATION_SEEDS choose others, and more, than the 500 of every run.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.testing.history import Assign, Operation, Poll, Report, Send, Step, check_history
from ottla.transactions.initialize import ProducerIdAndEpoch
from ottla.transactions.states import TransactionVersion
from ottla.world.clock import VirtualClock
from ottla.world.random import SeededRandom
from ottla.world.simulated_loop import run

from .simulated_cluster import DATA, NONE, Batch, Produced, SimulatedCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.pending import Pending
    from ottla.storage.names import TopicPartition
    from ottla.transactions.coordinator import ProducerResult, TransactionCoordinator

T = TypeVar("T")
FIRST = int(os.environ.get("OTTLA_SIMULATION_FIRST_SEED", "0"))
SEEDS = int(os.environ.get("OTTLA_SIMULATION_SEEDS", "500"))
PER_TEST = 25
REQUEST_TIMEOUT = 0.05
TRANSACTION_TIMEOUT_MS = 2000
SECONDS = 4

TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)


class Fenced(Exception):  # noqa: N818 - it is what happened to it
    """The producer was fenced."""


class MustAbort(Exception):  # noqa: N818
    """The transaction must be aborted."""


@dataclass
class Simulation:
    seed: int
    newer: bool = True
    history: list[Operation] = field(default_factory=list)
    values: int = 0
    ends: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = SeededRandom(self.seed)
        self.clock = VirtualClock()
        self.cluster = SimulatedCluster(self.clock, self.random.fork("cluster"), late=self.newer)

    def count(self, what: str) -> None:
        self.ends[what] = self.ends.get(what, 0) + 1

    # The network

    async def ask(self, action: Callable[[], Pending[T] | None]) -> T | None:
        """Send a request and wait for its response; return None if that was lost, whatever happened to the request.

        A newer client's requests may be repeated, or arrive, long after it gave up; its epochs see to that.
        """
        cluster = self.cluster
        loop = asyncio.get_running_loop()
        response: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            pending = action()
            if pending is not None:
                pending.on_complete(lambda result: None if response.done() else response.set_result(result))

        await asyncio.sleep(self.random.float() * 0.005)
        if cluster.chance(0.03):  # lost on its way, or only late
            if self.newer and cluster.chance(0.5):
                self.clock.call_later(REQUEST_TIMEOUT + self.random.float() * 3, action)
            await asyncio.sleep(REQUEST_TIMEOUT)
            return None
        arrive()
        if cluster.chance(0.03):
            self.clock.call_later(self.random.float() * 3 if self.newer else 0, action)
        try:
            result = await asyncio.wait_for(response, REQUEST_TIMEOUT)
        except TimeoutError:
            return None
        return None if cluster.chance(0.03) else result

    # Producers

    async def keep_producing(self, transactional_id: str) -> None:
        """Run instances of a producer one after the other, at times two at once."""
        life = 0
        while self.clock.monotonic() < SECONDS:
            life += 1
            instance = Instance(self, transactional_id, f"{transactional_id}/{life}")
            running = asyncio.create_task(instance.live())
            if self.cluster.chance(0.3):
                await asyncio.wait([running], timeout=self.random.float() * 2)  # then the next one fences it
            else:
                await running

    # Consumers

    async def keep_consuming(self, name: str) -> None:
        positions = dict.fromkeys(DATA, 0)
        while self.clock.monotonic() < SECONDS:
            await asyncio.sleep(self.random.float() * 0.3)
            self.poll(name, self.random.choice(DATA), positions)
            if self.cluster.chance(0.05):
                positions = dict.fromkeys(DATA, 0)
                self.history.append(Operation(name, "ok", [Assign(tuple(map(str, DATA)))]))

    def poll(self, name: str, topic_partition: TopicPartition, positions: dict[TopicPartition, int]) -> bool:
        records, positions[topic_partition] = self.cluster.fetch(topic_partition, positions[topic_partition])
        if records:
            self.history.append(Operation(name, "ok", [Poll({str(topic_partition): records})]))
        return bool(records)

    # What goes wrong

    async def break_things(self) -> None:
        cluster = self.cluster
        while self.clock.monotonic() < SECONDS:
            await asyncio.sleep(self.random.float() * 2)
            if cluster.chance(0.4):
                node = self.random.choice(cluster.nodes)
                if node.coordinator is not None:
                    self.count("crash")
                    cluster.crash(node)
                    await asyncio.sleep(self.random.float())
                    cluster.boot(node)
                    self.find_leaders()
            elif cluster.chance(0.6):
                self.count("move")
                cluster.elect(self.random.below(len(cluster.states)), self.random.below(2))
                self.find_leaders()

    def find_leaders(self) -> None:
        """Elect a leader for partitions without one, as soon as a node runs."""
        cluster = self.cluster
        for index, state in enumerate(cluster.states):
            leader = cluster.nodes[state.leader] if state.leader >= 0 else None
            if leader is None or leader.coordinator is None:
                alive = [node.number for node in cluster.nodes if node.coordinator is not None]
                cluster.elect(index, self.random.choice(alive))

    async def everything(self) -> None:
        tasks = [asyncio.create_task(self.keep_producing(f"app-{number}")) for number in range(3)]
        tasks += [asyncio.create_task(self.keep_consuming(f"consumer-{number}")) for number in range(2)]
        tasks.append(asyncio.create_task(self.break_things()))
        await asyncio.gather(*tasks)
        # Then nothing goes wrong any more: what is open times out, markers arrive, and everything can be read.
        self.cluster.calm = True
        self.find_leaders()
        await asyncio.sleep(20)
        positions = dict.fromkeys(DATA, 0)
        for topic_partition in DATA:
            while self.poll("last", topic_partition, positions):
                pass

    def run(self) -> Report:
        run(self.clock, self.everything())
        for node in self.cluster.nodes:
            assert node.coordinator is not None
            node.coordinator.stop()
        return check_history(self.history, everything_read=True)


class Instance:
    """One instance of a transactional producer that behaves as a Kafka client."""

    def __init__(self, simulation: Simulation, transactional_id: str, name: str) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.transactional_id = transactional_id
        self.name = name
        self.producer_id = -1
        self.producer_epoch = -1
        self.sequences: dict[TopicPartition, int] = {}
        self.newer = simulation.newer

    async def live(self) -> None:
        try:
            await self.initialize()
            while self.simulation.clock.monotonic() < SECONDS and not self.simulation.cluster.chance(0.05):
                await self.transaction()
        except Fenced:
            self.simulation.count("fenced")

    async def ask_coordinator(self, request: Callable[[TransactionCoordinator], Pending[T]]) -> T | None:
        def action() -> Pending[T] | None:
            coordinator = self.simulation.cluster.coordinator_of(self.transactional_id)
            return None if coordinator is None else request(coordinator)

        return await self.simulation.ask(action)

    async def initialize(self, expected: ProducerIdAndEpoch | None = None) -> None:
        for _ in range(200):
            response: ProducerResult | None = await self.ask_coordinator(
                lambda coordinator: coordinator.init_producer_id(
                    self.transactional_id, TRANSACTION_TIMEOUT_MS, expected
                )
            )
            if response is not None and response.error is NONE:
                self.take(response)
                return
            if response is not None and response.error not in TRY_AGAIN:
                raise Fenced(response.error)
            await asyncio.sleep(0.03)
        raise Fenced("no answer")

    def take(self, response: ProducerResult) -> None:
        if (response.producer_id, response.producer_epoch) != (self.producer_id, self.producer_epoch):
            self.sequences.clear()
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    async def transaction(self) -> None:
        simulation = self.simulation
        operation = Operation(self.name, "fail", [])
        simulation.history.append(operation)
        steps: list[Step] = []
        operation.steps = steps
        asked_to_commit = False
        try:
            try:
                for _ in range(1 + self.random.below(4)):
                    await asyncio.sleep(self.random.float() * 0.05)
                    await self.send(self.random.choice(DATA), steps)
                    if simulation.cluster.chance(0.1):
                        steps += self.look()
                if simulation.cluster.chance(0.04):  # a long pause, in which the transaction times out
                    await asyncio.sleep(TRANSACTION_TIMEOUT_MS / 1000 * 2)
                    if simulation.cluster.chance(0.5):
                        raise Fenced("left")
                if simulation.cluster.chance(0.2):
                    raise MustAbort
                asked_to_commit = True
                if await self.end(committed=True):
                    operation.status = "ok"
                    simulation.count("commit")
            except MustAbort:
                if not await self.end(committed=False):
                    raise Fenced("could not abort") from None
                simulation.count("abort")
                if not self.newer:
                    await self.initialize(ProducerIdAndEpoch(self.producer_id, self.producer_epoch))
        finally:
            if asked_to_commit and operation.status != "ok":
                operation.status = "info"
                simulation.count("unknown")

    def look(self) -> tuple[Assign, Poll]:
        """Read committed records inside a transaction, which never sees its own."""
        topic_partition = self.random.choice(DATA)
        start = max(0, self.simulation.cluster.data[topic_partition].log.last_stable_offset - 5)
        records, _ = self.simulation.cluster.fetch(topic_partition, start)
        return Assign((str(topic_partition),)), Poll({str(topic_partition): records})

    async def send(self, topic_partition: TopicPartition, steps: list[Step]) -> None:
        simulation = self.simulation
        if not self.newer:
            await self.add_partition(topic_partition)
        simulation.values += 1
        value = simulation.values
        steps.append(Send(str(topic_partition), value))
        sequence = self.sequences.get(topic_partition, 0)
        batch = Batch(
            12 if self.newer else 10,
            self.transactional_id,
            self.producer_id,
            self.producer_epoch,
            sequence,
            topic_partition,
            value,
        )
        for _ in range(50):
            response: Produced | None = await simulation.ask(lambda: simulation.cluster.produce(batch))
            if response is not None and response.error is NONE:
                self.sequences[topic_partition] = sequence + 1
                steps[-1] = Send(str(topic_partition), value, response.offset)
                return
            if response is not None and response.error not in TRY_AGAIN:
                if response.error in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
                    raise Fenced(response.error)
                raise MustAbort(response.error)
            if response is None and simulation.cluster.chance(0.2):
                break
            await asyncio.sleep(0.02)
        raise MustAbort("no answer")

    async def add_partition(self, topic_partition: TopicPartition) -> None:
        producer_id, producer_epoch = self.producer_id, self.producer_epoch
        for _ in range(100):
            response: ErrorCode | None = await self.ask_coordinator(
                lambda coordinator: coordinator.add_partitions(
                    self.transactional_id, producer_id, producer_epoch, [topic_partition], TransactionVersion.TV_0
                )
            )
            if response is NONE:
                return
            if response is not None and response not in TRY_AGAIN:
                raise Fenced(response)
            await asyncio.sleep(0.02)
        raise Fenced("no answer")

    async def end(self, *, committed: bool) -> bool:
        version = TransactionVersion.TV_2 if self.newer else TransactionVersion.TV_0
        producer_id, producer_epoch = self.producer_id, self.producer_epoch
        for _ in range(200):
            response: ProducerResult | None = await self.ask_coordinator(
                lambda coordinator: coordinator.end_transaction(
                    self.transactional_id, producer_id, producer_epoch, committed, version
                )
            )
            if response is not None and response.error is NONE:
                if self.newer:
                    self.take(response)
                return True
            if response is not None and response.error not in TRY_AGAIN:
                raise Fenced(response.error)
            await asyncio.sleep(0.02)
        return False


def checked(seed: int) -> Simulation:
    simulation = Simulation(seed, newer=seed % 3 != 0)
    report = simulation.run()
    assert report.ok, f"seed {seed}: {report}"
    for name, partition in simulation.cluster.data.items():
        assert not partition.log.producers.ongoing, f"seed {seed}: {name} has a transaction that nobody ends"
    return simulation


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, PER_TEST))
def test_schedules_show_no_anomaly_and_no_hanging_transaction(first):
    ends: dict[str, int] = {}
    for seed in range(first, min(first + PER_TEST, FIRST + SEEDS)):
        for what, count in checked(seed).ends.items():
            ends[what] = ends.get(what, 0) + count
    print(f"seeds {first} to {first + PER_TEST - 1}: {ends}")
    # The schedules are worth something: all that can happen does.
    assert ends.keys() >= {"commit", "abort", "fenced", "unknown", "crash", "move"}


def test_same_seed_repeats_run():
    first, second = checked(7), checked(7)
    assert [str(operation) for operation in first.history] == [str(operation) for operation in second.history]
    assert first.clock.monotonic() == second.clock.monotonic()
