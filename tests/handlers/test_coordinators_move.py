"""Coordinators move while requests wait: each is answered, and its member goes on where the coordinator is now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from ottla.client.client import Client
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k11_join_group as k11
from ottla.protocol.messages import k12_heartbeat as k12
from ottla.protocol.messages import k14_sync_group as k14
from ottla.protocol.messages import k15_describe_groups as k15
from ottla.protocol.schema import Message
from ottla.testing import Cluster
from tests.conversations.side_by_side import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

R = TypeVar("R", bound=Message)
GROUPS = [f"group-{number}" for number in range(20)]
VERSION = 3


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


class Coordinators:
    """The way to the coordinator of a group, wherever it is now."""

    def __init__(self, cluster: Cluster) -> None:
        self._client = Client(cluster.bootstrap)

    def wire(self, group: str) -> Wire:
        """A connection of its own to a group's coordinator."""
        self._client.forget_coordinator(group, 0)
        host, port = self._client.brokers[self._client.coordinator(group)]
        return Wire(f"{host}:{port}")

    def close(self) -> None:
        self._client.close()


def join(group: str, member: str = "") -> k11.JoinGroupRequest:
    return k11.JoinGroupRequest(
        group_id=group,
        session_timeout_ms=600_000,
        rebalance_timeout_ms=600_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[k11.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def sync(group: str, member: str, generation: int, *members: str) -> k14.SyncGroupRequest:
    assigned = [k14.SyncGroupRequestAssignment(member_id=each, assignment=each.encode()) for each in members]
    return k14.SyncGroupRequest(group_id=group, member_id=member, generation_id=generation, assignments=assigned)


def asked(wire: Wire, request: Message, response: type[R]) -> R:
    """The answer to a request."""
    answer = wire.ask(request, VERSION)
    assert isinstance(answer, response)
    return answer


def received(wire: Wire, response: type[R], number: int) -> R:
    """The answer to a request that was sent."""
    key = response.__schema__.api_key
    assert key is not None
    answer = wire.receive(key, VERSION, number)
    assert isinstance(answer, response)
    return answer


def until(wire: Wire, group: str, state: str, members: int) -> None:
    """Wait until a group is in a state, with so many members."""
    deadline = time.monotonic() + 300
    while True:
        found = asked(wire, k15.DescribeGroupsRequest(groups=[group]), k15.DescribeGroupsResponse).groups[0]
        if (found.group_state, len(found.members)) == (state, members):
            return
        assert time.monotonic() < deadline, found


def begin(wire: Wire, group: str) -> str:
    """Make a stable group of one; its member."""
    member = asked(wire, join(group), k11.JoinGroupResponse).member_id
    answer = asked(wire, sync(group, member, 1, member), k14.SyncGroupResponse)
    assert answer.error_code == ErrorCode.NONE
    return member


def test_members_that_wait_for_others_are_told_and_go_on(cluster: Cluster) -> None:
    coordinators = Coordinators(cluster)
    wires = {group: coordinators.wire(group) for group in GROUPS}
    first = {group: begin(wire, group) for group, wire in wires.items()}
    late = {group: coordinators.wire(group) for group in GROUPS}
    waiting = {group: wire.send(join(group), VERSION) for group, wire in late.items()}
    for group, wire in wires.items():
        until(wire, group, "PreparingRebalance", 2)
    cluster.rehash_coordinators()
    for group, wire in late.items():
        assert received(wire, k11.JoinGroupResponse, waiting[group]).error_code == ErrorCode.NOT_COORDINATOR
        wire.close()
    for group, wire in wires.items():
        beat = k12.HeartbeatRequest(group_id=group, generation_id=1, member_id=first[group])
        assert asked(wire, beat, k12.HeartbeatResponse).error_code == ErrorCode.NOT_COORDINATOR
        wire.close()
        # The new coordinator knows the first member and its generation, and lets the second in.
        one, two = coordinators.wire(group), coordinators.wire(group)
        assert asked(one, beat, k12.HeartbeatResponse).error_code == ErrorCode.NONE
        number = two.send(join(group), VERSION)
        until(one, group, "PreparingRebalance", 2)
        assert asked(one, beat, k12.HeartbeatResponse).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert asked(one, join(group, first[group]), k11.JoinGroupResponse).generation_id == 2
        assert received(two, k11.JoinGroupResponse, number).generation_id == 2
        one.close()
        two.close()
    coordinators.close()


def test_a_member_that_waits_for_its_assignment_is_told(cluster: Cluster) -> None:
    coordinators = Coordinators(cluster)
    one, two = coordinators.wire("g"), coordinators.wire("g")
    first = begin(one, "g")
    number = two.send(join("g"), VERSION)
    until(one, "g", "PreparingRebalance", 2)
    assert asked(one, join("g", first), k11.JoinGroupResponse).generation_id == 2
    second = received(two, k11.JoinGroupResponse, number).member_id
    number = two.send(sync("g", second, 2), VERSION)
    cluster.move_coordinator("g", cluster.coordinator("g") % 3 + 1)
    told = received(two, k14.SyncGroupResponse, number)
    assert told.error_code == ErrorCode.NOT_COORDINATOR
    # What was never assigned was never written: the group is as it was before, and the second member unknown.
    three = coordinators.wire("g")
    for member, generation, code in (
        (first, 1, "NONE"),
        (first, 2, "ILLEGAL_GENERATION"),
        (second, 2, "UNKNOWN_MEMBER_ID"),
    ):
        beat = k12.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member)
        assert asked(three, beat, k12.HeartbeatResponse).error_code == ErrorCode[code]
    for wire in (one, two, three):
        wire.close()
    coordinators.close()
