"""DeleteShareGroupOffsets (92): deleted state, groups with members, unknown topics and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode

from .group_broker import GROUP, TOPIC, GroupBroker
from .share_offset_requests import alter, delete, start_offsets


def codes(response: object) -> dict[str, ErrorCode]:
    return {topic.topic_name: ErrorCode(topic.error_code) for topic in response.responses}  # type: ignore[attr-defined]


def test_state_of_all_partitions_of_a_topic_is_deleted(group_broker: GroupBroker) -> None:
    alter(group_broker, {0: 7, 1: 8})
    assert codes(delete(group_broker, TOPIC)) == {TOPIC: ErrorCode.NONE}
    assert start_offsets(group_broker) == {}
    assert start_offsets(group_broker, 0) == {(TOPIC, 0): -1}


def test_topic_without_state_fails_alone(group_broker: GroupBroker) -> None:
    group_broker.create("u")
    alter(group_broker, {0: 7})
    assert codes(delete(group_broker, "u", TOPIC, "none")) == {
        "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TOPIC: ErrorCode.NONE,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize(("group", "code"), [("", ErrorCode.INVALID_GROUP_ID), ("none", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_unknown_group_fails(group_broker: GroupBroker, group: str, code: ErrorCode) -> None:
    assert delete(group_broker, TOPIC, group=group).error_code == code


def test_group_with_members_fails(group_broker: GroupBroker) -> None:
    group_broker.share_member()
    assert delete(group_broker, TOPIC).error_code == ErrorCode.NON_EMPTY_GROUP


def test_denied_group_and_topic_fail(group_broker: GroupBroker) -> None:
    alter(group_broker, {0: 7})
    group_broker.deny(GROUP)
    assert delete(group_broker, TOPIC).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    group_broker.deny(TOPIC)
    assert codes(delete(group_broker, TOPIC)) == {TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    group_broker.deny()
    assert start_offsets(group_broker) == {(TOPIC, 0): 7}
