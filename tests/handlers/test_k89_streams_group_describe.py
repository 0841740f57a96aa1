"""StreamsGroupDescribe (89): topology, members and tasks, unknown groups and authorization."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k89_streams_group_describe as k89
from tests.groups.streams.members import joining, topology

from .group_broker import GROUP, TOPIC, GroupBroker


def describe(broker: GroupBroker, group: str = GROUP) -> Any:
    (described,) = broker.ask(k89.StreamsGroupDescribeRequest(group_ids=[group])).groups
    return described


def test_group_is_described_with_topology_and_tasks(group_broker: GroupBroker) -> None:
    group_broker.ask(joining(topology=topology(TOPIC)))
    group = describe(group_broker)
    assert (group.error_code, group.group_state, group.group_epoch) == (ErrorCode.NONE, "Stable", 2)
    assert [subtopology.source_topics for subtopology in group.topology.subtopologies] == [[TOPIC]]
    (member,) = group.members
    for assignment in (member.assignment, member.target_assignment):
        assert [(tasks.subtopology_id, tasks.partitions) for tasks in assignment.active_tasks] == [("0", [0, 1])]


def test_group_with_missing_topics_is_not_ready(group_broker: GroupBroker) -> None:
    group_broker.ask(joining(topology=topology("missing")))
    assert describe(group_broker).group_state == "NotReady"


@pytest.mark.parametrize(("group", "code"), [("none", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)])
def test_unknown_group_fails(group_broker: GroupBroker, group: str, code: ErrorCode) -> None:
    assert describe(group_broker, group).error_code == code


@pytest.mark.parametrize(
    ("denied", "code"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_unauthorized_describe_fails(group_broker: GroupBroker, denied: str, code: ErrorCode) -> None:
    group_broker.ask(joining(topology=topology(TOPIC)))
    group_broker.deny(denied)
    group = describe(group_broker)
    assert (group.error_code, group.members) == (code, [])
