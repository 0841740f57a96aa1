"""Streams groups through seeded schedules of joins, leaves, silence, topics that come and go, failures and restarts.

After every step what the log says is what is known, no active task has two owners, and epochs go forward; when the
world calms down, the groups converge and every task of a topology that is ready is processed.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ottla.groups.settings import GroupSettings
from ottla.groups.streams.group import StreamsGroup, StreamsMember, StreamsState
from ottla.protocol.errors import ErrorCode
from tests.groups.streams.members import StreamsClient, repartitioned, settle, topology
from tests.groups.world import World

GROUPS, MEMBERS = ("g", "h"), ("a", "b", "c", "d")
TOPICS = ("t", "u", "store-changelog", "x-repartition")
RUNS = {"g": topology("t", "u", changelogs=("store-changelog",)), "h": repartitioned("t", "x-repartition")}
SEEDS, STEPS = 80, 80


class Simulation:
    """One schedule of a simulation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(seed)
        self.configure()
        self.clients = {
            # Two of the four members are threads of one process.
            (group, name): StreamsClient(self.world, name, RUNS[group], group, "one" if name < "c" else name)
            for group in GROUPS
            for name in MEMBERS
        }
        for client in self.clients.values():
            client.slow = True
        self.epochs: dict[str, tuple[int, int]] = {}
        self.partitions = self.random.randint(1, 4)
        self.make_fit()

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()
        self.calm_down()

    def configure(self) -> None:
        self.world.settings.default_group = GroupSettings(
            streams_initial_rebalance_delay_ms=self.random.choice((0, 3_000)),
            streams_assignment_interval_ms=self.random.choice((0, 1_000)),
            streams_num_standby_replicas=self.random.choice((0, 1, 2)),
        )

    # Steps

    def step(self) -> None:
        world, random = self.world, self.random
        client, topic = random.choice(list(self.clients.values())), random.choice(TOPICS)
        match random.randint(0, 17):
            case 0 | 1:
                self.answered(client, client.join())
            case 2 | 3 | 4 | 5 | 14 | 15 | 16 | 17:
                self.answered(client, client.beat())
            case 6:
                self.answered(client, client.keep_alive())
            case 7:
                client.leave()
            case 8:
                self.change(topic)
            case 9 | 10:
                world.advance(random.choice((500, 3_000, 20_000, 50_000)))
            case 11:
                self.configure()
            case 12:
                world.coordinator.delete_groups([client.group])
            case 13:
                if random.random() < 0.5:
                    world.log.broken = None if world.log.broken else ErrorCode.NOT_ENOUGH_REPLICAS
                else:
                    world.log.broken = None
                    world.restart()

    def change(self, topic: str) -> None:
        """A topic goes, or all get one more partition, or only one of them, or those that lack are made."""
        world = self.world
        match self.random.randint(0, 3):
            case 0 if topic in world.topics.topics:
                world.delete_topic(topic)
            case 1 if self.partitions < 6:
                self.partitions += 1
                for name in world.topics.names():
                    world.change_topic(name, self.partitions)
            case 2 if topic in world.topics.topics:
                world.change_topic(topic, world.topics.topics[topic].partition_count + 1)
            case _:
                self.make_fit()

    def make_fit(self) -> None:
        """Every topic is there, with as many partitions as the others."""
        for topic in TOPICS:
            existing = self.world.topics.by_name(topic)
            if existing is not None and existing.partition_count != self.partitions:
                self.world.delete_topic(topic)
                existing = None
            if existing is None:
                self.world.create_topic(topic, self.partitions)

    def answered(self, client: StreamsClient, response: Any) -> None:
        if response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            client.join()
        if self.random.random() < 0.5:
            client.let_go()
        if self.random.random() < 0.3:
            self.make_fit()

    # What must hold

    def check(self) -> None:
        groups = self.groups()
        for group_id, group in groups.items():
            self.check_owners(group)
            self.check_processing(group)
            before = self.epochs.get(group_id, (0, 0))
            now = (group.group_epoch, group.assignment_epoch)
            assert now >= before, "epochs go forward"
            assert all(-1 <= member.member_epoch <= group.group_epoch for member in group.members.values())
        self.epochs = {name: (group.group_epoch, group.assignment_epoch) for name, group in groups.items()}
        self.world.check_log(known)

    def check_owners(self, group: StreamsGroup) -> None:
        owners: dict[tuple[str, int], str] = {}
        copies: set[tuple[str, str, int]] = set()
        for member in group.members.values():
            for task in active_tasks(member):
                assert task not in owners, f"{task} is {owners.get(task)}'s and {member.member_id}'s"
                owners[task] = member.member_id
            for subtopology, tasks in member.assigned.standby.items():
                for entry in tasks:
                    assert (member.process_id, subtopology, entry) not in copies, "a process has a task once"
                    copies.add((member.process_id, subtopology, entry))
        assert set(group.owners.active) == set(owners)

    def check_processing(self, group: StreamsGroup) -> None:
        """What members do, not what is known of it: nobody begins with a task before the last one has stopped."""
        processing: dict[tuple[str, int], str] = {}
        for client in self.clients.values():
            if client.group == group.group_id and client.id in group.members:
                for name, tasks in client.active.items():
                    for task in tasks:
                        assert (name, task) not in processing, f"{name}-{task}: {processing} and {client.id}"
                        processing[name, task] = client.id

    def calm_down(self) -> None:
        """Nothing fails any more, every topic is there and fits: all tasks are processed by those who are there."""
        world, random = self.world, self.random
        world.log.broken = None
        self.make_fit()
        staying = [client for client in self.clients.values() if random.random() < 0.7] or [self.clients["g", "a"]]
        for client in self.clients.values():
            client.slow = False
            client.leave()
        for client in staying:
            assert client.join().error_code == ErrorCode.NONE
        settle(*staying, rounds=12)
        self.check()
        for group_id in dict.fromkeys(client.group for client in staying):
            group = self.groups()[group_id]
            assert group.state is StreamsState.STABLE, f"{group_id} is {group.state}"
            expected = {
                (subtopology.subtopology_id, task)
                for subtopology in RUNS[group_id].subtopologies
                for task in range(self.partitions)
            }
            assert set(group.owners.active) == expected
            for client in staying:
                if client.group == group_id:
                    member = group.members[client.id]
                    assert {name: set(tasks) for name, tasks in member.assigned.active.items()} == {
                        name: set(tasks) for name, tasks in client.active.items()
                    }

    def groups(self) -> dict[str, StreamsGroup]:
        shard = self.world.coordinator.shard(0)
        assert shard is not None
        return {name: group for name, group in shard.groups.items() if isinstance(group, StreamsGroup)}


def active_tasks(member: StreamsMember) -> list[tuple[str, int]]:
    return [
        (subtopology, task)
        for owned in (member.assigned.active, member.pending_revocation.active)
        for subtopology, tasks in owned.items()
        for task in tasks
    ]


def known(groups: Any) -> dict[str, Any]:
    """Return the hard state of streams groups."""
    return {
        group_id: (
            group.group_epoch,
            group.metadata_hash,
            group.assignment_epoch,
            group.assignment_timestamp_ms,
            group.validated_topology_epoch,
            group.assignment_configs,
            group.topology,
            group.members,
            group.targets,
            group.owners.active,
        )
        for group_id, group in groups.items()
    }


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_simulated_streams_groups_keep_their_invariants(start: int) -> None:
    for seed in range(start, start + 20):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
