"""JoinGroup (11): every version, MEMBER_ID_REQUIRED, invalid requests and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k11_join_group as k11

from .group_broker import GROUP, GroupBroker, join_request, versions


@pytest.mark.parametrize("version", versions(11))
def test_first_member_leads_generation_one_in_every_version(group_broker: GroupBroker, version: int) -> None:
    joined = group_broker.join(version=version)
    if version >= 4:
        assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
        joined = group_broker.join(joined.member_id, version=version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.NONE, 1, "range")
    assert joined.leader == joined.member_id
    assert [member.member_id for member in joined.members] == [joined.member_id]


@pytest.mark.parametrize("version", versions(11, 4))
def test_member_id_required_carries_the_id_to_join_with(group_broker: GroupBroker, version: int) -> None:
    joined = group_broker.join(version=version)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    assert joined.member_id.startswith("side-by-side-")


@pytest.mark.parametrize(("version", "protocol"), [(6, ""), (7, None)])
def test_failed_join_has_a_null_protocol_from_version_7(
    group_broker: GroupBroker, version: int, protocol: str | None
) -> None:
    failed = group_broker.join("unknown", version=version)
    assert (failed.error_code, failed.protocol_name) == (ErrorCode.UNKNOWN_MEMBER_ID, protocol)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_invalid_join_fails(group_broker: GroupBroker, fields: dict[str, object], code: ErrorCode) -> None:
    assert group_broker.join(**fields).error_code == code


def test_join_waits_for_the_other_member(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    wait_for_second = group_broker.start(join_request(), k11.JoinGroupResponse, 3)
    rejoined = group_broker.join(member_id)
    assert (rejoined.generation_id, len(rejoined.members)) == (2, 2)
    second = wait_for_second()
    assert (second.generation_id, second.leader, second.members) == (2, member_id, [])


def test_denied_group_fails(group_broker: GroupBroker) -> None:
    group_broker.deny(GROUP)
    assert group_broker.join().error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
