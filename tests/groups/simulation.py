"""Seeded simulation of unreliable group members in virtual time: they join, leave, crash, stall and lose responses.

The coordinator restarts, its log is slow or fails for a while, and its wall clock is set back. After every step the
state is checked against its invariants; at the end all faults stop and the group must become stable. The same seed
gives the same run.

    python -m tests.groups.simulation --schedules 10000 --first-seed 0
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

from ottla.groups.classic.consumer_protocol import read_assignment, write_assignment
from ottla.groups.classic.group import ClassicGroup, ClassicState
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.loading import Loading
from ottla.groups.shard import Shard
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from ottla.world.random import SeededRandom
from tests.groups.world import World, subscription

MODES = ("consumer", "classic", "mixed")
TOPICS = ("t", "u", "v")
SESSION_MS = 10_000
REBALANCE_MS = 20_000
CONSUMER_SESSION_MS = 45_000
HEARTBEAT_MS = 3_000

TROUBLE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)

Held = set[tuple[str, int]]


class BrokenInvariantError(AssertionError):
    """An invariant was violated."""


class Client:
    """A client of either protocol: it acts on time, unless it stalls."""

    def __init__(self, simulation: Simulation, name: str, topics: tuple[str, ...]) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.name = name
        self.topics = topics
        self.holds: Held = set()
        self.next_ms = 0
        self.alive = True

    def due(self) -> bool:
        return self.alive and self.world.now_ms() >= self.next_ms

    def stall(self, milliseconds: int) -> None:
        """Stop for a while and keep the owned partitions."""
        self.next_ms = self.world.now_ms() + milliseconds

    def crash(self) -> None:
        self.alive = False
        self.holds = set()

    def wait(self) -> None:
        self.next_ms = self.world.now_ms() + HEARTBEAT_MS - self.simulation.random.below(500)

    @property
    def member_id(self) -> str:
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError


class ConsumerClient(Client):
    """A client of the consumer protocol; it acknowledges revocations after a delay."""

    def __init__(self, simulation: Simulation, name: str, topics: tuple[str, ...], instance: str | None) -> None:
        super().__init__(simulation, name, topics)
        self.instance = instance
        self.epoch = 0
        self.assigned: Held | None = None
        self.changed = True
        self.answer: Any = None

    @property
    def member_id(self) -> str:
        return self.name

    def run(self) -> None:
        if isinstance(self.answer, Pending) and not self.answer.settled:
            return  # the response waits for the disk
        random = self.simulation.random
        self.wait()
        if self.assigned is not None and (self.changed or random.below(3)):
            self.holds, self.assigned = self.assigned, None
        # While it still processes its last assignment, it reports no partitions.
        is_full = self.epoch == 0 or self.changed or (self.assigned is None and random.below(2) == 0)
        self.answer = self.world.consumer_heartbeat(
            self.name,
            self.epoch,
            topics=self.topics if is_full else None,
            owned=_by_topic(self.world, self.holds) if is_full else None,
            rebalance_ms=REBALANCE_MS if self.epoch == 0 or self.changed else -1,
            instance=self.instance,
        )
        self.changed = False
        if isinstance(self.answer, Pending):
            self.answer.on_complete(self._answered)
        else:
            self._answered(self.answer)

    def _answered(self, response: Any) -> None:
        if not self.alive or self.simulation.loses():
            self.changed = True
            return
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch, self.holds, self.assigned = 0, set(), None
        elif code is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = _named(self.world, response.assignment.topic_partitions)
        elif code in TROUBLE:
            self.changed = True
        elif code not in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            raise BrokenInvariantError(f"{self.name} was answered {code.name}: {response.error_message}")

    def leave(self) -> None:
        away = self.instance is not None and self.simulation.random.below(2) == 0
        self.world.consumer_heartbeat(self.name, -2 if away else -1, instance=self.instance)
        self.crash()


class ClassicClient(Client):
    """A client of the classic protocol: eager, or cooperative if it joins with its owned partitions."""

    def __init__(self, simulation: Simulation, name: str, topics: tuple[str, ...], *, cooperative: bool) -> None:
        super().__init__(simulation, name, topics)
        self.cooperative = cooperative
        self.id = ""
        self.generation = -1
        self.must_join = True
        self.answer: Any = None
        self.heard_ms = 0
        self.known_since_upgrade = True

    @property
    def member_id(self) -> str:
        return self.id

    def run(self) -> None:
        if isinstance(self.answer, Pending) and not self.answer.settled:
            return
        self.wait()
        if self.world.now_ms() - self.heard_ms >= SESSION_MS:
            self.holds = set()  # another member may own them by now
        if self.must_join:
            self._join()
            return
        code = ErrorCode(self._now(self.world.heartbeat(self.id, self.generation)).error_code)
        if self.simulation.loses():
            return
        self._hear(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget(code)
        if code is not ErrorCode.NONE:
            self.must_join = True
            self.next_ms = 0

    def _now(self, response: Any) -> Any:
        if isinstance(response, Pending):
            self.simulation.world.log.sync()
            return response.response
        return response

    def _hear(self, code: ErrorCode) -> None:
        """Note that the session is alive, unless the response is an error."""
        if code not in TROUBLE:
            self.heard_ms = self.world.now_ms()

    def _forget(self, code: ErrorCode) -> None:
        """Reset the member id or the generation after an error, and drop the owned partitions."""
        self.holds = set()
        self.generation = -1
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""

    def _join(self) -> None:
        if not self.cooperative:
            self.holds = set()
        owned = [
            TopicPartition(topic=name, partitions=sorted(partitions))
            for name, partitions in sorted(_by_topic(self.world, self.holds).items())
        ]
        metadata = subscription(*self.topics, owned_partitions=owned, generation_id=self.generation)
        self._await(
            self.world.join(
                self.id,
                protocols=[("cooperative-sticky", metadata)],
                session_ms=SESSION_MS,
                rebalance_ms=REBALANCE_MS,
                client=self.name,
            ),
            self._joined,
        )

    def _await(self, response: Any, then: Any) -> None:
        self.answer = response
        if isinstance(response, Pending):
            response.on_complete(then)
        else:
            then(response)

    def _joined(self, response: Any) -> None:
        if not self.alive:
            return
        code = ErrorCode(response.error_code)
        self._hear(code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            self.next_ms = 0
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget(code)
        elif code is ErrorCode.NONE and not self.simulation.loses():
            self.generation = response.generation_id
            self.must_join = False
            assignments = {}
            if response.members:
                assignments = self._assign([member.member_id for member in response.members])
            # Sync in a later turn, after the operation that completed the join.
            self.world.clock.call_soon(self._sync, assignments)
        elif code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, *TROUBLE):
            raise BrokenInvariantError(f"{self.name} joined and was answered {code.name}")

    def _assign(self, members: list[str]) -> dict[str, bytes]:
        """Assign all partitions round robin, as the leader; subscriptions are ignored."""
        assignments: dict[str, dict[str, list[int]]] = {member: {} for member in members}
        everything = [
            (topic.name, partition)
            for topic in sorted(self.world.topics.topics.values(), key=lambda topic: topic.name)
            for partition in range(topic.partition_count)
        ]
        for position, (topic, partition) in enumerate(everything):
            assignments[members[position % len(members)]].setdefault(topic, []).append(partition)
        return {
            member: write_assignment(
                ConsumerProtocolAssignment(
                    assigned_partitions=[
                        TopicPartition(topic=name, partitions=partitions) for name, partitions in topics.items()
                    ]
                ),
                1,
            )
            for member, topics in assignments.items()
        }

    def _sync(self, assignments: dict[str, bytes]) -> None:
        if self.alive and not self.must_join:
            response = self.world.sync(self.id, self.generation, assignments, protocol="cooperative-sticky")
            self._await(response, self._synced)

    def _synced(self, response: Any) -> None:
        if not self.alive:
            return
        code = ErrorCode(response.error_code)
        self._hear(code)
        if code is ErrorCode.NONE and not self.simulation.loses():
            assigned: Held = set()
            if response.assignment:
                for topic in read_assignment(response.assignment).assigned_partitions:
                    assigned |= {(topic.topic, partition) for partition in topic.partitions}
            self.known_since_upgrade = True
            gives_back = self.holds - assigned
            self.holds = assigned
            if gives_back and self.cooperative:
                self.must_join = True
                self.next_ms = 0
            return
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._forget(code)
        self.must_join = True

    def leave(self) -> None:
        if self.id:
            self.world.leave((self.id, None))
        self.crash()


class Simulation:
    """One schedule of a simulation."""

    log_and_clock_fail = True

    def __init__(self, seed: int, mode: str, steps: int = 60) -> None:
        self.seed = seed
        self.mode = mode
        self.steps = steps
        self.random = SeededRandom(seed)
        self.world = World(seed)
        self.clients: list[Client] = []
        self.created = 0
        self.calm = False
        self.epochs: dict[str, int] = {}
        self.shadow: Shard | None = None
        self.fed = 0
        self.last_group: Any = None
        for name in TOPICS[:2]:
            self.world.create_topic(name, 1 + self.random.below(4))

    # Faults

    def run(self) -> None:
        for _ in range(self.steps):
            self.disturb()
            self.tick(self.random.below(2_500))
        self.settle()

    def loses(self) -> bool:
        """Return whether a response is lost."""
        return not self.calm and self.random.below(15) == 0

    def disturb(self) -> None:
        """Cause one random event."""
        roll = self.random.below(100)
        living = [client for client in self.clients if client.alive]
        if roll < 25 and len(living) < 6:
            self.add_client()
        elif not living or roll < 45:
            return
        elif roll < 55:
            self.random.choice(living).leave()
        elif roll < 62:
            self.random.choice(living).crash()
        elif roll < 70:
            self.random.choice(living).stall(self.random.below(2 * CONSUMER_SESSION_MS))
        elif roll < 78:
            client = self.random.choice(living)
            client.topics = self.some_topics()
            if isinstance(client, ConsumerClient):
                client.changed = True
            elif isinstance(client, ClassicClient):
                client.must_join = True
        elif roll < 86:
            self.change_topics()
        elif roll < 92:
            self.world.restart()
            self.shadow = None
        elif roll < 95:
            self.world.log.slow = not self.world.log.slow
            if not self.world.log.slow:
                self.world.log.sync()
        elif roll < 97:
            if self.log_and_clock_fail:
                self.world.log.broken = None if self.world.log.broken else ErrorCode.NOT_ENOUGH_REPLICAS
        elif roll < 98:
            back = self.random.below(3_600_000)
            if self.log_and_clock_fail:
                self.world.set_back(back)
        else:
            self.commit(self.random.choice(living))

    def add_client(self) -> None:
        self.created += 1
        topics = self.some_topics()
        kind = self.mode if self.mode != "mixed" else self.random.choice(["consumer", "classic"])
        if kind == "classic":
            cooperative = self.mode == "mixed" and self.random.below(2) == 0
            self.clients.append(ClassicClient(self, f"c{self.created}", topics, cooperative=cooperative))
            return
        instance = None
        if self.mode == "consumer" and self.random.below(3) == 0:
            taken = {client.instance for client in self.clients if isinstance(client, ConsumerClient) and client.alive}
            instance = next((name for name in ("i1", "i2") if name not in taken), None)
        self.clients.append(ConsumerClient(self, f"m{self.created}", topics, instance))

    def some_topics(self) -> tuple[str, ...]:
        if self.mode == "classic":
            return TOPICS
        return tuple(name for name in TOPICS if self.random.below(3)) or ("t",)

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.world.topics.topics.get(name)
        if topic is None:
            self.world.create_topic(name, 1 + self.random.below(4))
        elif self.random.below(4) == 0:
            self.world.delete_topic(name)
            for client in self.clients:
                client.holds = {held for held in client.holds if held[0] != name}
                if isinstance(client, ConsumerClient) and client.assigned is not None:
                    client.assigned = {held for held in client.assigned if held[0] != name}
        elif topic.partition_count < 8:
            self.world.change_topic(name, topic.partition_count + 1)

    def commit(self, client: Client) -> None:
        held = sorted(held for held in client.holds if held[0] in self.world.topics.topics)
        if not held:
            return
        epoch = client.epoch if isinstance(client, ConsumerClient) else getattr(client, "generation", -1)
        offsets = {partition: self.random.below(100) for partition in held}
        self.world.commit(offsets, member=client.member_id, generation=epoch, ids=True)

    def tick(self, milliseconds: int) -> None:
        """Advance the clock in small steps; clients that are due act in turn."""
        while milliseconds > 0:
            step = min(milliseconds, 500)
            self.world.advance(step)
            milliseconds -= step
            if self.world.log.slow and self.random.below(3) == 0:
                self.world.log.sync()
            for client in list(self.clients):
                if client.due():
                    client.run()
            self.check()

    # Invariants

    def check(self) -> None:
        group = self.world.group()
        if isinstance(group, ConsumerGroup):
            self.check_epochs(group.group_epoch, group)
            self.check_owners(group)
            if group.assignment_epoch > group.group_epoch:
                raise BrokenInvariantError("the assignment is of an epoch that has not begun")
        elif isinstance(group, ClassicGroup):
            self.check_classic(group)
            self.check_epochs(group.generation_id, group)
        else:
            self.epochs.clear()
        self.check_replay()

    def check_epochs(self, epoch: int, group: Any) -> None:
        """Check that the epochs of the group and its members never decrease."""
        if group is not self.last_group and not (
            isinstance(group, ConsumerGroup) and type(self.last_group) is type(group)
        ):
            # A new group of the same name, or the last generation that was written before a restart.
            self.epochs.clear()
            for client in self.clients:
                if isinstance(client, ClassicClient):
                    client.known_since_upgrade = False
        self.last_group = group
        if epoch < self.epochs.get("", 0):
            raise BrokenInvariantError(f"the group went from epoch {self.epochs['']} to {epoch}")
        self.epochs[""] = epoch
        if not isinstance(group, ConsumerGroup):
            return
        for member_id, member in group.members.items():
            before = self.epochs.get(member_id, 0)
            if 0 < member.member_epoch < before:
                raise BrokenInvariantError(f"{member_id} went from epoch {before} to {member.member_epoch}")
            if member.member_epoch > group.group_epoch:
                raise BrokenInvariantError(f"{member_id} is in an epoch that has not begun")
            self.epochs[member_id] = member.member_epoch

    def check_owners(self, group: ConsumerGroup) -> None:
        """Check that no partition has two owners, in the coordinator and among the clients that are still members."""
        owners: dict[tuple[bytes, int], str] = {}
        allowed: dict[str, Held] = {}
        names = {topic.id: topic.name for topic in self.world.topics.topics.values()}
        for member_id, member in group.members.items():
            held = allowed.setdefault(member_id, set())
            for assignment in (member.assigned, member.pending_revocation):
                for topic_id, partitions in assignment.items():
                    for partition in partitions:
                        other = owners.setdefault((topic_id, partition), member_id)
                        if other != member_id:
                            raise BrokenInvariantError(
                                f"{names.get(topic_id)}-{partition} has the owners {other} and {member_id}"
                            )
                        held.add((names.get(topic_id, "?"), partition))
        for client in self.clients:
            known = group.members.get(client.member_id)
            if not client.alive or known is None or known.member_epoch < 0:
                continue
            if isinstance(client, ConsumerClient) and client.epoch == 0:
                continue
            if isinstance(client, ClassicClient) and not client.known_since_upgrade:
                # A group that is upgraded during a rebalance does not know what cooperative members own until they
                # rejoin, as in Kafka.
                continue
            if not client.holds <= allowed[client.member_id]:
                extra = sorted(client.holds - allowed[client.member_id])
                raise BrokenInvariantError(f"{client.name} holds {extra}, which the coordinator does not know of")

    def check_classic(self, group: ClassicGroup) -> None:
        waiting = sum(member.awaiting_join is not None for member in group.members.values())
        if waiting != group.awaiting_join_count:
            raise BrokenInvariantError("the members that wait are miscounted")
        protocol_counts = Counter(name for member in group.members.values() for name, _ in member.protocols)
        if protocol_counts != group.protocol_counts:
            raise BrokenInvariantError("the members that support a protocol are miscounted")
        if group.leader_id is not None and group.leader_id not in group.members:
            raise BrokenInvariantError("the leader is not a member")
        if group.state is ClassicState.STABLE and waiting:
            raise BrokenInvariantError("a member waits to join a stable group")
        if group.is_empty and group.members:
            raise BrokenInvariantError("an empty group has members")
        if group.state is not ClassicState.STABLE or self.mode != "classic":
            return
        held: dict[tuple[str, int], str] = {}
        for client in self.clients:
            if client.alive and client.member_id in group.members:
                for partition in sorted(client.holds):
                    other = held.setdefault(partition, client.name)
                    if other != client.name:
                        raise BrokenInvariantError(f"{partition} is held by {other} and {client.name}")

    def check_replay(self) -> None:
        """Check that a replay of the log gives the live state."""
        live = self.world.coordinator.shard(0)
        assert live is not None
        if self.shadow is None:
            self.shadow = _shadow(self.world)
            self.fed = 0
        batches = self.world.log.batches.get(0, [])
        loading = Loading(self.shadow)
        for batch in batches[self.fed :]:
            sum(loading.replay(batch))
        sum(loading.settle_commits())
        self.fed = len(batches)
        replayed, now = dump(self.shadow), dump(live)
        for group_id, state in now["groups"].items():
            if state is not None and replayed["groups"].get(group_id) != state:
                raise BrokenInvariantError(f"replayed {replayed['groups'].get(group_id)}\n but live is {state}")
        if replayed["offsets"] != now["offsets"] or replayed["topics"] != now["topics"]:
            raise BrokenInvariantError(f"replayed {replayed}\n but live is {now}")

    # The end of a schedule

    def settle(self) -> None:
        """Stop all faults; the group must become stable and cover its subscriptions."""
        self.calm = True
        self.world.log.slow = False
        self.world.log.broken = None
        self.world.log.sync()
        if not any(client.alive for client in self.clients):
            self.add_client()
        for client in self.clients:
            client.next_ms = 0
        for _ in range(300):
            self.tick(1_000)
            if self.at_rest():
                break
        else:
            raise BrokenInvariantError(f"the group did not come to rest: {self.describe()}")
        self.tick(10_000)
        if not self.at_rest():
            raise BrokenInvariantError(f"the group did not stay at rest: {self.describe()}")

    def at_rest(self) -> bool:
        group = self.world.group()
        living = [client for client in self.clients if client.alive]
        if group is None or sorted(group.members) != sorted(client.member_id for client in living):
            return False
        if group.state_name != "Stable":
            return False
        for client in living:
            if isinstance(client, ConsumerClient) and (client.assigned or client.holds) != client.holds:
                return False
            if isinstance(client, ClassicClient) and client.must_join:
                return False
        topics = self.world.topics.topics
        if isinstance(group, ConsumerGroup):
            expected = {name for client in living for name in client.topics if name in topics}
        else:
            expected = set(topics)
        everything = {(name, index) for name in expected for index in range(topics[name].partition_count)}
        held = [partition for client in living for partition in client.holds]
        if isinstance(group, ClassicGroup):
            # A classic leader does not notice new partitions.
            return len(held) == len(set(held))
        return sorted(held) == sorted(everything)

    def describe(self) -> str:
        group = self.world.group()
        clients = [(client.name, client.member_id, sorted(client.holds)) for client in self.clients if client.alive]
        members = getattr(group, "members", None)
        return f"{getattr(group, 'state_name', None)} members={members} clients={clients}"


def _by_topic(world: World, holds: Held) -> dict[str, set[int]]:
    by_topic: dict[str, set[int]] = {}
    for name, partition in holds:
        if name in world.topics.topics:
            by_topic.setdefault(name, set()).add(partition)
    return by_topic


def _named(world: World, topics: Any) -> Held:
    names = {topic.id: topic.name for topic in world.topics.topics.values()}
    return {
        (names[topic.topic_id], partition)
        for topic in topics
        if topic.topic_id in names
        for partition in topic.partitions
    }


def _shadow(world: World) -> Shard:
    live = world.coordinator.shard(0)
    assert live is not None
    return Shard(
        0,
        clock=world.clock,
        random=world.random,
        log=world.log,
        topics=world.topics,
        settings=world.settings,
        topic_hashes=live.topic_hashes,
        share_states=world.share_states,
    )


def dump(shard: Shard) -> dict[str, Any]:
    """Return the hard state of a shard; None for a classic group between two generations, which is soft state."""
    groups: dict[str, Any] = {}
    for group_id, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            groups[group_id] = {name: value for name, value in vars(group).items() if not name.startswith("_")}
        elif group.state is ClassicState.STABLE:
            groups[group_id] = (
                group.generation_id,
                group.protocol_type,
                group.protocol_name,
                group.leader_id,
                group.subscribed_topics,
                {
                    member.member_id: (
                        member.group_instance_id,
                        member.client_id,
                        member.rebalance_timeout_ms,
                        member.session_timeout_ms,
                        member.metadata(group.protocol_name),
                        member.assignment,
                    )
                    for member in group.members.values()
                },
            )
        else:
            groups[group_id] = None
    topics = {
        topic: sorted(group for group in readers if isinstance(shard.groups.get(group), ConsumerGroup))
        for topic, readers in shard.groups_by_topic.items()
    }
    return {
        "groups": groups,
        "offsets": shard.offsets.committed,
        "topics": {topic: readers for topic, readers in topics.items() if readers},
    }


def run(seed: int, steps: int = 60) -> None:
    """Run one schedule; a failure names its seed."""
    mode = MODES[seed % len(MODES)]
    try:
        Simulation(seed, mode, steps).run()
    except Exception as error:
        raise BrokenInvariantError(
            f"seed {seed} ({mode}): {error}\nagain with: "
            f"python -m tests.groups.simulation --first-seed {seed} --schedules 1 --steps {steps}"
        ) from error


def main() -> None:
    """Run many schedules and report their number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    began = time.monotonic()
    for seed in range(options.first_seed, options.first_seed + options.schedules):
        run(seed, options.steps)
        done = seed - options.first_seed + 1
        if done % 500 == 0:
            sys.stdout.write(f"{done} schedules in {time.monotonic() - began:.1f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{options.schedules} schedules in {time.monotonic() - began:.1f} s, all good\n")


if __name__ == "__main__":
    main()
