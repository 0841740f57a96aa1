"""Share groups through seeded weeks of joins, leaves, topics that come and go, failures and restarts.

After every step what the log says is what is known; what members are told exists, is wanted and has state; and when the
world calms down, every partition that somebody wants is read from.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ottla.groups.environment import RequestContext
from ottla.groups.share.group import ShareGroup
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from tests.groups.world import World

CONTEXT = RequestContext(1, "client", "/127.0.0.1")
GROUPS, MEMBERS, TOPICS = ("g", "h"), ("a", "b", "c", "d"), ("t", "u", "v")
SEEDS, STEPS = 40, 80


class Simulation:
    """One schedule of a simulation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(seed)
        self.epochs: dict[tuple[str, str], int] = {}

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.world.check_log(known)
        self.calm_down()

    # Steps

    def step(self) -> None:
        world, random = self.world, self.random
        group, member, topic = random.choice(GROUPS), random.choice(MEMBERS), random.choice(TOPICS)
        match random.randint(0, 11):
            case 0 | 1 | 2:
                self.beat(group, member, 0, [topic for topic in TOPICS if random.random() < 0.6] or ["t"])
            case 3 | 4 | 5:
                self.beat(group, member, self.epochs.get((group, member), 1), None)
            case 6:
                self.beat(group, member, -1, None)
            case 7:
                if topic not in world.topics.topics:
                    world.create_topic(topic, random.randint(1, 4))
                elif random.random() < 0.5:
                    world.change_topic(topic, world.topics.topics[topic].partition_count + 1)
                else:
                    world.delete_topic(topic)
            case 8:
                world.advance(random.randint(1, 60_000))
            case 9:
                self.administer(group, topic)
            case 10:
                broken = random.random() < 0.5
                world.share_states.broken = ErrorCode.COORDINATOR_NOT_AVAILABLE if broken else ErrorCode.NONE
            case 11:
                if random.random() < 0.5:
                    world.log.broken = None if world.log.broken else ErrorCode.NOT_ENOUGH_REPLICAS
                else:
                    world.log.broken = None
                    world.restart()
        if random.random() < 0.7:
            world.clock.advance(0)

    def administer(self, group: str, topic: str) -> None:
        coordinator = self.world.coordinator
        match self.random.randint(0, 2):
            case 0:
                coordinator.delete_groups([group])
            case 1:
                partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=7)
                expected = AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[partition])
                coordinator.alter_share_group_offsets(AlterShareGroupOffsetsRequest(group_id=group, topics=[expected]))
            case 2:
                coordinator.delete_share_group_offsets(
                    DeleteShareGroupOffsetsRequest(
                        group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
                    )
                )

    def beat(self, group: str, member: str, epoch: int, topics: list[str] | None) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics
        )
        response: Any = self.world.coordinator.share_group_heartbeat(CONTEXT, request)
        if isinstance(response, Pending):
            response = response.response
        if response.error_code == ErrorCode.NONE and epoch >= 0:
            assert response.member_epoch >= epoch or epoch == 0, "a member's epoch goes forward"
            self.epochs[group, member] = response.member_epoch
            self.check_assignment(group, member, response)
        elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.epochs.pop((group, member), None)
        return response

    # What must hold

    def check_assignment(self, group_id: str, member_id: str, response: ShareGroupHeartbeatResponse) -> None:
        group = self.world.group(group_id)
        expected = group.members[member_id].subscribed_topic_names
        for topic_partition in response.assignment.topic_partitions if response.assignment is not None else ():
            topic = self.world.topics.by_id(topic_partition.topic_id)
            if topic is None:
                assert group.assignment_epoch < group.group_epoch, "only until the next assignment is due"
                continue
            assert topic.name in expected
            assert max(topic_partition.partitions) < topic.partition_count

    def calm_down(self) -> None:
        """Nothing fails any more, nobody leaves: all that is wanted is assigned."""
        world = self.world
        world.log.broken = None
        world.share_states.broken = ErrorCode.NONE
        for _ in range(4):
            world.advance(31_000)
            for group in GROUPS:
                for member in MEMBERS:
                    if group in self.groups() and member in self.groups()[group].members:
                        self.beat(group, member, 0, sorted(self.groups()[group].members[member].subscribed_topic_names))
                        world.clock.advance(0)
            self.world.check_log(known)
        for group in self.groups().values():
            for name in group.subscribed_topics:
                topic = world.topics.by_name(name)
                if topic is None:
                    continue
                read = {entry for target in group.targets.values() for entry in target.get(topic.id, ())}
                assert read == set(range(topic.partition_count)), f"{group.group_id} {name}"
            for member in group.members.values():
                expected = {
                    topic_id: partitions
                    for topic_id, partitions in group.targets[member.member_id].items()
                    if (result := world.topics.by_id(topic_id)) and result.name in member.subscribed_topic_names
                }
                assert member.assigned == expected

    def groups(self) -> dict[str, ShareGroup]:
        shard = self.world.coordinator.shard(0)
        assert shard is not None
        return {name: group for name, group in shard.groups.items() if isinstance(group, ShareGroup)}


def known(groups: Any) -> dict[str, Any]:
    """Return the hard state of share groups without replay times."""
    result = {}
    for group_id, group in groups.items():
        state = group.state_partitions
        result[group_id] = (
            group.group_epoch,
            group.metadata_hash,
            group.assignment_epoch,
            group.assignment_timestamp_ms,
            group.members,
            group.subscribed_topics,
            group.targets,
            None
            if state is None
            else (
                {key: value.partitions for key, value in state.initializing.items()},
                {key: value.partitions for key, value in state.initialized.items()},
                dict(state.deleting),
            ),
        )
    return result


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_simulated_share_groups_keep_their_invariants(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            Simulation(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
