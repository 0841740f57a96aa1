"""Conversations about offsets that a transaction has committed and not ended: who is told them, and who must wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conversations.groups.script import conversation, delete, delete_offsets
from tests.conversations.transactions.talk import TransactionTalk

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk


class Producers(TransactionTalk):
    """The producers of a conversation; what they are answered is written down in it."""

    def __init__(self, talk: GroupTalk) -> None:
        super().__init__(talk.talk, talk.pause)
        self.begin()
        self.transcript = talk.transcript

    def label(self, *parts: object) -> str:
        """Counted for themselves."""
        return f"producers: {super().label(*parts)}"  # type: ignore[arg-type]


@conversation
def unstable_offsets(talk: GroupTalk, name: str) -> None:
    one, two, nobody = f"{name}-1", f"{name}-2", f"{name}-3"
    producers = Producers(talk)
    topic_partitions = [(name, index) for index in range(3)]
    talk.commit(one, {(name, 0): 5, (name, 2): 6})
    talk.commit(two, {(name, 0): 7}, version=10)
    producer = producers.init(f"{name}-t")
    producers.add_offsets(producer, one)
    producers.commit_offset(producer, one, (name, 0), 10, version=4)
    producers.commit_offset(producer, one, (name, 1), 11, version=4)
    producers.commit_offset(producer, two, (name, 1), 20)

    def ask() -> None:
        for version in range(7, 11):
            for stable in (True, False):
                talk.fetch(one, topic_partitions, stable=stable, version=version)
                talk.fetch(one, None, stable=stable, version=version)
        for version in (8, 9, 10):
            for stable in (True, False):
                groups = {one: topic_partitions, two: topic_partitions[:2], nobody: topic_partitions[:1]}
                talk.fetch_groups(groups, stable=stable, version=version)
                talk.fetch_groups(dict.fromkeys(groups), stable=stable, version=version)

    ask()
    # A topic that does not exist, and a partition that does not.
    talk.fetch(one, [(name, 0), (f"{name}-none", 0), (name, 9)], stable=True, version=10)
    talk.fetch(one, [(name, 0), (f"{name}-none", 0), (name, 9)], stable=True, version=9)
    # Whoever commits without a transaction changes what is told to those who do not wait.
    talk.commit(one, {(name, 0): 6})
    talk.fetch(one, topic_partitions, stable=True, version=10)
    talk.fetch(one, topic_partitions, version=10)
    producer = producers.end(producer, committed=True)
    ask()
    producers.commit_offset(producer, one, (name, 0), 12)
    producers.commit_offset(producer, two, (name, 3), 21)
    talk.fetch_groups({one: topic_partitions, two: [(name, 3)]}, stable=True, version=10)
    talk.fetch_groups({one: None, two: None}, stable=True, version=10)
    producers.end(producer, committed=False)
    talk.fetch_groups({one: topic_partitions, two: [(name, 3)]}, stable=True, version=10)
    talk.fetch_groups({one: None, two: None}, stable=True, version=10)


@conversation
def unstable_for_two_producers(talk: GroupTalk, name: str) -> None:
    producers = Producers(talk)
    topic_partitions = [(name, 0), (name, 1)]
    first, second = producers.init(f"{name}-t1"), producers.init(f"{name}-t2")
    producers.commit_offset(first, name, (name, 0), 1)
    producers.commit_offset(second, name, (name, 0), 2)
    producers.commit_offset(second, name, (name, 1), 3)
    talk.fetch(name, topic_partitions, stable=True, version=10)
    first = producers.end(first, committed=True)
    talk.fetch(name, topic_partitions, stable=True, version=10)
    talk.fetch(name, topic_partitions, version=10)
    second = producers.end(second, committed=False)
    talk.fetch(name, topic_partitions, stable=True, version=10)
    # The last one to end is not the last one to have committed.
    producers.commit_offset(first, name, (name, 0), 4)
    producers.commit_offset(second, name, (name, 0), 5)
    second = producers.end(second, committed=True)
    talk.fetch(name, topic_partitions, stable=True, version=9)
    talk.fetch(name, topic_partitions, version=9)
    first = producers.end(first, committed=True)
    talk.fetch(name, topic_partitions, stable=True, version=9)
    # Offsets, and a group, that are deleted meanwhile.
    producers.commit_offset(first, name, (name, 0), 6)
    producers.commit_offset(first, name, (name, 1), 7)
    delete_offsets(talk, name, (name, 0))
    talk.fetch(name, topic_partitions, stable=True, version=10)
    producers.end(first, committed=True)
    talk.fetch(name, topic_partitions, stable=True, version=10)
    producers.commit_offset(second, name, (name, 1), 8)
    delete(talk, name)
    talk.fetch(name, topic_partitions, stable=True, version=10)
    producers.end(second, committed=True)
    talk.fetch(name, topic_partitions, stable=True, version=10)


@conversation
def unstable_for_members(talk: GroupTalk, name: str) -> None:
    producers = Producers(talk)
    producer = producers.init(f"{name}-t")
    talk.arrive(name, "m-1", name)
    epoch = talk.epoch(name, "m-1")
    producers.commit_offset(producer, name, (name, 0), 1, member=("m-1", epoch + 1))
    producers.commit_offset(producer, name, (name, 0), 1, member=("m-2", epoch))
    producers.commit_offset(producer, name, (name, 0), 1, member=("m-1", epoch))
    for version in (9, 10):
        talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch, stable=True, version=version)
        talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch + 1, stable=True, version=version)
        talk.fetch(name, [(name, 0)], member="m-2", epoch=epoch, stable=True, version=version)
        talk.fetch(name, None, member="m-1", epoch=epoch, stable=True, version=version)
    talk.beat(name, "m-1", epoch=-1)
    talk.describe_consumers(name)
    delete(talk, name)
    talk.fetch(name, [(name, 0)], stable=True, version=10)
    producers.end(producer, committed=True)
    talk.fetch(name, [(name, 0)], stable=True, version=10)
    talk.describe_consumers(name)
    talk.describe(name)


@conversation
def unstable_while_the_topic_goes(talk: GroupTalk, name: str) -> None:
    producers = Producers(talk)
    producer = producers.init(f"{name}-t")
    talk.commit(name, {(name, 0): 1}, version=10)
    producers.commit_offset(producer, name, (name, 0), 2)
    producers.commit_offset(producer, name, (name, 1), 3)
    talk.delete_topic(name)
    talk.talk.wait_until(lambda: talk.offset(name, (name, 0)) == -1, "the offset is still there")
    old = f"{name}, deleted"
    for stable in (True, False):
        talk.fetch(name, [(name, 0), (name, 1)], stable=stable, version=9)
        talk.fetch(name, [(old, 0), (old, 1)], stable=stable, version=10)
        talk.fetch(name, None, stable=stable, version=9)
        talk.fetch(name, None, stable=stable, version=10)
    talk.create(name, 2)
    for stable in (True, False):
        talk.fetch(name, [(name, 0), (old, 1)], stable=stable, version=10)
    talk.commit(name, {(name, 0): 4}, version=10)
    producers.end(producer, committed=True)
    talk.fetch(name, [(name, 0), (name, 1), (old, 1)], stable=True, version=10)
    talk.fetch(name, None, stable=True, version=10)
