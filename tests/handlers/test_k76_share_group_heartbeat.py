"""ShareGroupHeartbeat (76): joining, leaving, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k76_share_group_heartbeat as k76

from .group_broker import GROUP, MEMBER_ID, TOPIC, GroupBroker


def heartbeat(broker: GroupBroker, epoch: int = 0, **fields: Any) -> Any:
    joining = {"subscribed_topic_names": [TOPIC]} if epoch == 0 else {}
    request = k76.ShareGroupHeartbeatRequest(
        **{"group_id": GROUP, "member_id": MEMBER_ID, "member_epoch": epoch, **joining, **fields}
    )
    return broker.ask(request)


def test_member_receives_partitions_once_they_are_initialized(group_broker: GroupBroker) -> None:
    joined = heartbeat(group_broker)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (ErrorCode.NONE, MEMBER_ID, 2)
    group_broker.pause()
    later = heartbeat(group_broker, joined.member_epoch)
    assert later.member_epoch == 3
    (topic,) = later.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (group_broker.topic_id(), [0, 1])


def test_two_members_share_the_same_partitions(group_broker: GroupBroker) -> None:
    other = "BBBBBBBBBBBBBBBBBBBBBB"
    heartbeat(group_broker)
    group_broker.pause()
    for member_id in (other, "CCCCCCCCCCCCCCCCCCCCCC"):
        heartbeat(group_broker, member_id=member_id)
    assignments = [
        heartbeat(group_broker, member_id=member_id).assignment.topic_partitions
        for member_id in (MEMBER_ID, other, "CCCCCCCCCCCCCCCCCCCCCC")
    ]
    partitions = [index for topics in assignments for topic in topics for index in topic.partitions]
    assert set(partitions) == {0, 1}
    assert len(partitions) > len(set(partitions))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 9}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"epoch": 1, "group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"epoch": 1, "member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_invalid_heartbeat_fails(group_broker: GroupBroker, fields: dict[str, Any], code: ErrorCode) -> None:
    heartbeat(group_broker)
    assert heartbeat(group_broker, **fields).error_code == code


def test_member_that_left_is_unknown(group_broker: GroupBroker) -> None:
    heartbeat(group_broker)
    left = heartbeat(group_broker, -1)
    assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)
    assert heartbeat(group_broker, 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("denied", "code"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_unauthorized_heartbeat_fails(group_broker: GroupBroker, denied: str, code: ErrorCode) -> None:
    group_broker.deny(denied)
    assert heartbeat(group_broker).error_code == code
