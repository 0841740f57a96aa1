"""Heartbeat (12): every version, sessions, unknown members and generations."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k12_heartbeat as k12

from .group_broker import GROUP, GroupBroker, join_request, versions


def beat(broker: GroupBroker, member_id: str, generation: int = 1, *, version: int = 4, **fields: Any) -> ErrorCode:
    request = k12.HeartbeatRequest(**{"group_id": GROUP, "generation_id": generation, "member_id": member_id, **fields})
    return ErrorCode(broker.ask(request, version).error_code)


@pytest.mark.parametrize("version", versions(12))
def test_member_of_the_generation_is_accepted_in_every_version(group_broker: GroupBroker, version: int) -> None:
    assert beat(group_broker, group_broker.stable_member(), version=version) is ErrorCode.NONE


def test_heartbeats_keep_a_session_alive_and_silence_ends_it(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    for _ in range(3):
        group_broker.advance(500)
        assert beat(group_broker, member_id) is ErrorCode.NONE
    group_broker.advance(601)
    assert beat(group_broker, member_id) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_reports_a_rebalance(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    group_broker.start(join_request(), k11.JoinGroupResponse, 3)
    assert beat(group_broker, member_id) is ErrorCode.REBALANCE_IN_PROGRESS


def test_unknown_generation_member_and_group_fail(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    assert beat(group_broker, member_id, 7) is ErrorCode.ILLEGAL_GENERATION
    assert beat(group_broker, "unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(group_broker, member_id, group_id="none") is ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(group_broker, member_id, group_id="") is ErrorCode.INVALID_GROUP_ID
    assert beat(group_broker, member_id, group_instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_denied_group_fails(group_broker: GroupBroker) -> None:
    member_id = group_broker.stable_member()
    group_broker.deny(GROUP)
    assert beat(group_broker, member_id) is ErrorCode.GROUP_AUTHORIZATION_FAILED
