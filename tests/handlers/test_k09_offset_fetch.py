"""OffsetFetch (9): every version, all topics, several groups and authorization."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.uuids import ZERO_UUID, Uuid

from .group_broker import GROUP, TOPIC, UNKNOWN_ID, GroupBroker, versions


def group_request(topic_id: Uuid = ZERO_UUID, group: str = GROUP) -> k09.OffsetFetchRequestGroup:
    topic = k09.OffsetFetchRequestTopics(name=TOPIC, topic_id=topic_id, partition_indexes=[0, 1])
    return k09.OffsetFetchRequestGroup(group_id=group, topics=[topic])


def offsets(topics: Any) -> dict[int, int]:
    return {partition.partition_index: partition.committed_offset for topic in topics for partition in topic.partitions}


@pytest.mark.parametrize("version", versions(9))
def test_fetch_returns_committed_offsets_in_every_version(group_broker: GroupBroker, version: int) -> None:
    group_broker.commit(7)
    if version >= 8:
        group = group_request(group_broker.topic_id() if version >= 10 else ZERO_UUID)
        (fetched,) = group_broker.ask(k09.OffsetFetchRequest(groups=[group]), version).groups
    else:
        topic = k09.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0, 1])
        fetched = group_broker.ask(k09.OffsetFetchRequest(group_id=GROUP, topics=[topic]), version)
    assert (fetched.error_code, offsets(fetched.topics)) == (ErrorCode.NONE, {0: 7, 1: -1})


@pytest.mark.parametrize("version", versions(9, 2))
def test_fetch_without_topics_returns_all_offsets(group_broker: GroupBroker, version: int) -> None:
    group_broker.commit(7)
    if version >= 8:
        group = k09.OffsetFetchRequestGroup(group_id=GROUP, topics=None)
        (fetched,) = group_broker.ask(k09.OffsetFetchRequest(groups=[group]), version).groups
    else:
        fetched = group_broker.ask(k09.OffsetFetchRequest(group_id=GROUP, topics=None), version)
    assert offsets(fetched.topics) == {0: 7}


def test_several_groups_are_fetched_in_order(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.commit(8, group="h")
    groups = [group_request(group=name) for name in ("h", GROUP, "none")]
    fetched = group_broker.ask(k09.OffsetFetchRequest(groups=groups), 9).groups
    assert [(group.group_id, offsets(group.topics)[0]) for group in fetched] == [("h", 8), (GROUP, 7), ("none", -1)]


def test_unknown_topic_id_fails(group_broker: GroupBroker) -> None:
    (group,) = group_broker.ask(k09.OffsetFetchRequest(groups=[group_request(UNKNOWN_ID)]), 10).groups
    codes = [partition.error_code for topic in group.topics for partition in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID] * 2


def test_denied_group_fails_alone(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.deny("h")
    groups = [group_request(group=name) for name in (GROUP, "h")]
    fetched = group_broker.ask(k09.OffsetFetchRequest(groups=groups), 9).groups
    assert [group.error_code for group in fetched] == [ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED]


def test_denied_topic_fails_if_requested_and_is_hidden_if_not(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.deny(TOPIC)
    (group,) = group_broker.ask(k09.OffsetFetchRequest(groups=[group_request()]), 9).groups
    assert {partition.error_code for partition in group.topics[0].partitions} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert group_broker.committed() == {}
