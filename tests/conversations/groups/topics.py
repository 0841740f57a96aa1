"""Conversations with consumer groups whose topics are deleted and created again under the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conversations.groups.script import conversation
from tests.conversations.groups.talk import OLD

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk


def commit_and_fetch(talk: GroupTalk, group: str, member: str, *topics: str) -> None:
    """Commit and fetch by each name's id, and by name."""
    epoch = talk.epoch(group, member)
    for topic in topics:
        talk.commit(group, {(topic, 0): 8}, member=member, generation=epoch, version=10)
        talk.fetch(group, [(topic, 0), (topic, 1)], member=member, epoch=epoch, version=10)
    talk.commit(group, {(topics[0], 1): 9}, member=member, generation=epoch, version=9)
    talk.fetch(group, [(topics[0], 0), (topics[0], 1)], member=member, epoch=epoch, version=9)
    talk.fetch(group, None, version=10)


def reconciled(talk: GroupTalk, group: str, member: str) -> None:
    """Take what is given, and let go of the rest, until there is nothing new."""
    owned: dict[str, list[int]] | None = None
    for _ in range(4):
        response = talk.beat(group, member, owned=owned)
        owned = None
        if response.assignment is not None:
            owned = {
                talk.topic_name(topic_partition.topic_id): sorted(topic_partition.partitions)
                for topic_partition in response.assignment.topic_partitions
            }


@conversation
def topic_made_anew(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", name)
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    commit_and_fetch(talk, name, "m-1", name)
    talk.delete_topic(name)
    talk.talk.wait_until(lambda: talk.offset(name, (name, 0)) == -1, "the offset is still there")
    old = OLD(name)
    commit_and_fetch(talk, name, "m-1", name, old)
    talk.describe_consumers(name)
    talk.beat(name, "m-1")
    talk.beat(name, "m-1", owned={old: [0, 1, 2, 3]})
    talk.describe_consumers(name)
    talk.create(name, 2)
    # It does not let go of what is no more.
    talk.beat(name, "m-1")
    talk.beat(name, "m-1", owned={old: [0, 1, 2, 3]})
    commit_and_fetch(talk, name, "m-1", name, old)
    talk.describe_consumers(name)
    talk.beat(name, "m-1", owned={})
    reconciled(talk, name, "m-1")
    commit_and_fetch(talk, name, "m-1", name, old)
    talk.describe_consumers(name)


@conversation
def topic_made_anew_at_once(talk: GroupTalk, name: str) -> None:
    """No heartbeat in between."""
    talk.arrive(name, "m-1", name)
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    talk.commit(name, {(name, 0): 5, (name, 1): 6}, member="m-1", generation=talk.epoch(name, "m-1"), version=10)
    talk.delete_topic(name)
    talk.talk.wait_until(lambda: talk.offset(name, (name, 0)) == -1, "the offset is still there")
    talk.create(name, 4)
    old = OLD(name)
    talk.fetch(name, [(name, 0), (old, 0)], version=10)
    talk.beat(name, "m-1", owned={old: [0, 1, 2, 3]})
    talk.describe_consumers(name)
    talk.beat(name, "m-1", owned={old: [0, 1]})
    talk.beat(name, "m-1", owned={name: [0]})
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    talk.describe_consumers(name)
    # The epoch before, with what was owned in it.
    talk.beat(name, "m-1", -1, owned={old: [0, 1, 2, 3]})
    talk.beat(name, "m-1", -1, owned={name: [0, 1]})
    commit_and_fetch(talk, name, "m-1", name, old)


@conversation
def topic_goes_while_it_is_revoked(talk: GroupTalk, name: str) -> None:
    for confirms in (True, False):
        group, topic = f"{name}-{confirms}".lower(), f"{name}-topic-{confirms}".lower()
        talk.create(topic, 4)
        old = OLD(topic)
        talk.arrive(group, "m-1", topic)
        talk.beat(group, "m-1", owned={topic: [0, 1, 2, 3]})
        talk.arrive(group, "m-2", topic)
        heartbeat = talk.beat(group, "m-1", owned={topic: [0, 1, 2, 3]})
        kept = heartbeat.assignment.topic_partitions[0].partitions if heartbeat.assignment else []
        talk.commit(group, {(topic, 0): 1}, member="m-1", generation=talk.epoch(group, "m-1"), version=10)
        talk.delete_topic(topic)
        talk.talk.wait_until(
            lambda group=group, topic=topic: talk.offset(group, (topic, 0)) == -1, "the offset is still there"
        )
        talk.describe_consumers(group)
        if confirms:
            talk.beat(group, "m-1", owned={old: kept})
        else:
            talk.beat(group, "m-1", owned={old: [0, 1, 2, 3]})
            talk.beat(group, "m-1")
        talk.beat(group, "m-2")
        talk.describe_consumers(group)
        talk.create(topic, 4)
        talk.beat(group, "m-2")
        talk.beat(group, "m-1", owned={old: kept} if confirms else {old: [0, 1, 2, 3]})
        talk.describe_consumers(group)
        commit_and_fetch(talk, group, "m-1", topic, old)
        talk.beat(group, "m-1", owned={})
        reconciled(talk, group, "m-1")
        reconciled(talk, group, "m-2")
        reconciled(talk, group, "m-1")
        talk.describe_consumers(group)


@conversation
def topic_made_anew_while_it_is_revoked(talk: GroupTalk, name: str) -> None:
    """Delete and create a topic between two heartbeats of a member that revokes partitions."""
    for partitions in (4, 2, 6):
        group, topic = f"{name}-{partitions}", f"{name}-topic-{partitions}"
        talk.create(topic, 4)
        old = OLD(topic)
        talk.arrive(group, "m-1", topic)
        talk.beat(group, "m-1", owned={topic: [0, 1, 2, 3]})
        talk.arrive(group, "m-2", topic)
        talk.beat(group, "m-1", owned={topic: [0, 1, 2, 3]})
        talk.delete_topic(topic)
        talk.create(topic, partitions)
        talk.beat(group, "m-2", owned={})
        talk.beat(group, "m-1", owned={old: [0, 1, 2, 3]})
        commit_and_fetch(talk, group, "m-1", topic, old)
        talk.beat(group, "m-1")
        talk.describe_consumers(group)
        talk.beat(group, "m-1", owned={})
        reconciled(talk, group, "m-1")
        talk.beat(group, "m-2")
        reconciled(talk, group, "m-2")
        talk.describe_consumers(group)


@conversation
def topic_made_anew_while_a_member_waits(talk: GroupTalk, name: str) -> None:
    """The second member waits for partitions that the first has not let go of, and is then left alone."""
    talk.arrive(name, "m-1", name)
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    talk.arrive(name, "m-2", name)
    heartbeat = talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    kept = heartbeat.assignment.topic_partitions[0].partitions if heartbeat.assignment else []
    talk.beat(name, "m-1", owned={name: kept})
    talk.arrive(name, "m-3", name)
    talk.beat(name, "m-1", owned={name: kept})
    talk.beat(name, "m-2")
    talk.describe_consumers(name)
    talk.delete_topic(name)
    talk.create(name, 3)
    old = OLD(name)
    talk.beat(name, "m-3")
    talk.beat(name, "m-2")
    talk.describe_consumers(name)
    talk.beat(name, "m-1", epoch=-1)
    talk.beat(name, "m-2", owned={old: [2, 3]})
    talk.beat(name, "m-2", owned={})
    reconciled(talk, name, "m-3")
    reconciled(talk, name, "m-2")
    talk.describe_consumers(name)


@conversation
def topic_made_anew_for_static_members(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", name, instance="i-1")
    talk.beat(name, "m-1", instance="i-1", owned={name: [0, 1, 2, 3]})
    talk.commit(name, {(name, 0): 3}, member="m-1", generation=talk.epoch(name, "m-1"), instance="i-1", version=10)
    talk.beat(name, "m-1", epoch=-2, instance="i-1")
    talk.delete_topic(name)
    talk.describe_consumers(name)
    talk.create(name, 4)
    talk.arrive(name, "m-2", name, instance="i-1")
    talk.describe_consumers(name)
    talk.beat(name, "m-2", instance="i-1", owned={name: [0, 1, 2, 3]})
    talk.beat(name, "m-2", instance="i-1")
    talk.fetch(name, [(name, 0), (OLD(name), 0)], member="m-2", epoch=talk.epoch(name, "m-2"), version=10)
    talk.describe_consumers(name)


@conversation
def topic_made_anew_beside_another(talk: GroupTalk, name: str) -> None:
    """One of two topics goes and comes; what is owned of the other stays where it is."""
    other = f"{name}-other"
    talk.create(other, 2)
    talk.arrive(name, "m-1", name, other, assignor="range")
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3], other: [0, 1]})
    talk.arrive(name, "m-2", name, other, assignor="range")
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3], other: [0, 1]})
    talk.beat(name, "m-1", owned={name: [0, 1], other: [0]})
    talk.beat(name, "m-2")
    talk.beat(name, "m-2", owned={name: [2, 3], other: [1]})
    talk.delete_topic(name)
    talk.create(name, 4)
    old = OLD(name)
    talk.beat(name, "m-1")
    talk.beat(name, "m-1", owned={old: [0, 1], other: [0]})
    talk.describe_consumers(name)
    talk.beat(name, "m-1", owned={other: [0]})
    talk.beat(name, "m-2", owned={old: [2, 3], other: [1]})
    talk.beat(name, "m-1", owned={name: [0, 1], other: [0]})
    talk.beat(name, "m-2", owned={other: [1]})
    talk.beat(name, "m-2", owned={name: [2, 3], other: [1]})
    talk.describe_consumers(name)
    # A subscription that changes as the topic goes.
    talk.delete_topic(other)
    talk.beat(name, "m-1", topics=[other])
    talk.beat(name, "m-2", topics=[name])
    talk.describe_consumers(name)
    talk.beat(name, "m-1", owned={})
    talk.beat(name, "m-2", owned={name: [2, 3]})
    talk.beat(name, "m-2")
    talk.describe_consumers(name)
