"""Simulated groups and transactions as events, correct or with one planted fault."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest import mock

import ottla.groups.consumer.rebalance
import ottla.transactions.coordinator
from ottla.analysis.event import Event
from ottla.analysis.inputs import SUMMARY, Summary
from ottla.analysis.parse import ottla as parse_ottla
from ottla.analysis.parse.kafka_records import group_events
from ottla.analysis.parse.log_directory import folder_events
from ottla.events import Events, to_line
from ottla.groups.classic.consumer_protocol import read_assignment, write_assignment
from ottla.groups.coordinator import GroupCoordinator
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.consumer_protocol import TopicPartition
from ottla.records.iterate import iter_all_records
from ottla.transactions.coordinator import TransactionCoordinator
from tests.groups import world as groups_world
from tests.groups.simulation import (
    CONSUMER_SESSION_MS,
    MODES,
    SESSION_MS,
    BrokenInvariantError,
    ClassicClient,
    Simulation,
)
from tests.transactions import simulated_cluster, test_simulation
from tests.transactions.simulated_cluster import DATA, STATE_PARTITIONS
from tests.transactions.test_simulation import Simulation as Transactions

if TYPE_CHECKING:
    from collections.abc import Iterator


def with_summary(events: list[Event], path: str = "world") -> list[Event]:
    """Return the events followed by the summary that a reader of them would write."""
    summary = Summary(path, lines=len(events), events=len(events))
    for event in events:
        summary.count(event.format)
        if event.time_ms is not None:
            summary.include(event.time_ms)
    return [*events, Event(None, SUMMARY, file=path, text=summary.to_text())]


class RecordedGroup(Simulation):
    """A simulated group without faults of its log or clock: analyses see only what the coordinator records."""

    log_and_clock_fail = False


class BrokenGroup(RecordedGroup):
    """A group whose coordinator once, after some steps, treats every partition as free."""

    def __init__(self, seed: int, *, after_steps: int) -> None:
        super().__init__(seed, "consumer")
        self.after_steps = after_steps
        self.given_away: list[tuple[str, str, int]] = []
        self.taken = 0

    def check(self) -> None:
        """Skip the invariants, which the planted fault breaks."""

    def settle(self) -> None:
        self.tick(30_000)

    def run(self) -> None:
        real = ottla.groups.consumer.rebalance.reconcile

        def reconcile(member: Any, target: Any, *, is_free: Any, **more: Any) -> Any:
            honest = real(member, target, is_free=is_free, **more)
            self.taken += 1
            if self.given_away or self.taken < self.after_steps:
                return honest
            early = real(member, target, is_free=lambda topic, partition: True, **more)
            if early.assigned != honest.assigned:
                self.given_away = [
                    (str(topic_id), member.member_id, partition)
                    for topic_id, partitions in early.assigned.items()
                    for partition in partitions
                    if partition not in honest.assigned.get(topic_id, {})
                ]
            return early

        # The coordinator itself may notice in the end, and refuse to go on.
        refuses = contextlib.suppress(BrokenInvariantError, KafkaError)
        with refuses, mock.patch.object(ottla.groups.consumer.rebalance, "reconcile", reconcile):
            for _ in range(self.steps):
                self.disturb()
                self.tick(self.random.below(2_500))
            self.settle()


class SteadyGroup(RecordedGroup):
    """Members that join, stay and are replaced now and then; with `flaps`, one member does not stay.

    The flapping member is silent for longer than its session timeout, rejoins, and repeats that.
    """

    def __init__(self, seed: int, mode: str, *, flaps: bool = False) -> None:
        super().__init__(seed, mode)
        self.flaps = flaps
        self.culprit = ""

    def check(self) -> None:
        """Skip the invariants: other tests check them, and many runs must be fast here."""

    def loses(self) -> bool:
        return False

    def run(self) -> None:
        for _ in range(2 + self.random.below(3)):
            self.add_client()
            self.tick(self.random.below(5_000))
        self.tick(60_000)
        flapping = self.random.choice(self.clients)
        self.culprit = flapping.name if self.flaps else ""
        quiet = CONSUMER_SESSION_MS if self.mode == "consumer" else SESSION_MS
        for _ in range(12):
            if self.flaps:
                flapping.stall(quiet + 2_000 + self.random.below(5_000))
            elif self.random.below(6) == 0:
                living = [client for client in self.clients if client.alive]
                if len(living) > 2:
                    self.random.choice(living).leave()
                else:
                    self.add_client()
            self.tick(60_000)


class BrokenLeader(SteadyGroup):
    """A classic group whose leader once assigns a partition to two members."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "classic")
        self.given_twice: tuple[str, set[str]] | None = None

    def run(self) -> None:
        real = ClassicClient._assign

        def assign(client: ClassicClient, members: list[str]) -> dict[str, bytes]:
            honest = real(client, members)
            if self.given_twice is not None or len(members) < 2 or self.random.below(2):
                return honest
            first, second = members[:2]
            mine, other = read_assignment(honest[first]), read_assignment(honest[second])
            taken = mine.assigned_partitions[0]
            partition = taken.partitions[0]
            other.assigned_partitions.append(TopicPartition(topic=taken.topic, partitions=[partition]))
            self.given_twice = (f"{taken.topic}-{partition}", {first, second})
            return honest | {second: write_assignment(other, 1)}

        with mock.patch.object(ClassicClient, "_assign", assign):
            super().run()


def group_log(simulation: Simulation) -> list[Event]:
    """Return the records of a simulated group as events."""
    names = {str(topic.id): topic.name for topic in simulation.world.topics.topics.values()}
    events = []
    for batch in simulation.world.log.batches.get(0, []):
        for _, record in iter_all_records(batch):
            events += group_events(record, "__consumer_offsets-0", names)
    return with_summary(events)


def healthy_group(seed: int) -> list[Event]:
    """Return the events of members that crash, stall and change subscriptions, with a correct coordinator."""
    simulation = RecordedGroup(seed, MODES[seed % 2])
    simulation.run()
    return group_log(simulation)


def transaction_log(simulation: Transactions) -> list[Event]:
    """Return the logs of simulated transactions as events."""
    disk = simulation.cluster._disk
    folders = [f"/logs/{topic_partition}" for topic_partition in DATA]
    folders += [f"/logs/__transaction_state-{index}" for index in range(STATE_PARTITIONS)]
    return with_summary([event for folder in folders for event in folder_events(folder, {}, disk)])


def healthy_transactions(seed: int) -> list[Event]:
    """Return the events of producers that commit and abort in time, with coordinators that do not move."""
    simulation = Transactions(seed)
    simulation.cluster.calm = True
    with mock.patch.object(test_simulation, "SECONDS", 0.5):
        simulation.run()
    return transaction_log(simulation)


@contextlib.contextmanager
def counted_timeouts() -> Iterator[list[str]]:
    """Collect the transactional ids that coordinators abort by timeout."""
    real = ottla.transactions.coordinator.timed_out
    late_ids: list[str] = []

    def timed_out(shard: Any, now_ms: int) -> Any:
        late = real(shard, now_ms)
        late_ids.extend(transaction.transactional_id for transaction in late)
        return late

    with mock.patch.object(ottla.transactions.coordinator, "timed_out", timed_out):
        yield late_ids


def stalled_coordinator(seed: int) -> tuple[list[Event], set[str], int]:
    """Return the events of a coordinator that does not abort an abandoned transaction, and the time at the end."""
    simulation = Transactions(seed)
    simulation.cluster.calm = True
    left: set[str] = set()
    with mock.patch.object(ottla.transactions.coordinator, "timed_out", return_value=[]):
        _leave_one_open(simulation, left)
        simulation.run()
    return transaction_log(simulation), left, simulation.clock.now_ms()


def stopped_client(seed: int) -> tuple[list[Event], set[str]]:
    """Return the events of a producer that abandons a transaction, which the coordinator aborts in time."""
    simulation = Transactions(seed)
    simulation.cluster.calm = True
    left: set[str] = set()
    _leave_one_open(simulation, left)
    simulation.run()
    return transaction_log(simulation), left


def _leave_one_open(simulation: Transactions, left: set[str]) -> None:
    """Make the last producer abandon its transaction near the end of the run."""
    from tests.transactions.test_simulation import Fenced, Instance

    real = Instance.end

    async def end(self: Any, *, committed: bool) -> bool:
        if not left and simulation.clock.monotonic() > 2 and self.sequences:
            left.add(self.transactional_id)
        if self.transactional_id in left:
            raise Fenced("left")
        return await real(self, committed=committed)

    async def initialize(self: Any, expected: Any = None) -> None:
        if self.transactional_id in left:
            import asyncio

            await asyncio.sleep(10)
            raise Fenced("left")
        await real_initialize(self, expected)

    real_initialize = Instance.initialize
    patches = [mock.patch.object(Instance, "end", end), mock.patch.object(Instance, "initialize", initialize)]
    original = simulation.everything

    async def everything() -> None:
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            await original()

    simulation.everything = everything  # type: ignore[method-assign]


def forgotten_marker(seed: int, *, lied: bool) -> tuple[list[Event], set[tuple[int, str]]]:
    """Return the events of a run in which one marker is never written; if `lied`, its leader claims that it was."""
    simulation = Transactions(seed)
    simulation.cluster.calm = True
    forgotten: set[tuple[int, str]] = set()
    real = simulation.cluster.write_marker

    def write_marker(marker: Any, topic_partition: Any) -> ErrorCode:
        this = (marker.producer_id, str(topic_partition))
        holds = simulation.cluster.data[topic_partition].log.has_ongoing_transaction(
            marker.producer_id, marker.producer_epoch
        ) or simulation.cluster.data[topic_partition].log.has_ongoing_transaction(
            marker.producer_id, marker.producer_epoch - 1
        )
        if this in forgotten or (not forgotten and holds and simulation.clock.monotonic() > 1.5):
            forgotten.add(this)
            return ErrorCode.NONE if lied else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return real(marker, topic_partition)

    simulation.cluster.write_marker = write_marker  # type: ignore[method-assign]
    with contextlib.suppress(AssertionError):
        simulation.run()
    return transaction_log(simulation), forgotten


@contextlib.contextmanager
def event_log() -> Iterator[list[str]]:
    """Collect the lines that simulated coordinators write to the event log."""
    lines: list[str] = []

    def sink(event: dict[str, Any]) -> None:
        lines.append(to_line(event))

    def group_coordinator(**parts: Any) -> GroupCoordinator:
        return GroupCoordinator(**parts, events=Events(parts["clock"].now_ms, [sink]).of_node(1))

    def transaction_coordinator(clock: Any, *parts: Any) -> TransactionCoordinator:
        return TransactionCoordinator(clock, *parts, events=Events(clock.now_ms, [sink]).of_node(1))

    real_delete = groups_world.World.delete_topic

    def delete_topic(world: Any, name: str) -> None:
        events = Events(world.clock.now_ms, [sink]).of_node(0)  # the cluster's part, which is not in this world
        events.emit("topic.deleted", topic=name, topic_id=str(world.topics.topics[name].id))
        real_delete(world, name)

    with (
        mock.patch.object(groups_world.World, "delete_topic", delete_topic),
        mock.patch.object(groups_world, "GroupCoordinator", group_coordinator),
        mock.patch.object(simulated_cluster, "TransactionCoordinator", transaction_coordinator),
    ):
        yield lines


def parsed(lines: list[str]) -> list[Event]:
    """Parse lines of the event log into events."""
    base = Event(None, "log", file="events.jsonl")
    events = []
    for number, line in enumerate(lines):
        line_events = parse_ottla.parse(line, base._replace(position=number, text=line))
        assert line_events is not None, line
        events += line_events
    return with_summary(events, "events.jsonl")
