"""Members continue after their broker was killed during a rebalance, on it and on the other broker.

What was promised in a record holds: the last complete generation, each member's epoch and partitions, and the offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k09_offset_fetch as k09
from tests.conversations.side_by_side import Talk
from tests.conversations.streams.talk import StreamsGroupTalk, internal, part, tasks_of, topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.consumer.session.timeout.ms": "600000",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.max.session.timeout.ms": "600000",
    "group.streams.session.timeout.ms": "600000",
}
COUNT = topology(
    part("0", "news", writes=["count-repartition"]),
    part("1", reads=[internal("count-repartition")], state=[internal("count-changelog", cleanup_policy="compact")]),
)
EVERYTHING = [0, 1, 2, 3]
SLOW = {"session_ms": 600_000, "rebalance_ms": 600_000}


def connect(node: OttlaNode | ApacheKafka, known: StreamsGroupTalk | None = None) -> StreamsGroupTalk:
    """Talk to a broker that has just started, about what was said to the one before."""
    talk = StreamsGroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda: ())
    talk.find_coordinators()
    if known is not None:
        talk._epochs, talk._settled = known._epochs, known._settled
        talk.talk.wait_for("news", 4)
        talk.learn_topics()
        talk.settle()
        known.talk.close()
    return talk


def offsets(talk: StreamsGroupTalk, group: str) -> dict[int, int]:
    expected = k09.OffsetFetchRequestGroup(group_id=group, topics=None)
    request = k09.OffsetFetchRequest(groups=[expected], require_stable=True)
    response = talk.patiently(lambda: talk.talk.quietly(request, k09.OffsetFetchResponse, version=9))
    return {
        partition.partition_index: partition.committed_offset
        for topic in response.groups[0].topics
        for partition in topic.partitions
    }


def last(talk: StreamsGroupTalk) -> dict[str, object]:
    return list(talk.transcript.values())[-1]


@pytest.mark.parametrize("kafka_first", [False, True], ids=["ottla first", "kafka first"])
def test_members_continue_after_kill_during_rebalance(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    tmp_path: Path,
    kafka_first: bool,
) -> None:
    data = tmp_path / "data"
    ottla, kafka = ottla_factory(data, settings=SETTINGS), apache_kafka_factory(data, settings=SETTINGS)
    one, other = (kafka, ottla) if kafka_first else (ottla, kafka)

    one.start()
    talk = connect(one)
    talk.create("news", 4)
    # A classic group: the first member has a generation, the second waits for it to join again.
    first = talk.enter("classic", **SLOW).member_id
    talk.sync("classic", first, 1, {first: b"everything"})
    talk.commit("classic", {("news", 0): 11}, member=first, generation=1)
    second = talk.join("classic", **SLOW).member_id
    talk.send_join("classic", second, **SLOW)
    talk.until("classic", "PreparingRebalance", 2)
    talk.commit("classic", {("news", 1): 12}, member=first, generation=1)
    # A consumer group: the first member has been told to give up half, and has not done so.
    talk.arrive("consumer", "m-1", "news", rebalance_ms=600_000)
    talk.beat("consumer", "m-1", owned={"news": EVERYTHING})
    talk.commit("consumer", {("news", 0): 21}, member="m-1", generation=talk.epoch("consumer", "m-1"))
    talk.arrive("consumer", "m-2", "news", rebalance_ms=600_000)
    response = talk.beat("consumer", "m-1", owned={"news": EVERYTHING})
    assert response.assignment is not None
    kept = response.assignment.topic_partitions[0].partitions
    assert len(kept) == 2
    # A streams group, whose first member has been told to give up half of its tasks.
    talk.streams_join("streams", "m-1", COUNT, rebalance_ms=600_000)
    talk.until_topics(**{"count-repartition": 4, "count-changelog": 4})
    talk.until_ready("streams", "m-1")
    talk.streams("streams", "m-1", active={"0": EVERYTHING, "1": EVERYTHING})
    talk.commit("streams", {("news", 0): 31}, member="m-1", generation=talk.epoch("streams", "m-1"))
    talk.streams_join("streams", "m-2", COUNT, rebalance_ms=600_000)
    left = tasks_of(talk.streams("streams", "m-1", active={"0": EVERYTHING, "1": EVERYTHING}).active_tasks)
    assert {name: len(partitions) for name, partitions in left.items()} == {"0": 2, "1": 2}
    one.kill()

    for turn, node in enumerate((one, other)):
        node.start()
        talk = connect(node, talk)
        assert offsets(talk, "classic") == {0: 11 + turn, 1: 12}
        assert offsets(talk, "consumer") == {0: 21 + turn}
        # The rebalance never happened; the member is in its generation, and commits in it.
        talk.heartbeat("classic", first, 1)
        assert last(talk) == {"error_code": "NONE"}
        talk.commit("classic", {("news", 0): 12 + turn}, member=first, generation=1)
        talk.heartbeat("classic", second, 1)
        assert last(talk) == {"error_code": "UNKNOWN_MEMBER_ID"}
        # The new owner still waits, and the old one may still commit.
        reply = talk.beat("consumer", "m-2", owned={})
        provided = reply.assignment and reply.assignment.topic_partitions
        assert (reply.error_code, provided) in ((0, None), (0, [])), reply
        talk.commit("consumer", {("news", 0): 22 + turn}, member="m-1", generation=talk.epoch("consumer", "m-1"))
        assert offsets(talk, "consumer") == {0: 22 + turn}
        waiting_member = talk.streams("streams", "m-2", active={})
        messages = (waiting_member.error_code, waiting_member.status, waiting_member.active_tasks)
        assert messages == (0, [], None), waiting_member
        assert offsets(talk, "streams") == {0: 31 + turn}
        talk.commit("streams", {("news", 0): 32 + turn}, member="m-1", generation=talk.epoch("streams", "m-1"))
        assert offsets(talk, "streams") == {0: 32 + turn}
        if node is one:
            talk.talk.close()
            node.kill()

    # In the other broker the rebalances come to their end.
    assert talk.beat("consumer", "m-1", owned={"news": kept}).error_code == ErrorCode.NONE
    reply = talk.beat("consumer", "m-2", owned={})
    assert reply.assignment is not None
    provided = reply.assignment.topic_partitions[0].partitions
    assert sorted([*kept, *provided]) == EVERYTHING
    epoch = talk.epoch("streams", "m-1")
    assert talk.streams("streams", "m-1", active=left).member_epoch == epoch + 1
    taken = tasks_of(talk.streams("streams", "m-2", active={}).active_tasks)
    assert {name: sorted([*left[name], *taken[name]]) for name in taken} == {"0": EVERYTHING, "1": EVERYTHING}
    talk.streams("streams", "m-2", active=taken)
    assert talk.described("streams") == ("Stable", 2)
    third = talk.join("classic", **SLOW).member_id
    waiting = talk.send_join("classic", third, **SLOW)
    talk.until("classic", "PreparingRebalance", 2)
    generation = talk.join("classic", first, **SLOW).generation_id
    assert talk.got(waiting).generation_id == generation
    talk.sync("classic", first, generation, {first: b"half", third: b"half"})
    talk.until("classic", "Stable", 2)
    talk.talk.close()
    other.stop()
    assert other.complaints() == []
