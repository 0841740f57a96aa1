"""AlterShareGroupOffsets (91): new start offsets, groups with members, unknown topics and authorization."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode

from .group_broker import GROUP, TOPIC, GroupBroker
from .share_offset_requests import alter, start_offsets


def codes(response: object) -> dict[int, ErrorCode]:
    return {
        partition.partition_index: ErrorCode(partition.error_code)
        for topic in response.responses  # type: ignore[attr-defined]
        for partition in topic.partitions
    }


def test_start_offsets_are_set_and_the_group_is_created(group_broker: GroupBroker) -> None:
    response = alter(group_broker, {0: 7, 1: 8})
    assert (response.error_code, codes(response)) == (ErrorCode.NONE, {0: ErrorCode.NONE, 1: ErrorCode.NONE})
    assert start_offsets(group_broker) == {(TOPIC, 0): 7, (TOPIC, 1): 8}


def test_start_offset_of_a_group_without_members_is_changed(group_broker: GroupBroker) -> None:
    group_broker.share_member()
    group_broker.pause()
    group_broker.leave_share_group()
    alter(group_broker, {0: 7})
    assert start_offsets(group_broker, 0) == {(TOPIC, 0): 7}


def test_group_with_members_fails(group_broker: GroupBroker) -> None:
    group_broker.share_member()
    assert alter(group_broker, {0: 7}).error_code == ErrorCode.NON_EMPTY_GROUP


def test_group_of_another_type_fails(group_broker: GroupBroker) -> None:
    group_broker.consumer_member()
    response = alter(group_broker, {0: 7})
    assert (response.error_code, response.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {GROUP} is not a share group.",
    )


def test_unknown_partition_and_topic_fail_alone(group_broker: GroupBroker) -> None:
    assert codes(alter(group_broker, {0: 7, 9: 8})) == {0: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert codes(alter(group_broker, {0: 7}, topic="none")) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_empty_group_id_fails(group_broker: GroupBroker) -> None:
    assert alter(group_broker, {0: 7}, group="").error_code == ErrorCode.INVALID_GROUP_ID


def test_denied_group_and_topic_fail(group_broker: GroupBroker) -> None:
    group_broker.deny(GROUP)
    assert alter(group_broker, {0: 7}).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    group_broker.deny(TOPIC)
    assert codes(alter(group_broker, {0: 7})) == {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
