"""ShareGroupDescribe (77): members with their assignments, unknown groups and authorization."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k76_share_group_heartbeat as k76
from ottla.protocol.messages import k77_share_group_describe as k77

from .group_broker import GROUP, MEMBER_ID, TOPIC, GroupBroker


def describe(broker: GroupBroker, group: str = GROUP) -> Any:
    (described,) = broker.ask(k77.ShareGroupDescribeRequest(group_ids=[group])).groups
    return described


def assigned_member(broker: GroupBroker) -> None:
    """Add a member to a share group and wait until it has its partitions."""
    epoch = broker.share_member().member_epoch
    broker.pause()
    request = k76.ShareGroupHeartbeatRequest(group_id=GROUP, member_id=MEMBER_ID, member_epoch=epoch)
    assert broker.ask(request).assignment is not None


def test_group_is_described_with_its_members_assignment(group_broker: GroupBroker) -> None:
    assigned_member(group_broker)
    group = describe(group_broker)
    assert (group.error_code, group.group_state, group.assignor_name) == (ErrorCode.NONE, "Stable", "simple")
    (member,) = group.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == (MEMBER_ID, 3, [TOPIC])
    assert [(topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions] == [(TOPIC, [0, 1])]


def test_group_without_members_is_empty(group_broker: GroupBroker) -> None:
    group_broker.share_member()
    group_broker.leave_share_group()
    group = describe(group_broker)
    assert (group.group_state, group.members) == ("Empty", [])


@pytest.mark.parametrize(("group", "code"), [("none", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)])
def test_unknown_group_fails(group_broker: GroupBroker, group: str, code: ErrorCode) -> None:
    assert describe(group_broker, group).error_code == code


def test_consumer_group_is_not_a_share_group(group_broker: GroupBroker) -> None:
    group_broker.consumer_member()
    assert describe(group_broker).error_message == f"Group {GROUP} is not a share group."


@pytest.mark.parametrize(
    ("denied", "code"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_unauthorized_describe_fails(group_broker: GroupBroker, denied: str, code: ErrorCode) -> None:
    assigned_member(group_broker)
    group_broker.deny(denied)
    group = describe(group_broker)
    assert (group.error_code, group.members) == (code, [])
