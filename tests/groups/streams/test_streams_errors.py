"""Streams groups: one test per invalid heartbeat, with Kafka's error code and message."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.groups.settings import GroupSettings
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k88_streams_group_heartbeat import (
    KeyValue,
    Subtopology,
    TaskIds,
    TaskOffset,
    Topology,
)
from tests.groups.streams.members import StreamsClient, first, send, topology
from tests.groups.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", 4)
    world.settings.default_group = GroupSettings(streams_initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0)
    return world


TASK = TaskIds(subtopology_id="0", partitions=[0])
REGEX = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topic_regex=["t.*"])])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": [TASK]}, "ActiveTasks must be empty when (re-)joining."),
        ({"active_tasks": None}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": [TASK]}, "StandbyTasks must be empty when (re-)joining."),
        ({"warmup_tasks": [TASK]}, "WarmupTasks are not supported yet."),
        ({"warmup_tasks": None}, "WarmupTasks must be empty when (re-)joining."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"topology": REGEX}, "Regular expressions for source topics are not supported yet."),
        ({"task_offsets": []}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": [TaskOffset()]}, "TaskEndOffsets are not supported yet."),
    ],
)
def test_invalid_join_fails(world: World, changes: dict[str, Any], message: str) -> None:
    response = first(world, **changes)
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert world.group() is None


@pytest.mark.parametrize(
    ("epoch", "changes", "message"),
    [
        (-3, {}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (-2, {}, "InstanceId can't be null."),
        (-2, {"instance_id": "i"}, "Static membership is not yet supported."),
        (2, {"topology": topology("t")}, "Topology can only be provided when (re-)joining."),
        (2, {"active_tasks": []}, "If one task-type is non-null, all must be non-null."),
        (2, {"active_tasks": [], "warmup_tasks": []}, "If one task-type is non-null, all must be non-null."),
    ],
)
def test_invalid_heartbeat_fails(world: World, epoch: int, changes: dict[str, Any], message: str) -> None:
    first(world)
    response = send(world, "m", epoch, **changes)
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, message)


def test_changelog_with_partition_count_fails(world: World) -> None:
    runs = topology("t", changelogs=("c",))
    runs.subtopologies[0].state_changelog_topics[0].partitions = 3
    response = first(world, topology=runs)
    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert response.error_message == "Changelog topic c must have an undefined partition count, but it is set to 3."


def test_heartbeat_of_unknown_group_fails(world: World) -> None:
    stays, leaves = send(world, "m", 1), send(world, "m", -1)
    assert (stays.error_code, stays.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Streams group g not found.")
    assert (leaves.error_code, leaves.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")


def test_group_of_another_type_fails(world: World) -> None:
    world.consumer_heartbeat("c", 0, topics=["t"], owned={}, rebalance_ms=1)
    for response in (first(world), send(world, "m", 1), send(world, "m", -1)):
        assert (response.error_code, response.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a streams group.",
        )


def test_unknown_member_fails(world: World) -> None:
    first(world)
    for response in (send(world, "x", 1), send(world, "x", -1)):
        assert (response.error_code, response.error_message) == (
            ErrorCode.UNKNOWN_MEMBER_ID,
            "Member x is not a member of group g.",
        )


def test_newer_epoch_is_fenced(world: World) -> None:
    first(world)
    response = send(world, "m", 3)
    assert (response.error_code, response.error_message) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The streams group member has a greater member epoch (3) than the one known by the group coordinator (2). "
        "The member must abandon all its partitions and rejoin.",
    )


def test_older_epoch_is_fenced(world: World) -> None:
    first(world)
    send(world, "m", 2, rack_id="r")
    send(world, "m", 3, rack_id="s")
    response = send(world, "m", 2, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    assert (response.error_code, response.error_message) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The streams group member has a smaller member epoch (2) than the one known by the group coordinator (4). "
        "The member must abandon all its partitions and rejoin.",
    )


@pytest.mark.parametrize("tasks", [None, [TaskIds(subtopology_id="0", partitions=[9])], [TaskIds(subtopology_id="9")]])
def test_previous_epoch_with_unassigned_tasks_is_fenced(world: World, tasks: list[TaskIds] | None) -> None:
    first(world)
    send(world, "m", 2, rack_id="r")
    others = {} if tasks is None else {"standby_tasks": [], "warmup_tasks": []}
    assert send(world, "m", 2, active_tasks=tasks, **others).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_unknown_tasks_fail(world: World) -> None:
    first(world)
    others = {"standby_tasks": [], "warmup_tasks": []}
    unknown = send(world, "m", 2, active_tasks=[TaskIds(subtopology_id="9", partitions=[0])], **others)
    assert (unknown.error_code, unknown.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Subtopology 9 does not exist in the topology.",
    )
    beyond = send(world, "m", 2, active_tasks=[TaskIds(subtopology_id="0", partitions=[4])], **others)
    assert (beyond.error_code, beyond.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4",
    )


def test_full_group_refuses_a_member(world: World) -> None:
    world.configure(streams_max_size=1)
    first(world, "a")
    for member in ("b", "a"):
        # Even one that is in it cannot join again, as in Kafka.
        response = first(world, member)
        assert (response.error_code, response.error_message) == (
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            "The streams group has reached its maximum capacity of 1 members.",
        )


def test_changed_topology_fails(world: World) -> None:
    StreamsClient(world, "a", topology("t", epoch=1)).join()
    for runs in (topology("u", epoch=1), topology("t", epoch=2)):
        response = first(world, "b", topology=runs)
        assert (response.error_code, response.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )


def test_description_of_empty_group_id_fails(world: World) -> None:
    streams_groups: Any = world.coordinator.describe_streams_groups([""])
    assert streams_groups[0].error_code == ErrorCode.INVALID_GROUP_ID


def test_duplicate_keys_fail(world: World) -> None:
    tag = KeyValue(key="zone", value="a")
    assert first(world, client_tags=[tag, tag]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    first(world)
    world.change_topic("t", 5)
    twice = [TaskIds(subtopology_id="0", partitions=[entry]) for entry in (0, 1)]
    response = send(world, "m", 2, active_tasks=twice, standby_tasks=[], warmup_tasks=[])
    assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
