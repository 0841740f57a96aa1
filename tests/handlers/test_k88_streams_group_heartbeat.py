"""StreamsGroupHeartbeat (88): creation of internal topics, and invalid topologies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.groups.streams.topology import StatusCode
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from tests.conversations.local_talk import LocalTalk
from tests.groups.streams.members import joining, repartitioned, tasks_of, topology

if TYPE_CHECKING:
    from collections.abc import Iterator

WITHOUT_DELAYS = {"group.streams.initial.rebalance.delay.ms": "0", "group.streams.assignment.interval.ms": "0"}


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    local = LocalTalk(WITHOUT_DELAYS)
    local.create("t", 3)
    local.create("__consumer_offsets")
    yield local
    local.close()


def ask(local: LocalTalk, request: k88.StreamsGroupHeartbeatRequest) -> k88.StreamsGroupHeartbeatResponse:
    response: k88.StreamsGroupHeartbeatResponse = local.quietly(request, k88.StreamsGroupHeartbeatResponse)
    return response


def heartbeat(epoch: int) -> k88.StreamsGroupHeartbeatRequest:
    return k88.StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)


def statuses(response: k88.StreamsGroupHeartbeatResponse) -> list[tuple[int, str]]:
    return [(status.status_code, status.status_detail) for status in response.status or ()]


def test_missing_internal_topics_are_created(local: LocalTalk) -> None:
    application = repartitioned("t", "g-x-repartition", 2)
    store = k88.TopicInfo(
        name="g-s-changelog", topic_configs=[k88.KeyValue(key="cleanup.policy", value="compact")], replication_factor=1
    )
    application.subtopologies[1].state_changelog_topics = [store]
    first = ask(local, joining(topology=application))
    assert statuses(first) == [
        (StatusCode.MISSING_INTERNAL_TOPICS, "Internal topics are missing: g-s-changelog, g-x-repartition")
    ]
    image = local.runtime.image
    assert {name: len(image.topic(name).partitions) for name in ("g-x-repartition", "g-s-changelog")} == {
        "g-x-repartition": 2,
        "g-s-changelog": 2,
    }
    second = ask(local, heartbeat(first.member_epoch))
    assert (tasks_of(second.active_tasks), second.status) == ({"0": [0, 1, 2], "1": [0, 1]}, [])


def test_failed_creation_is_reported_and_retried(local: LocalTalk) -> None:
    application = topology("t", changelogs=("g-s-changelog",))
    application.subtopologies[0].state_changelog_topics[0].replication_factor = 9
    joined = ask(local, joining(topology=application))
    (before,) = [detail for code, detail in statuses(joined) if code == StatusCode.MISSING_INTERNAL_TOPICS]
    assert before == "Internal topics are missing: g-s-changelog"
    (after,) = [detail for _, detail in statuses(ask(local, heartbeat(joined.member_epoch)))]
    assert after.startswith(f"{before}; Creation failed: g-s-changelog (")
    local.world.clock.advance(11)
    assert statuses(ask(local, heartbeat(joined.member_epoch))) == [(StatusCode.MISSING_INTERNAL_TOPICS, before)]


def test_creation_of_too_many_partitions_is_refused(local: LocalTalk) -> None:
    names = tuple(f"g-{number}-changelog" for number in range(3_334))
    joined = ask(local, joining(topology=topology("t", changelogs=names)))
    assert not any(name in local.runtime.image.topic_ids for name in names), "3 partitions each: more than 10,000"
    (after,) = [detail for _, detail in statuses(ask(local, heartbeat(joined.member_epoch)))]
    assert "(Excessively large number of partitions per request.)" in after


def test_internal_and_invalid_topic_names_are_refused(local: LocalTalk) -> None:
    own = ask(local, joining(topology=topology("__consumer_offsets")))
    assert (own.error_code, own.error_message) == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
        "Use of Kafka internal topics __consumer_offsets in a Kafka Streams topology is prohibited.",
    )
    wrong = ask(local, joining(topology=topology("a b", "..")))
    assert (wrong.error_code, wrong.error_message) == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY,
        "Topic names a b,.. are not valid topic names.",
    )
