"""DescribeGroups (15): every version, unknown groups and authorization."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k15_describe_groups as k15

from .group_broker import GROUP, GroupBroker, versions

NO_OPERATIONS = -(2**31)


@pytest.mark.parametrize("version", versions(15))
def test_stable_group_is_described_in_every_version(group_broker: GroupBroker, version: int) -> None:
    member_id = group_broker.stable_member()
    (group,) = group_broker.ask(k15.DescribeGroupsRequest(groups=[GROUP]), version).groups
    assert (group.error_code, group.group_state, group.protocol_data) == (ErrorCode.NONE, "Stable", "range")
    assert [(member.member_id, member.member_assignment) for member in group.members] == [(member_id, b"assigned")]
    assert [(member.client_id, member.client_host) for member in group.members] == [("side-by-side", "/127.0.0.1")]


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_unknown_group_is_dead(group_broker: GroupBroker, version: int, code: ErrorCode) -> None:
    (group,) = group_broker.ask(k15.DescribeGroupsRequest(groups=["none"]), version).groups
    assert (group.group_state, group.error_code) == ("Dead", code)


def test_consumer_group_is_not_a_classic_group(group_broker: GroupBroker) -> None:
    group_broker.consumer_member()
    (group,) = group_broker.ask(k15.DescribeGroupsRequest(groups=[GROUP])).groups
    assert (group.error_code, group.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {GROUP} is not a classic group.",
    )


@pytest.mark.parametrize("included", [False, True])
def test_authorized_operations_are_included_on_request(group_broker: GroupBroker, included: bool) -> None:
    group_broker.stable_member()
    request = k15.DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=included)
    (group,) = group_broker.ask(request).groups
    assert (group.authorized_operations != NO_OPERATIONS) == included


def test_denied_group_fails_alone(group_broker: GroupBroker) -> None:
    group_broker.stable_member()
    group_broker.deny("h")
    groups = group_broker.ask(k15.DescribeGroupsRequest(groups=["h", GROUP])).groups
    assert {group.group_id: group.error_code for group in groups} == {
        "h": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        GROUP: ErrorCode.NONE,
    }
