"""Group coordinators move while JoinGroup and SyncGroup wait: both are answered, and members continue."""

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
    """Finds the current coordinator of a group."""

    def __init__(self, cluster: Cluster) -> None:
        self._client = Client(cluster.bootstrap)

    def wire(self, group: str) -> Wire:
        """Open a connection to a group's coordinator."""
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
    assigned = [k14.SyncGroupRequestAssignment(member_id=name, assignment=name.encode()) for name in members]
    return k14.SyncGroupRequest(group_id=group, member_id=member, generation_id=generation, assignments=assigned)


def send(wire: Wire, request: Message, response: type[R]) -> R:
    """Send a request and return the response."""
    reply = wire.ask(request, VERSION)
    assert isinstance(reply, response)
    return reply


def received(wire: Wire, response: type[R], number: int) -> R:
    """Return the response to a request that was sent."""
    key = response.__schema__.api_key
    assert key is not None
    reply = wire.receive(key, VERSION, number)
    assert isinstance(reply, response)
    return reply


def until(wire: Wire, group: str, state: str, members: int) -> None:
    """Wait until a group has a state and a number of members."""
    deadline = time.monotonic() + 300
    while True:
        described = send(wire, k15.DescribeGroupsRequest(groups=[group]), k15.DescribeGroupsResponse).groups[0]
        if (described.group_state, len(described.members)) == (state, members):
            return
        assert time.monotonic() < deadline, described


def begin(wire: Wire, group: str) -> str:
    """Form a stable group of one member and return its id."""
    member = send(wire, join(group), k11.JoinGroupResponse).member_id
    response = send(wire, sync(group, member, 1, member), k14.SyncGroupResponse)
    assert response.error_code == ErrorCode.NONE
    return member


def test_waiting_join_gets_not_coordinator_and_rejoins(cluster: Cluster) -> None:
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
        assert send(wire, beat, k12.HeartbeatResponse).error_code == ErrorCode.NOT_COORDINATOR
        wire.close()
        # The new coordinator knows the first member and its generation, and lets the second in.
        one, two = coordinators.wire(group), coordinators.wire(group)
        assert send(one, beat, k12.HeartbeatResponse).error_code == ErrorCode.NONE
        number = two.send(join(group), VERSION)
        until(one, group, "PreparingRebalance", 2)
        assert send(one, beat, k12.HeartbeatResponse).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert send(one, join(group, first[group]), k11.JoinGroupResponse).generation_id == 2
        assert received(two, k11.JoinGroupResponse, number).generation_id == 2
        one.close()
        two.close()
    coordinators.close()


def test_waiting_sync_gets_not_coordinator(cluster: Cluster) -> None:
    coordinators = Coordinators(cluster)
    one, two = coordinators.wire("g"), coordinators.wire("g")
    first = begin(one, "g")
    number = two.send(join("g"), VERSION)
    until(one, "g", "PreparingRebalance", 2)
    assert send(one, join("g", first), k11.JoinGroupResponse).generation_id == 2
    second = received(two, k11.JoinGroupResponse, number).member_id
    number = two.send(sync("g", second, 2), VERSION)
    cluster.move_coordinator("g", cluster.coordinator("g") % 3 + 1)
    notified = received(two, k14.SyncGroupResponse, number)
    assert notified.error_code == ErrorCode.NOT_COORDINATOR
    # What was never assigned was never written: the group is as it was before, and the second member unknown.
    three = coordinators.wire("g")
    for member, generation, code in (
        (first, 1, "NONE"),
        (first, 2, "ILLEGAL_GENERATION"),
        (second, 2, "UNKNOWN_MEMBER_ID"),
    ):
        beat = k12.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member)
        assert send(three, beat, k12.HeartbeatResponse).error_code == ErrorCode[code]
    for wire in (one, two, three):
        wire.close()
    coordinators.close()
