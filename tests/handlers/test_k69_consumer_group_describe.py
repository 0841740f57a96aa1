"""ConsumerGroupDescribe (69): members with their assignments, unknown groups and authorization."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k69_consumer_group_describe as k69

from .group_broker import GROUP, MEMBER_ID, TOPIC, GroupBroker, versions


def describe(broker: GroupBroker, group: str = GROUP, version: int = 1, **fields: Any) -> Any:
    (described,) = broker.ask(k69.ConsumerGroupDescribeRequest(group_ids=[group], **fields), version).groups
    return described


@pytest.mark.parametrize("version", versions(69))
def test_group_is_described_with_its_members_assignment(group_broker: GroupBroker, version: int) -> None:
    group_broker.consumer_member()
    group = describe(group_broker, version=version)
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Stable", 2, 2)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.client_host) == (MEMBER_ID, 2, "/127.0.0.1")
    for assignment in (member.assignment, member.target_assignment):
        assert [(topic.topic_name, topic.partitions) for topic in assignment.topic_partitions] == [(TOPIC, [0, 1])]
    if version >= 1:
        assert member.member_type == 1


@pytest.mark.parametrize(("group", "code"), [("none", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)])
def test_unknown_group_fails(group_broker: GroupBroker, group: str, code: ErrorCode) -> None:
    assert describe(group_broker, group).error_code == code


def test_classic_group_is_not_a_consumer_group(group_broker: GroupBroker) -> None:
    group_broker.stable_member()
    group = describe(group_broker)
    assert (group.error_code, group.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {GROUP} is not a consumer group.",
    )


def test_denied_group_fails(group_broker: GroupBroker) -> None:
    group_broker.consumer_member()
    group_broker.deny(GROUP)
    assert describe(group_broker).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_group_with_a_denied_topic_shows_nothing_but_the_error(group_broker: GroupBroker) -> None:
    group_broker.consumer_member()
    group_broker.deny(TOPIC)
    group = describe(group_broker)
    assert (group.error_code, group.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
