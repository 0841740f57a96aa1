"""Conversations with consumer groups (KIP-848), and with groups on their way from one protocol to the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic.consumer_protocol import write_assignment
from ottla.protocol.record_schemas import consumer_protocol as schemas
from tests.conversations.conversation import LONG_MS, PASSING_MS
from tests.conversations.groups.script import WRONG_EXPRESSIONS, configure, conversation, delete, delete_offsets
from tests.conversations.groups.talk import subscription

if TYPE_CHECKING:
    from tests.conversations.groups.talk import GroupTalk

# Consumer groups (KIP-848)


@conversation
def one_consumer(talk: GroupTalk, name: str) -> None:
    for version in range(2):
        group = f"{name}-{version}"
        joined = talk.arrive(group, "" if version == 0 else "m-1", name, version=version)
        member = joined.member_id or "m-1"
        talk.beat(group, member, version=version)
        talk.beat(group, member, owned={name: [0, 1, 2, 3]}, version=version)
        talk.beat(group, member, epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, member, topics=[name, f"{name}-none"], version=version)
        talk.beat(group, member, version=version)
        talk.beat(group, member, topics=[], version=version)
        talk.beat(group, member, owned={}, version=version)
        talk.beat(group, member, topics=[name], rebalance_ms=10_000, version=version)
        talk.describe_consumers(group, version=version)
        talk.describe(group)
        epoch = talk.epoch(group, member)
        talk.commit(group, {(name, 0): 9}, member=member, generation=epoch)
        talk.commit(group, {(name, 0): 9}, member=member, generation=epoch - 1)
        talk.commit(group, {(name, 0): 9}, member=member, generation=epoch + 1)
        talk.commit(group, {(name, 0): 9}, member="m-2", generation=epoch)
        talk.commit(group, {(name, 0): 9}, member=member, generation=epoch, version=8)
        talk.commit(group, {(name, 0): 9})
        talk.fetch(group, [(name, 0)], member=member, epoch=epoch)
        talk.fetch(group, [(name, 0)], member=member, epoch=epoch - 1)
        talk.fetch(group, [(name, 0)], member="m-2", epoch=epoch)
        talk.fetch(group, [(name, 0)])
        delete_offsets(talk, group, (name, 0))
        delete(talk, group)
        talk.beat(group, member, epoch=-1, version=version)
        talk.beat(group, member, epoch=-1, version=version)
        talk.beat(group, member, version=version)
        talk.describe_consumers(group)
        delete_offsets(talk, group, (name, 0))
        delete(talk, group)


@conversation
def reconciliation(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", name)
    talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    talk.arrive(name, "m-2", name)
    talk.describe_consumers(name)
    # The old owner is told to give up half, the new one waits for it.
    talk.beat(name, "m-2", owned={})
    heartbeat = talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    kept = heartbeat.assignment.topic_partitions[0].partitions if heartbeat.assignment else []
    difference = sorted({0, 1, 2, 3}.difference(kept))
    talk.note("kept", len(kept))
    talk.beat(name, "m-1")
    talk.beat(name, "m-1", owned={name: [*kept, difference[0]]})
    talk.beat(name, "m-2")
    talk.commit(name, {(name, 0): 1}, member="m-1", generation=talk.epoch(name, "m-1"))
    talk.beat(name, "m-1", owned={name: kept})
    talk.commit(name, {(name, 0): 1}, member="m-1", generation=talk.epoch(name, "m-1"))
    talk.commit(name, {(name, 0): 1}, member="m-1", generation=talk.epoch(name, "m-1") - 1)
    talk.beat(name, "m-2")
    talk.beat(name, "m-2", owned={name: difference})
    talk.beat(name, "m-1", owned={name: kept})
    talk.beat(name, "m-1")
    talk.describe_consumers(name)
    # A third one; then the second goes while it still has to give something up.
    talk.arrive(name, "m-3", name)
    talk.beat(name, "m-1", owned={name: kept})
    talk.beat(name, "m-2", owned={name: difference})
    talk.describe_consumers(name)
    talk.beat(name, "m-2", epoch=-1)
    talk.beat(name, "m-3")
    talk.arrive(name, "m-4", name)
    talk.arrive(name, "m-5", name)
    talk.describe_consumers(name)


@conversation
def epochs_of_consumers(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", name)
    talk.arrive(name, "m-2", name)
    first = talk.beat(name, "m-1", owned={name: [0, 1, 2, 3]})
    kept = first.assignment.topic_partitions[0].partitions if first.assignment else []
    talk.beat(name, "m-1", owned={name: kept})
    # The previous epoch is taken again with nothing that is not the member's, and with something it is fenced.
    talk.beat(name, "m-1", -1, owned={name: kept})
    talk.beat(name, "m-1", -1, owned={name: [0, 1, 2, 3]})
    talk.beat(name, "m-1", -1)
    talk.beat(name, "m-1", 1)
    talk.beat(name, "m-1", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS)
    talk.beat(name, "nobody")
    talk.beat(name, "nobody", epoch=-1)
    talk.beat(f"{name}-nothing", "nobody")
    talk.beat(f"{name}-nothing", "nobody", epoch=-1)
    talk.describe_consumers(name)


@conversation
def mistakes_of_consumers(talk: GroupTalk, name: str) -> None:
    for version in range(2):
        group = f"{name}-{version}"
        talk.beat("", "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(" ", "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "m", epoch=0, version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, version=version)
        talk.beat(group, "m", epoch=0, topics=[name], rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={name: [0]}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "m", epoch=0, owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "m", epoch=0, topics=[], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "", version=version)
        talk.beat(group, "", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, version=1)
        talk.beat(group, "m", epoch=-2, version=version)
        talk.beat(group, "m", epoch=-3, version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, instance="", version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, rack="", version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, rebalance_ms=0, version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, assignor="", version=version)
        talk.beat(group, "m", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, assignor="best", version=version)
        talk.beat(group, "m", epoch=0, topics=[name, name], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.beat(group, "m", epoch=0, topics=["no/name"], owned={}, rebalance_ms=LONG_MS, version=version)
        talk.describe_consumers(group, version=version)
        talk.beat(group, "m", owned={f"{name}-none": [0]}, version=version)
        talk.beat(group, "m", owned={name: [7]}, version=version)
    for regex in WRONG_EXPRESSIONS:
        talk.beat(f"{name}-regex", "m", epoch=0, regex=regex, owned={}, rebalance_ms=LONG_MS)
    talk.beat(f"{name}-regex", "m", epoch=0, regex="", owned={}, rebalance_ms=LONG_MS)
    talk.beat(f"{name}-regex", "m", epoch=0, topics=[], regex="", owned={}, rebalance_ms=LONG_MS)
    talk.beat(f"{name}-many", "m-1", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS)
    for number in range(2, 5):
        talk.beat(f"{name}-many", f"m-{number}", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS)


@conversation
def static_consumers(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", name, instance="i-1")
    talk.beat(name, "m-1", instance="i-1", owned={name: [0, 1, 2, 3]})
    talk.arrive(name, "m-2", name, instance="i-1")
    talk.beat(name, "m-2", instance="i-1")
    talk.beat(name, "m-1", instance="i-2")
    talk.beat(name, "m-1")
    talk.beat(name, "m-1", epoch=-2, instance="i-1")
    talk.describe_consumers(name)
    talk.beat(name, "m-1", instance="i-1")
    talk.arrive(name, "m-2", name, instance="i-1")
    talk.beat(name, "m-1", instance="i-1")
    talk.beat(name, "m-1", epoch=-2, instance="i-1")
    talk.beat(name, "m-2", instance="i-1", owned={name: [0, 1, 2, 3]})
    talk.describe_consumers(name)
    # It goes for a while, and comes back with another subscription.
    talk.beat(name, "m-2", epoch=-2, instance="i-1")
    talk.arrive(name, "m-3", name, f"{name}-2", instance="i-1")
    talk.beat(name, "m-3", instance="i-1")
    # It goes for good.
    talk.beat(name, "m-3", epoch=-1, instance="i-1")
    talk.describe_consumers(name)


@conversation
def regular_expressions(talk: GroupTalk, name: str) -> None:
    talk.arrive(name, "m-1", regex=f"{name}.*", topics=None)
    talk.until(name, "Assigning")
    talk.beat(name, "m-1")
    talk.describe_consumers(name)
    # A second one, of an expression that is known; and then no expression. (Another one would be looked up ten seconds
    # after the first, or at once if the conversation takes that long.)
    talk.arrive(name, "m-2", regex=f"{name}.*", topics=None)
    talk.describe_consumers(name)
    talk.beat(name, "m-1", regex="", topics=[name])
    talk.beat(name, "m-2", regex="", topics=[])
    talk.describe_consumers(name)


@conversation
def assignors_and_configs(talk: GroupTalk, name: str) -> None:
    talk.create(f"{name}-2", 4)
    for assignor in ("range", "uniform"):
        group = f"{name}-{assignor}"
        # The uniform assignor takes topics in the order of their ids, which are made up: one topic for it.
        topics = [name, f"{name}-2"] if assignor == "range" else [name]
        owned = {topic: [0, 1, 2, 3] for topic in topics}
        talk.arrive(group, "m-1", *topics, assignor=assignor)
        talk.beat(group, "m-1", owned=owned)
        talk.arrive(group, "m-2", *topics, assignor=assignor)
        talk.describe_consumers(group)
        talk.beat(group, "m-1", assignor="uniform" if assignor == "range" else "range")
        talk.describe_consumers(group)
    group = f"{name}-configured"
    configure(talk, group, "consumer.heartbeat.interval.ms", "777")
    configure(talk, group, "consumer.heartbeat.interval.ms", "10")
    configure(talk, group, "consumer.session.timeout.ms", "100")
    configure(talk, group, "consumer.session.timeout.ms", "100000000")
    talk.arrive(group, "m-1", name)


@conversation
def late_consumers(talk: GroupTalk, name: str) -> None:
    configure(talk, name, "consumer.heartbeat.interval.ms", "100")
    configure(talk, name, "consumer.session.timeout.ms", str(PASSING_MS))
    talk.arrive(name, "m-1", name)
    talk.until(name, "Empty", 0)
    talk.beat(name, "m-1")
    talk.describe_consumers(name)
    # One that does not give up what it should, in time.
    group = f"{name}-rebalance"
    talk.arrive(group, "m-1", name, rebalance_ms=PASSING_MS)
    talk.beat(group, "m-1", owned={name: [0, 1, 2, 3]})
    talk.arrive(group, "m-2", name)
    talk.beat(group, "m-1", owned={name: [0, 1, 2, 3]})
    talk.talk.wait_until(lambda: talk.described(group)[1] == 1, "m-1 is still there")
    talk.beat(group, "m-1", owned={name: [0, 1, 2, 3]})
    talk.beat(group, "m-2")
    talk.describe_consumers(group)


# From one protocol to the other


@conversation
def upgrade_and_downgrade(talk: GroupTalk, name: str) -> None:
    name = f"{name}-6"
    talk.create(name, 6)  # divides evenly by one, two and three members
    protocols = {"range": subscription(name)}
    old = talk.enter(name, protocols=protocols).member_id
    everything = schemas.ConsumerProtocolAssignment(
        assigned_partitions=[schemas.TopicPartition(topic=name, partitions=list(range(6)))]
    )
    talk.sync(name, old, 1, {old: write_assignment(everything, 1)})
    talk.commit(name, {(name, 0): 5}, member=old, generation=1)
    talk.arrive(name, "m-1", name)
    talk.describe(name)
    talk.describe_consumers(name)
    talk.heartbeat(name, old, 1)
    talk.heartbeat(name, old, 2)
    talk.heartbeat(name, "nobody", 1)
    talk.sync(name, old, 1)
    talk.commit(name, {(name, 0): 6}, member=old, generation=1)
    talk.join(name, kind="connect")
    talk.join(name, protocols={"range": b""})
    rejoined = talk.join(name, old, protocols=protocols)
    talk.sync(name, old, rejoined.generation_id, kind="consumer", protocol="range")
    talk.heartbeat(name, old, rejoined.generation_id)
    talk.describe_consumers(name)
    talk.beat(name, "m-1")
    two = talk.join(name, protocols=protocols).member_id
    talk.join(name, two, protocols=protocols)
    talk.describe_consumers(name)
    talk.leave(name, (two, None), ("nobody", None))
    talk.fetch(name, [(name, 0)])
    # The last member of the new protocol goes: a classic group again.
    talk.beat(name, "m-1", epoch=-1)
    talk.describe(name)
    talk.describe_consumers(name)
    talk.heartbeat(name, old, rejoined.generation_id)
    talk.join(name, old, protocols=protocols)
    talk.leave(name, (old, None))
    # An empty group changes at once, both ways.
    talk.arrive(name, "m-2", name)
    talk.describe_consumers(name)
    talk.beat(name, "m-2", epoch=-1)
    talk.enter(name, protocols=protocols)
    talk.describe(name)


@conversation
def upgrades_that_are_refused(talk: GroupTalk, name: str) -> None:
    protocols = {"range": subscription(name)}
    one = talk.join(name, instance="i-1", protocols=protocols).member_id
    talk.sync(name, one, 1, {one: write_assignment(schemas.ConsumerProtocolAssignment(), 1)}, instance="i-1")
    talk.beat(name, "m-1", epoch=0, regex="(", owned={}, rebalance_ms=LONG_MS)
    talk.beat(name, "m-1", epoch=0, topics=[name], owned={}, rebalance_ms=LONG_MS, instance="", version=1)
    talk.describe(name)
    talk.heartbeat(name, one, 1, instance="i-1")
    # Its session ends all the same.
    one = talk.join(name, instance="i-1", protocols=protocols, session_ms=PASSING_MS).member_id
    talk.heartbeat(name, one, 1, instance="i-1")
    talk.beat(name, "m-1", epoch=0, regex="(", owned={}, rebalance_ms=LONG_MS)
    talk.until(name, "Empty", 0)
    # A full group takes nobody in, but whoever waits in it is told to join again.
    group = f"{name}-full"
    talk.join(group, instance="i-0", protocols=protocols)
    waiting = []
    for number in (1, 2):
        waiting.append(talk.send_join(group, instance=f"i-{number}", protocols=protocols))
        talk.until(group, "PreparingRebalance", number + 1)
    talk.arrive(group, "m-1", name)
    for entry in waiting:
        talk.got(entry)
    talk.describe(group)
    talk.leave(group, ("", "i-0"), ("", "i-1"), ("", "i-2"))
    talk.describe(group)


@conversation
def groups_that_do_not_mix(talk: GroupTalk, name: str) -> None:
    talk.enter(f"{name}-connect", kind="connect")
    talk.arrive(f"{name}-connect", "m-1", name)
    talk.describe(f"{name}-connect")
    member = talk.enter(f"{name}-strange", protocols={"range": b""}).member_id
    talk.sync(f"{name}-strange", member, 1, {member: b"all"})
    talk.arrive(f"{name}-strange", "m-1", name)
    talk.arrive(f"{name}-consumer", "m-1", name)
    talk.join(f"{name}-consumer", kind="connect")
    talk.join(f"{name}-consumer", "nobody")
    talk.heartbeat(f"{name}-consumer", "m-1", 1)
    talk.sync(f"{name}-consumer", "m-1", 1)
    talk.leave(f"{name}-consumer", ("m-1", None))
    talk.beat(f"{name}-simple", "m-1")
    talk.commit(f"{name}-simple", {(name, 0): 1})
    talk.arrive(f"{name}-simple", "m-1", name)
    talk.fetch(f"{name}-simple", [(name, 0)])
