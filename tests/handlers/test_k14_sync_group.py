"""SyncGroup (14): every version, the leader's assignment, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k14_sync_group as k14

from .group_broker import GROUP, GroupBroker, join_request, versions


def sync_request(sender: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> k14.SyncGroupRequest:
    return k14.SyncGroupRequest(
        **{
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": sender,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [
                k14.SyncGroupRequestAssignment(member_id=assigned, assignment=assignment)
                for assigned, assignment in (assignments or {}).items()
            ],
            **fields,
        }
    )


@pytest.mark.parametrize("version", versions(14))
def test_leader_receives_its_own_assignment_in_every_version(group_broker: GroupBroker, version: int) -> None:
    member_id = group_broker.join().member_id
    response = group_broker.ask(sync_request(member_id, {member_id: b"assigned"}), version)
    assert (response.error_code, response.assignment) == (ErrorCode.NONE, b"assigned")


def test_follower_waits_for_the_leader(group_broker: GroupBroker) -> None:
    leader = group_broker.stable_member()
    wait_for_join = group_broker.start(join_request(), k11.JoinGroupResponse, 3)
    group_broker.join(leader)
    follower = wait_for_join().member_id
    wait_for_sync = group_broker.start(sync_request(follower, generation_id=2), k14.SyncGroupResponse, 5)
    group_broker.ask(sync_request(leader, {leader: b"1", follower: b"2"}, generation_id=2))
    assert wait_for_sync().assignment == b"2"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_sync_fails(group_broker: GroupBroker, fields: dict[str, Any], code: ErrorCode) -> None:
    member_id = group_broker.stable_member()
    assert group_broker.ask(sync_request(member_id, **fields)).error_code == code


def test_denied_group_fails(group_broker: GroupBroker) -> None:
    group_broker.deny(GROUP)
    assert group_broker.ask(sync_request("m")).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
