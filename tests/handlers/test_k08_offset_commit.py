"""OffsetCommit (8): every version, unknown partitions, members and authorization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode

from .group_broker import GROUP, TOPIC, UNKNOWN_ID, GroupBroker, commit_request, versions

if TYPE_CHECKING:
    from ottla.protocol.messages import k08_offset_commit as k08


def codes(response: k08.OffsetCommitResponse) -> dict[int, ErrorCode]:
    return {
        partition.partition_index: ErrorCode(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", versions(8))
def test_commit_is_stored_in_every_version(group_broker: GroupBroker, version: int) -> None:
    request = commit_request({0: 7, 1: 8}, topic_id=group_broker.topic_id())
    assert codes(group_broker.ask(request, version)) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert group_broker.committed() == {(TOPIC, 0): 7, (TOPIC, 1): 8}


def test_unknown_partition_fails_alone(group_broker: GroupBroker) -> None:
    response = group_broker.ask(commit_request({0: 7, 9: 8}), 9)
    assert codes(response) == {0: ErrorCode.NONE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert group_broker.committed() == {(TOPIC, 0): 7}


def test_unknown_topic_id_fails(group_broker: GroupBroker) -> None:
    assert codes(group_broker.ask(commit_request({0: 7}, topic_id=UNKNOWN_ID), 10)) == {0: ErrorCode.UNKNOWN_TOPIC_ID}


def test_topic_that_occurs_twice_is_merged(group_broker: GroupBroker) -> None:
    request = commit_request({9: 1})
    request.topics += commit_request({0: 7}).topics
    response = group_broker.ask(request, 9)
    assert [topic.name for topic in response.topics] == [TOPIC]
    assert codes(response) == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0: ErrorCode.NONE}


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_member_of_unknown_group_fails(group_broker: GroupBroker, version: int, code: ErrorCode) -> None:
    request = commit_request({0: 7}, generation_id_or_member_epoch=1, member_id="m")
    assert codes(group_broker.ask(request, version)) == {0: code}


def test_commit_without_member_in_group_with_members_fails(group_broker: GroupBroker) -> None:
    group_broker.stable_member()
    assert group_broker.commit(7) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("denied", "code"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
def test_unauthorized_commit_fails(group_broker: GroupBroker, denied: str, code: ErrorCode) -> None:
    group_broker.deny(denied)
    assert group_broker.commit(7) is code
