"""Consumer groups: one test per invalid request, with Kafka's error code."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from tests.groups.world import GROUP, Consumer, World, answered, code


@pytest.fixture
def world() -> World:
    made = World()
    made.create_topic("t", 2)
    return made


FIRST: dict[str, Any] = {"topics": ["t"], "owned": {}, "rebalance_ms": 1_000}


def refused(world: World, member_id: str, epoch: int, **fields: Any) -> tuple[ErrorCode, str | None]:
    response = world.consumer_heartbeat(member_id, epoch, **fields)
    return ErrorCode(response.error_code), response.error_message


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields", "message"),
    [
        ("", 0, FIRST, "MemberId can't be empty."),
        (" ", 0, FIRST, "MemberId can't be empty."),
        ("", 1, {"version": 0}, "MemberId can't be empty."),
        ("", -1, {"version": 0}, "MemberId can't be empty."),
        ("m", 0, {**FIRST, "group": " "}, "GroupId can't be empty."),
        ("m", 0, {**FIRST, "instance": ""}, "InstanceId can't be empty."),
        ("m", 0, {**FIRST, "rack": ""}, "RackId can't be empty."),
        ("m", 0, {**FIRST, "rebalance_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ("m", 0, {**FIRST, "owned": None}, "TopicPartitions must be empty when (re-)joining."),
        ("m", 0, {**FIRST, "owned": {"t": {0}}}, "TopicPartitions must be empty when (re-)joining."),
        (
            "m",
            0,
            {**FIRST, "topics": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ("m", -2, {}, "InstanceId can't be null."),
        ("m", -3, {}, "MemberEpoch is invalid."),
    ],
)
def test_invalid_request_fails(world: World, member_id: str, epoch: int, fields: dict[str, Any], message: str) -> None:
    assert refused(world, member_id, epoch, **fields) == (ErrorCode.INVALID_REQUEST, message)


def test_unknown_assignor_fails(world: World) -> None:
    assert refused(world, "m", 0, **FIRST, assignor="mine") == (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor mine is not supported. Supported assignors: uniform, range.",
    )


def test_unknown_group_fails(world: World) -> None:
    assert refused(world, "m", 1) == (ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found.")
    assert refused(world, "m", -1) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found.")


def test_group_of_another_type_fails(world: World) -> None:
    world.stable_group("a", protocol_type="connect")
    assert refused(world, "m", 1) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group.")
    assert refused(world, "m", 0, **FIRST) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Cannot upgrade classic group g to consumer group because the group does not use the consumer embedded "
        "protocol.",
    )


def test_unknown_member_fails(world: World) -> None:
    Consumer(world, "a", "t").join()
    expected = (ErrorCode.UNKNOWN_MEMBER_ID, "Member m is not a member of group g.")
    assert refused(world, "m", 1) == expected
    assert refused(world, "m", -1) == expected


def test_newer_and_older_epochs_are_fenced(world: World) -> None:
    a, b = Consumer(world, "a", "t"), Consumer(world, "b", "t")
    a.join()
    assert refused(world, "a", 3) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The consumer group member has a greater member epoch (3) than the one known by the group coordinator (2). "
        "The member must abandon all its partitions and rejoin.",
    )
    assert refused(world, "a", 1)[0] == ErrorCode.FENCED_MEMBER_EPOCH
    b.join()
    a.settle()
    assert a.epoch == 3
    # The epoch before is good only together with what the member owned then.
    assert refused(world, "a", 2) == (
        ErrorCode.FENCED_MEMBER_EPOCH,
        "The consumer group member has a smaller member epoch (2) than the one known by the group coordinator (3). "
        "The member must abandon all its partitions and rejoin.",
    )


def test_full_group_refuses_a_member(world: World) -> None:
    world.configure(consumer_max_size=1)
    Consumer(world, "a", "t").join()
    assert refused(world, "b", 0, **FIRST) == (
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The consumer group has reached its maximum capacity of 1 members.",
    )
    assert code(Consumer(world, "a", "t").join()) == ErrorCode.NONE


def test_unreleased_instance_id_fails(world: World) -> None:
    Consumer(world, "a", "t", instance="i").join()
    assert refused(world, "b", 0, **FIRST, instance="i") == (
        ErrorCode.UNRELEASED_INSTANCE_ID,
        "Static member b with instance id i cannot join the group because the instance id is owned by a member.",
    )


def test_instance_id_of_another_member_is_fenced(world: World) -> None:
    Consumer(world, "a", "t", instance="i").join()
    expected = (ErrorCode.FENCED_INSTANCE_ID, "Static member b with instance id i was fenced by member a.")
    for epoch in (1, -1, -2):
        assert refused(world, "b", epoch, instance="i") == expected


def test_unknown_instance_id_fails(world: World) -> None:
    Consumer(world, "a", "t").join()
    for epoch in (2, -1, -2):
        unknown = refused(world, "a", epoch, instance="i")
        assert unknown == (ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i is unknown.")


def test_invalid_regular_expression_fails(world: World) -> None:
    refusal, message = refused(world, "m", 0, regex="a(", owned={}, rebalance_ms=1_000)
    assert refusal == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert message is not None
    assert message.startswith("SubscribedTopicRegex `a(` is not a valid regular expression: ")
    assert world.group() is None


def test_unloaded_and_loading_partitions_fail(world: World) -> None:
    loading = world.coordinator.begin_loading(0)
    assert refused(world, "m", 0, **FIRST) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
    loading.mark_loaded()
    world.coordinator.unload(0)
    assert refused(world, "m", 0, **FIRST) == (ErrorCode.NOT_COORDINATOR, None)
    (shown,) = answered(world.coordinator.describe_consumer_groups([GROUP]))
    assert shown.error_code == ErrorCode.NOT_COORDINATOR


def test_describe_of_other_or_unknown_group_fails(world: World) -> None:
    world.commit({("t", 0): 1})
    shown = answered(world.coordinator.describe_consumer_groups([GROUP, "nobody", ""]))
    assert [(ErrorCode(entry.error_code), entry.error_message) for entry in shown] == [
        (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group."),
        (ErrorCode.GROUP_ID_NOT_FOUND, "Group nobody not found."),
        (ErrorCode.INVALID_GROUP_ID, None),
    ]
