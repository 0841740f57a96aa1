"""DescribeShareGroupOffsets (90): start offsets, lag, unknown topics and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode

from .group_broker import GROUP, TOPIC, GroupBroker, versions
from .share_offset_requests import alter, describe, start_offsets


@pytest.mark.parametrize("version", versions(90))
def test_start_offset_is_described_and_its_lag_from_version_1(group_broker: GroupBroker, version: int) -> None:
    alter(group_broker, {0: 0})
    (topic,) = describe(group_broker, 0, version=version).topics
    (partition,) = topic.partitions
    assert (topic.topic_id, partition.error_code, partition.start_offset) == (group_broker.topic_id(), 0, 0)
    assert partition.lag == (0 if version >= 1 else -1)


def test_without_topics_all_initialized_partitions_are_described(group_broker: GroupBroker) -> None:
    alter(group_broker, {1: 0})
    assert start_offsets(group_broker) == {(TOPIC, 1): 0}


def test_partition_without_state_has_no_start_offset(group_broker: GroupBroker) -> None:
    assert start_offsets(group_broker, 0) == {(TOPIC, 0): -1}


def test_unknown_topic_is_no_error(group_broker: GroupBroker) -> None:
    (topic,) = describe(group_broker, 0, topic="none").topics
    assert [(partition.start_offset, partition.error_code) for partition in topic.partitions] == [(-1, ErrorCode.NONE)]


def test_denied_group_and_topic_fail(group_broker: GroupBroker) -> None:
    alter(group_broker, {0: 0})
    group_broker.deny(GROUP)
    assert describe(group_broker, 0).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    group_broker.deny(TOPIC)
    (topic,) = describe(group_broker, 0).topics
    assert [partition.error_code for partition in topic.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert describe(group_broker).topics == []
