"""LeaveGroup (13): every version, several members, and errors of the request or of a member."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k13_leave_group as k13

from .group_broker import GROUP, GroupBroker, versions


def leave(broker: GroupBroker, *member_ids: str, group: str = GROUP, version: int = 5) -> Any:
    if version < 3:
        return broker.ask(k13.LeaveGroupRequest(group_id=group, member_id=member_ids[0]), version)
    members = [k13.MemberIdentity(member_id=member_id) for member_id in member_ids]
    return broker.ask(k13.LeaveGroupRequest(group_id=group, members=members), version)


@pytest.mark.parametrize("version", versions(13))
def test_member_leaves_in_every_version(group_broker: GroupBroker, version: int) -> None:
    member_id = group_broker.stable_member()
    response = leave(group_broker, member_id, version=version)
    assert response.error_code == ErrorCode.NONE
    assert [member.error_code for member in response.members] == ([ErrorCode.NONE] if version >= 3 else [])
    again = group_broker.join()
    assert (again.generation_id, len(again.members)) == (3, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_error_of_the_only_member_is_the_error_of_the_response(group_broker: GroupBroker, version: int) -> None:
    group_broker.stable_member()
    assert leave(group_broker, "unknown", version=version).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_each_member_has_its_own_error(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    response = leave(group_broker, "unknown", member_id)
    codes = [member.error_code for member in response.members]
    assert (response.error_code, codes) == (ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE])


def test_static_member_leaves_by_its_instance_id(group_broker: GroupBroker) -> None:
    joined = group_broker.join(version=5, group_instance_id="i")
    assert joined.error_code == ErrorCode.NONE
    identity = k13.MemberIdentity(member_id="", group_instance_id="i")
    response = group_broker.ask(k13.LeaveGroupRequest(group_id=GROUP, members=[identity]))
    assert [(member.group_instance_id, member.error_code) for member in response.members] == [("i", ErrorCode.NONE)]


@pytest.mark.parametrize(
    ("group", "code", "member_codes"),
    [("", ErrorCode.INVALID_GROUP_ID, []), ("none", ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])],
)
def test_unknown_group_is_the_error_of_its_members(
    group_broker: GroupBroker, group: str, code: ErrorCode, member_codes: list[ErrorCode]
) -> None:
    response = leave(group_broker, "m", group=group)
    assert (response.error_code, [member.error_code for member in response.members]) == (code, member_codes)


def test_denied_group_fails(group_broker: GroupBroker) -> None:
    group_broker.deny(GROUP)
    assert leave(group_broker, "m").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
