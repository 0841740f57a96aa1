"""OffsetDelete (47): deleted offsets, subscribed topics, unknown partitions and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k47_offset_delete as k47

from .group_broker import GROUP, TOPIC, GroupBroker


def delete(broker: GroupBroker, *partitions: int, group: str = GROUP) -> tuple[ErrorCode, dict[int, ErrorCode]]:
    topic = k47.OffsetDeleteRequestTopic(
        name=TOPIC, partitions=[k47.OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
    )
    response = broker.ask(k47.OffsetDeleteRequest(group_id=group, topics=[topic]))
    codes = {
        partition.partition_index: ErrorCode(partition.error_code)
        for result in response.topics
        for partition in result.partitions
    }
    return ErrorCode(response.error_code), codes


def test_offset_of_a_simple_group_is_deleted(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.commit(8, partition=1)
    assert delete(group_broker, 0) == (ErrorCode.NONE, {0: ErrorCode.NONE})
    assert group_broker.committed() == {(TOPIC, 1): 8}


def test_unknown_partition_fails_alone(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    assert delete(group_broker, 0, 9)[1] == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0: ErrorCode.NONE}
    assert group_broker.committed() == {}


def test_offset_of_a_subscribed_topic_is_kept(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.consumer_member()
    assert delete(group_broker, 0) == (ErrorCode.NONE, {0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
    assert group_broker.committed() == {(TOPIC, 0): 7}


@pytest.mark.parametrize(("group", "code"), [("", ErrorCode.INVALID_GROUP_ID), ("none", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_unknown_group_fails(group_broker: GroupBroker, group: str, code: ErrorCode) -> None:
    assert delete(group_broker, 0, group=group)[0] is code


def test_denied_topic_is_kept(group_broker: GroupBroker) -> None:
    group_broker.commit(7)
    group_broker.deny(TOPIC)
    assert delete(group_broker, 0)[1] == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    group_broker.deny(GROUP)
    assert delete(group_broker, 0)[0] is ErrorCode.GROUP_AUTHORIZATION_FAILED
