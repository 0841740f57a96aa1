"""Conversations about streams groups (KIP-1071), held with Apache Kafka and with ottla.

Kafka's answers and records are kept as a fixture.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.protocol.messages import k26_end_txn as k26
from ottla.protocol.messages import k28_txn_offset_commit as k28
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from tests.conversations.conversation import LONG_MS, PASSING_MS
from tests.conversations.groups.script import configure, delete, delete_offsets
from tests.conversations.groups.talk import subscription
from tests.conversations.streams.talk import internal, part, tasks_of, topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.messages import k88_streams_group_heartbeat as k88
    from tests.conversations.streams.talk import StreamsGroupTalk

SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.max.assignment.interval.ms": str(LONG_MS),
    "group.streams.min.session.timeout.ms": "200",
    "group.streams.session.timeout.ms": str(LONG_MS),
    "group.streams.max.session.timeout.ms": str(LONG_MS),
    "group.consumer.session.timeout.ms": str(LONG_MS),
    "group.consumer.max.session.timeout.ms": str(LONG_MS),
    "group.max.session.timeout.ms": str(LONG_MS),
    "group.streams.min.heartbeat.interval.ms": "50",
    "group.streams.heartbeat.interval.ms": "5000",
    "group.streams.max.size": "4",
    "group.consumer.heartbeat.interval.ms": "5000",
    "auto.create.topics.enable": "false",
}
STEPS = 120
RECORDINGS = Path(__file__).with_name("recorded")
CONVERSATIONS: dict[str, Callable[[StreamsGroupTalk, str], None]] = {}
ALL = [0, 1, 2, 3]
THREE = ("m-2", "m-248", "m-347")  # in one bucket of a hash map, and in another order in Kafka's table


def conversation(function: Callable[[StreamsGroupTalk, str], None]) -> Callable[[StreamsGroupTalk, str], None]:
    CONVERSATIONS[function.__name__] = function
    return function


def hold(name: str, talk: StreamsGroupTalk) -> dict[str, Any]:
    """Have one of these conversations."""
    return talk.hold(name, CONVERSATIONS[name])


def plain(name: str, *, epoch: int = 0) -> k88.Topology:
    """One subtopology without state."""
    return topology(part("0", name), epoch=epoch)


def counting(name: str) -> k88.Topology:
    """A count: what is read is written to a repartition topic, and what is counted from there to a changelog."""
    return topology(
        part("0", name, writes=[f"{name}-repartition"]),
        part(
            "1",
            reads=[internal(f"{name}-repartition", cleanup_policy="delete", retention_ms="-1")],
            state=[internal(f"{name}-changelog", cleanup_policy="compact")],
        ),
    )


@conversation
def one_streamer(talk: StreamsGroupTalk, name: str) -> None:
    everything = {"0": ALL}
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "m-1")
    talk.streams(name, "m-1", active=everything)
    talk.streams(name, "m-1", by=-1, active=everything)
    talk.streams(name, "m-1", by=-1, active={"0": [0]})
    talk.streams(name, "m-1", by=-1)
    talk.streams(name, "m-1", by=-2)
    talk.streams(name, "m-1", by=1)
    talk.describe_streams(name)
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "m-1", process="another process")
    talk.streams(name, "m-1", tags={"zone": "a", "rack": "b"})
    talk.streams(name, "m-1", rack_id="r-1")
    talk.streams(name, "m-1", rebalance_ms=20_000)
    talk.streams(name, "m-1", rebalance_ms=20_000)
    talk.describe_streams(name)
    talk.describe(name)
    talk.describe_consumers(name)
    listed = talk.patiently(lambda: talk.talk.quietly(ListGroupsRequest(types_filter=["streams"]), ListGroupsResponse))
    talk.note("listed", [talk.tree(group, 5) for group in listed.groups if group.group_id == name])
    delete(talk, name)
    talk.streams(name, "m-1", epoch=-1)
    talk.streams(name, "m-1", epoch=-1)
    talk.streams(name, "m-1")
    talk.describe_streams(name, f"{name}-none", "")
    delete(talk, name)
    talk.describe_streams(name)


@conversation
def offsets_of_streamers(talk: StreamsGroupTalk, name: str) -> None:
    topic_partition = {(name, 0): 9}
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "m-1", active={"0": ALL})
    epoch = talk.epoch(name, "m-1")
    for version in (8, 9, 10):
        talk.commit(name, topic_partition, member="m-1", generation=epoch, version=version)
        talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch, version=version)
    talk.commit(name, topic_partition, member="m-1", generation=epoch - 1)
    talk.commit(name, topic_partition, member="m-1", generation=epoch + 1)
    talk.commit(name, topic_partition, member="m-2", generation=epoch)
    talk.commit(name, topic_partition)
    talk.commit(name, {(f"{name}-none", 0): 9}, member="m-1", generation=epoch)
    talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch - 1)
    talk.fetch(name, [(name, 0)], member="m-1", epoch=epoch + 1)
    talk.fetch(name, [(name, 0)], member="m-2", epoch=epoch)
    talk.fetch(name, [(name, 0), (name, 1)])
    talk.fetch(name, None)
    delete_offsets(talk, name, (name, 0))
    # A second member: the first commits in its old epoch what it still has, and what it has given up.
    talk.streams_join(name, "m-2", plain(name))
    kept = tasks_of(talk.streams(name, "m-1", active={"0": ALL}).active_tasks)["0"]
    remaining = [entry for entry in ALL if entry not in kept]
    before = talk.epoch(name, "m-1")
    talk.commit(name, {(name, remaining[0]): 4}, member="m-1", generation=before)
    talk.streams(name, "m-1", active={"0": kept})
    talk.commit(name, {(name, kept[0]): 5}, member="m-1", generation=before)
    talk.commit(name, {(name, remaining[0]): 5}, member="m-1", generation=before)
    talk.commit(name, {(name, remaining[0]): 6}, member="m-1", generation=talk.epoch(name, "m-1"))
    talk.streams(name, "m-2", active={})
    talk.commit(name, {(name, remaining[0]): 7}, member="m-2", generation=talk.epoch(name, "m-2"))
    talk.fetch(name, [(name, entry) for entry in ALL])
    for member in ("m-1", "m-2"):
        talk.streams(name, member, epoch=-1)
    talk.commit(name, {(name, 2): 8})
    talk.commit(name, {(name, 2): 8}, member="m-1", generation=epoch)
    delete_offsets(talk, name, (name, 0))
    talk.fetch(name, [(name, entry) for entry in ALL])
    delete(talk, name)
    talk.fetch(name, [(name, entry) for entry in ALL])


@conversation
def transactions_of_streamers(talk: StreamsGroupTalk, name: str) -> None:
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "m-1", active={"0": ALL})
    talk.streams_join(name, "m-2", plain(name))
    kept = tasks_of(talk.streams(name, "m-1", active={"0": ALL}).active_tasks)["0"]
    remaining = [entry for entry in ALL if entry not in kept]
    before = talk.epoch(name, "m-1")
    talk.streams(name, "m-1", active={"0": kept})
    now = talk.epoch(name, "m-1")
    begun = talk.patiently(
        lambda: talk.talk.quietly(
            k22.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=LONG_MS), k22.InitProducerIdResponse
        )
    )
    for member, epoch, partition in (
        ("m-1", now, kept[0]),
        ("m-1", before, kept[1]),
        ("m-1", before, remaining[0]),
        ("m-1", now, remaining[0]),
        ("m-1", now + 1, kept[0]),
        ("nobody", now, kept[0]),
        ("", -1, remaining[1]),
    ):
        topic_partition = k28.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=epoch + 10)
        request = k28.TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=name,
            producer_id=begun.producer_id,
            producer_epoch=begun.producer_epoch,
            generation_id=epoch,
            member_id=member,
            topics=[k28.TxnOffsetCommitRequestTopic(name=name, partitions=[topic_partition])],
        )
        talk.ask(request, k28.TxnOffsetCommitResponse, 5)
    talk.fetch(name, [(name, entry) for entry in ALL])
    end = k26.EndTxnRequest(
        transactional_id=name, producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, committed=True
    )
    ended = talk.patiently(lambda: talk.talk.quietly(end, k26.EndTxnResponse))
    talk.note("ended", ended.error_code)
    talk.talk.wait_until(lambda: talk.offset(name, (name, kept[0])) >= 0, "the transaction does not end")
    talk.fetch(name, [(name, entry) for entry in ALL])


@conversation
def two_streamers(talk: StreamsGroupTalk, name: str) -> None:
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "m-1", active={"0": ALL})
    talk.streams_join(name, "m-2", plain(name))
    talk.describe_streams(name)
    # The old owner is told to give up half, the new one waits for it.
    talk.streams(name, "m-2", active={})
    kept = tasks_of(talk.streams(name, "m-1", active={"0": ALL}).active_tasks)["0"]
    remaining = [entry for entry in ALL if entry not in kept]
    talk.streams(name, "m-1")
    talk.streams(name, "m-1", active={"0": [*kept, remaining[0]]})
    talk.streams(name, "m-2")
    talk.describe_streams(name)
    talk.streams(name, "m-1", active={"0": kept})
    talk.streams(name, "m-2")
    talk.streams(name, "m-2", active={"0": remaining})
    talk.streams(name, "m-1", active={"0": kept})
    talk.describe_streams(name)
    # A third one, of the second's process; then the second goes while it still has to give something up.
    talk.streams_join(name, "m-3", plain(name), process="process of m-2")
    talk.describe_streams(name)
    talk.streams(name, "m-1", active={"0": kept})
    talk.streams(name, "m-2", active={"0": remaining})
    talk.streams(name, "m-3", active={})
    talk.describe_streams(name)
    talk.streams_join(name, "m-4", plain(name))
    talk.streams(name, "m-2", epoch=-1)
    for member in ("m-1", "m-3", "m-1", "m-3"):
        talk.streams(name, member)
    talk.describe_streams(name)


@conversation
def epochs_of_streamers(talk: StreamsGroupTalk, name: str) -> None:
    talk.streams_join(name, "m-1", plain(name))
    talk.streams_join(name, "m-2", plain(name))
    kept = tasks_of(talk.streams(name, "m-1", active={"0": ALL}).active_tasks)["0"]
    talk.streams(name, "m-1", active={"0": kept})
    # The previous epoch is taken again with nothing that is not the member's, and with something it is fenced.
    talk.streams(name, "m-1", -1, active={"0": kept})
    talk.streams(name, "m-1", -1, active={"0": ALL})
    talk.streams(name, "m-1", -1)
    talk.streams(name, "m-1", 1)
    talk.streams(name, "m-1", active={"0": [9]})
    talk.streams(name, "m-1", active={"9": [0]})
    talk.streams(name, "m-1", active={"0": kept, "1": []})
    talk.streams_join(name, "m-1", plain(name))
    talk.streams(name, "nobody")
    talk.streams(name, "nobody", epoch=-1)
    talk.streams(f"{name}-nothing", "nobody")
    talk.streams(f"{name}-nothing", "nobody", epoch=-1)
    talk.describe_streams(name)


@conversation
def counting_streamers(talk: StreamsGroupTalk, name: str) -> None:
    configure(talk, name, "streams.num.standby.replicas", "1")
    configure(talk, name, "streams.num.standby.replicas", "3")
    talk.streams_join(name, "m-1", counting(name), endpoint=("one", 1))
    talk.describe_streams(name)
    talk.until_topics(**{f"{name}-repartition": 4, f"{name}-changelog": 4})
    talk.until_ready(name, "m-1")
    talk.streams(name, "m-1", active={"0": ALL, "1": ALL}, endpoint_epoch=1)
    talk.describe_streams(name)
    talk.streams_join(name, "m-2", counting(name), endpoint=("two", 2))
    kept = talk.streams(name, "m-1", active={"0": ALL, "1": ALL}, endpoint_epoch=2)
    talk.describe_streams(name)
    talk.streams(name, "m-1", active=tasks_of(kept.active_tasks), standby=tasks_of(kept.standby_tasks))
    remaining = talk.streams(name, "m-2", active={})
    talk.streams(name, "m-2", active=tasks_of(remaining.active_tasks), standby=tasks_of(remaining.standby_tasks))
    heartbeat = talk.streams(name, "m-1")
    talk.streams(name, "m-1", active=tasks_of(kept.active_tasks), standby=tasks_of(heartbeat.standby_tasks))
    talk.streams(name, "m-2")
    talk.streams(name, "m-1", endpoint_epoch=9)
    talk.describe_streams(name)
    # Fewer copies: the group is told by the next heartbeat.
    configure(talk, name, "streams.num.standby.replicas", "0")
    talk.streams(name, "m-1")
    talk.streams(name, "m-2")
    talk.streams(name, "m-2", active=tasks_of(remaining.active_tasks))
    talk.describe_streams(name)
    talk.streams(name, "m-1", epoch=-1)
    last = talk.streams(name, "m-2", active=tasks_of(remaining.active_tasks))
    talk.streams(name, "m-2", active=tasks_of(last.active_tasks))
    talk.describe_streams(name)


@conversation
def missing_topics(talk: StreamsGroupTalk, name: str) -> None:
    late, wrong, joined = f"{name}-late", f"{name}-wrong", f"{name}-joined"
    talk.streams_join(name, "m-1", topology(part("0", name, late, f"{name}-later")))
    talk.streams(name, "m-1")
    talk.describe_streams(name)
    talk.streams_join(name, "m-2", topology(part("0", name, late, f"{name}-later")))
    talk.create(late, 6)
    talk.create(f"{name}-later", 1)
    talk.until_ready(name, "m-1")
    talk.streams(name, "m-2")
    talk.describe_streams(name)
    # A changelog that is there and too narrow.
    talk.create(f"{wrong}-log", 3)
    talk.streams_join(wrong, "m-1", topology(part("0", name, state=[internal(f"{wrong}-log")])))
    talk.streams(wrong, "m-1")
    talk.describe_streams(wrong)
    # Topics that are joined and not as wide as each other.
    talk.streams_join(joined, "m-1", topology(part("0", name, late, together=[([0, 1], [])])))
    fixed = [internal(f"{joined}-r", 3)]
    other = [part("0", name, writes=[f"{joined}-r"]), part("1", name, reads=fixed, together=[([0], [0])])]
    talk.streams_join(f"{joined}-2", "m-1", topology(*other))
    # Many that are missing: three are told.
    many = [internal(f"{name}-s{index}-changelog") for index in range(5)]
    talk.streams_join(f"{name}-5", "m-1", topology(part("0", name, state=many)))


@conversation
def changing_topics(talk: StreamsGroupTalk, name: str) -> None:
    # Members without endpoints: with one, Kafka 4.3.1 fails (UNKNOWN_SERVER_ERROR) while the topology is not resolved.
    other, log = f"{name}-2", f"{name}-changelog"
    talk.create(other, 2)
    parts = topology(part("0", name, state=[internal(log)]), part("1", other))
    talk.streams_join(name, "m-1", parts)
    talk.until_topics(**{log: 4})
    talk.until_ready(name, "m-1")
    talk.streams(name, "m-1", active={"0": ALL, "1": [0, 1]})
    # More partitions: a subtopology without state has more tasks, one with state does not fit its changelog any more.
    talk.widen(other, 3)
    talk.streams(name, "m-1", active={"0": ALL, "1": [0, 1]})
    talk.streams(name, "m-1", active={"0": ALL, "1": [0, 1, 2]})
    talk.widen(name, 5)
    talk.streams(name, "m-1", active={"0": ALL, "1": [0, 1, 2]})
    talk.describe_streams(name)
    talk.streams(name, "m-1", active={})
    talk.streams(name, "m-1", active={"0": ALL})
    talk.widen(log, 5)
    talk.until_ready(name, "m-1")
    talk.describe_streams(name)
    # The changelog goes, and is made anew; a source goes, and nobody makes it.
    talk.remove(log)
    talk.streams(name, "m-1")
    talk.until_topics(**{log: 5})
    talk.until_ready(name, "m-1")
    talk.remove(other)
    talk.streams(name, "m-1")
    talk.streams_join(name, "m-2", parts)
    talk.describe_streams(name)
    talk.create(other, 1)
    talk.until_ready(name, "m-2")
    talk.describe_streams(name)


@conversation
def other_kinds(talk: StreamsGroupTalk, name: str) -> None:
    for index, kind in enumerate(("classic", "consumer", "commit")):
        group = f"{name}-{index}"
        talk.streams_join(group, "m-1", plain(name))
        talk.streams(group, "m-1", epoch=-1)
        if kind == "classic":
            talk.join(group, protocols={"range": subscription(name)})
            talk.enter(group, protocols={"range": subscription(name)})
        elif kind == "consumer":
            talk.arrive(group, "c-1", name)
        else:
            talk.commit(group, {(name, 0): 7}, member="m-1", generation=1)
            talk.commit(group, {(name, 0): 7})
        talk.describe_streams(group)
        talk.describe(group)
    # A group that has only offsets.
    group = f"{name}-3"
    talk.commit(group, {(name, 0): 7})
    talk.describe_streams(group)
    talk.streams_join(group, "m-1", plain(name))
    talk.fetch(group, [(name, 0)])
    talk.describe_streams(group)


@conversation
def wrong_topologies(talk: StreamsGroupTalk, name: str) -> None:
    for index, parts in enumerate(
        (
            [],
            [part("0")],
            [part("0", "a b", name)],
            [part("0", "__consumer_offsets")],
            [part("0", name, writes=["__transaction_state", "__share_group_state"])],
            [part("0", name, state=[internal("log", 3)])],
            [part("0", name, reads=[internal("r")])],
            [part("0", reads=[internal("a")], writes=["b"]), part("1", reads=[internal("b")], writes=["a"])],
            [part("0", name, writes=["r"]), part("1", reads=[internal("r", -2)])],
            [part("0", name), part("0", name)],
            [part("0", name, together=[([4], [])])],
            [part("0", name, together=[([-1], [])])],
            [part("0", name, state=[internal("c"), internal("c")])],
        )
    ):
        talk.streams_join(f"{name}-{index}", "m-1", topology(*parts))
    regex = part("0", name)
    regex.source_topic_regex = ["a.*"]
    talk.streams_join(name, "m-1", topology(regex))
    talk.describe_streams(*(f"{name}-{index}" for index in range(13)))


@conversation
def topology_epochs(talk: StreamsGroupTalk, name: str) -> None:
    talk.create(f"{name}-2", 2)
    talk.streams_join(name, "m-1", plain(name, epoch=3))
    talk.streams_join(name, "m-2", plain(name, epoch=2))
    talk.streams(name, "m-2", active={})
    talk.streams_join(name, "m-3", plain(name, epoch=4))
    talk.streams_join(name, "m-3", plain(f"{name}-2", epoch=3))
    talk.streams_join(name, "m-3", plain(f"{name}-2", epoch=1))
    talk.streams_join(name, "m-1", plain(name, epoch=3))
    talk.describe_streams(name)
    # When everybody has left, another topology may come.
    for member in ("m-1", "m-2", "m-3"):
        talk.streams(name, member, epoch=-1)
    talk.describe_streams(name)
    talk.streams_join(name, "m-4", plain(f"{name}-2", epoch=4))
    talk.streams_join(name, "m-4", plain(name, epoch=3))
    talk.describe_streams(name)


@conversation
def wrong_streamers(talk: StreamsGroupTalk, name: str) -> None:
    talk.streams(name, "m-1", epoch=5)
    talk.streams(name, "m-1", epoch=-1)
    talk.streams(name, "m-1", epoch=-2)
    talk.streams(name, "m-1", epoch=-3)
    talk.streams_join(name, "", plain(name))
    talk.streams_join(name, "m" * 37, plain(name))
    talk.streams_join("", "m-1", plain(name))
    talk.streams_join(" ", "m-1", plain(name))
    talk.streams_join(name, "m-1", plain(name), rack_id="")
    talk.streams_join(name, "m-1", plain(name), instance_id="")
    talk.streams_join(name, "m-1", plain(name), instance_id="i")
    talk.streams(name, "m-1", epoch=-2, instance_id="i")
    talk.streams_join(name, "m-1", plain(name), rebalance_ms=-1)
    talk.streams_join(name, "m-1", plain(name), active={"0": [0]})
    talk.streams_join(name, "m-1", plain(name), standby={"0": [0]})
    talk.streams_join(name, "m-1", plain(name), warmup={"0": [0]})
    talk.streams(name, "m-1", epoch=0, rebalance_ms=LONG_MS, active={}, process="p")
    talk.streams(name, "m-1", epoch=1, topology=plain(name))
    talk.streams(name, "m-1", epoch=1, standby={})
    talk.streams_join(f"{name}-1", "m-1", plain(name), active=None)
    talk.streams_join(f"{name}-2", "m-1", plain(name), process=None)
    talk.streams_join(f"{name}-3", "m-1", plain(name), tags={}, endpoint=("", 0))
    talk.describe_streams(f"{name}-1", f"{name}-2", f"{name}-3")
    # Other kinds of members.
    talk.streams_join(name, "m-1", plain(name))
    talk.arrive(name, "c-1", name)
    talk.join(name, protocols={"range": subscription(name)})
    talk.heartbeat(name, "m-1", 1)
    talk.sync(name, "m-1", 1)
    talk.leave(name, ("m-1", None))
    other = f"{name}-c"
    talk.arrive(other, "c-1", name)
    talk.streams_join(other, "m-1", plain(name))
    talk.streams(other, "m-1", epoch=3)
    talk.streams(other, "m-1", epoch=-1)
    talk.describe_streams(other)
    classic = f"{name}-k"
    member = talk.enter(classic, protocols={"range": subscription(name)}).member_id
    talk.streams_join(classic, "m-1", plain(name))
    talk.leave(classic, (member, None))
    talk.streams_join(classic, "m-1", plain(name))
    talk.describe_streams(classic)


@conversation
def full_group(talk: StreamsGroupTalk, name: str) -> None:
    for member in ("m-1", "m-2", "m-3", "m-4", "m-5", "m-1"):
        talk.streams_join(name, member, plain(name))
    talk.describe_streams(name)


@conversation
def late_streamers(talk: StreamsGroupTalk, name: str) -> None:
    configure(talk, name, "streams.session.timeout.ms", "100")
    configure(talk, name, "streams.session.timeout.ms", "100000000")
    configure(talk, name, "streams.heartbeat.interval.ms", "300")
    # One does not give up what it should, and loses it with its membership.
    talk.streams_join(name, "m-1", plain(name), rebalance_ms=PASSING_MS)
    talk.streams(name, "m-1", active={"0": ALL})
    talk.streams_join(name, "m-2", plain(name))
    talk.streams(name, "m-1", active={"0": ALL})
    talk.until(name, "Assigning", 1)
    talk.streams(name, "m-1", active={"0": ALL})
    talk.streams(name, "m-2")
    talk.streams(name, "m-2", active={"0": ALL})
    talk.describe_streams(name)
    # The other one says nothing any more.
    configure(talk, name, "streams.session.timeout.ms", str(PASSING_MS))
    talk.streams(name, "m-2")
    talk.until(name, "Empty", 0)
    talk.streams(name, "m-2")
    talk.describe_streams(name)


@conversation
def delayed_assignment(talk: StreamsGroupTalk, name: str) -> None:
    # A delay that does not end while members come.
    configure(talk, name, "streams.initial.rebalance.delay.ms", str(LONG_MS))
    for member in THREE:
        talk.streams_join(name, member, plain(name))
    talk.streams(name, "m-2", active={})
    talk.describe_streams(name)
    # One that ends.
    group = f"{name}-over"
    configure(talk, group, "streams.initial.rebalance.delay.ms", str(PASSING_MS))
    talk.streams_join(group, "m-1", plain(name))
    talk.until_ready(group, "m-1")
    talk.describe_streams(group)
    # What ends it is an answer: all three are assigned to when their topic is there.
    group, late = f"{name}-late", f"{name}-later"
    for member in THREE:
        talk.streams_join(group, member, plain(late))
    talk.create(late, 4)
    for member in THREE:
        talk.streams(group, member)
    talk.describe_streams(group)


@conversation
def assignment_interval(talk: StreamsGroupTalk, name: str) -> None:
    configure(talk, name, "streams.assignment.interval.ms", str(LONG_MS))
    talk.streams_join(name, "m-1", plain(name))
    talk.streams_join(name, "m-2", plain(name))
    talk.streams(name, "m-1", active={"0": ALL})
    talk.describe_streams(name)
    configure(talk, name, "streams.assignment.interval.ms", "0")
    talk.streams(name, "m-2")
    talk.streams(name, "m-1", active={"0": ALL})
    talk.describe_streams(name)
    # One that passes; when it does is not told in the records of a group of this name.
    group = f"over-{name}"
    configure(talk, group, "streams.assignment.interval.ms", str(PASSING_MS))
    talk.streams_join(group, "m-1", plain(name))
    talk.streams_join(group, "m-2", plain(name), quiet=True)  # which may be told to wait, or not any more
    talk.until_ready(group, "m-2")
    talk.describe_streams(group)


@conversation
def shut_down(talk: StreamsGroupTalk, name: str) -> None:
    talk.streams_join(name, "m-1", plain(name))
    talk.streams_join(name, "m-2", plain(name))
    talk.streams(name, "m-1", shutdown_application=True)
    talk.streams(name, "m-2")
    talk.streams(name, "m-2", shutdown_application=True)
    talk.streams(name, "m-1", epoch=-1)
    talk.streams(name, "m-2")
    talk.streams(name, "m-2", epoch=-1, shutdown_application=True)
    talk.streams_join(name, "m-3", plain(name))


@conversation
def any_streamers(talk: StreamsGroupTalk, name: str) -> None:
    wander(talk, name, Random(1))


def wander(talk: StreamsGroupTalk, name: str, random: Random) -> None:
    """Members of a group that counts do what members may do, and some that they may not, in any order."""
    configure(talk, name, "streams.num.standby.replicas", "1")
    talk.streams_join(name, "a", counting(name))
    talk.until_topics(**{f"{name}-repartition": 4, f"{name}-changelog": 4})
    ready = talk.until_ready(name, "a")
    has = {"a": (tasks_of(ready.active_tasks), tasks_of(ready.standby_tasks))}
    processes = {"a": "p", "b": "q", "c": "p", "d": "r", "e": "q"}
    for _ in range(STEPS):
        member = random.choice(list(processes))
        step = random.random()
        if member not in has or step < 0.05:
            endpoint = random.choice([None, (member, ord(member))])
            response = talk.streams_join(name, member, counting(name), process=processes[member], endpoint=endpoint)
            if response.error_code:
                continue
            has[member] = ({}, {})
        elif step < 0.15:
            talk.streams(name, member, epoch=-1)
            del has[member]
            continue
        elif step < 0.2:
            response = talk.streams(name, member, random.choice([-2, -1, 1]), active=has[member][0])
        elif step < 0.25:  # something of what it has is not told
            active, standby = has[member]
            some = {name: partitions[1:] for name, partitions in active.items()}
            response = talk.streams(name, member, active=some, standby=standby)
        elif step < 0.4:
            response = talk.streams(name, member)
        elif step < 0.45:
            epoch = talk.epoch(name, member) - random.choice([0, 0, 1])
            talk.commit(name, {(name, random.choice(ALL)): random.randrange(99)}, member=member, generation=epoch)
            continue
        elif step < 0.5:
            talk.describe_streams(name)
            continue
        elif step < 0.53:
            configure(talk, name, "streams.num.standby.replicas", random.choice("0122"))
            continue
        elif step < 0.56:
            processes[member] = random.choice("pqr")
            response = talk.streams(name, member, process=processes[member], endpoint_epoch=random.randrange(9))
        else:
            active, standby = has[member]
            response = talk.streams(name, member, active=active, standby=standby)
        if response.error_code == 0 and response.active_tasks is not None:
            has[member] = (tasks_of(response.active_tasks), tasks_of(response.standby_tasks))
    talk.describe_streams(name)
