"""Error responses of requests that fail as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_OFFSET_FETCH_VERSION_WITH_GROUP_ERROR = 2


def offset_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """Return the error for every partition."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def txn_offset_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """Return the error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def offset_fetch(request: OffsetFetchRequestGroup, version: int, code: ErrorCode) -> OffsetFetchResponseGroup:
    """Return the error of the group, or of every partition before version 2, which has no group error."""
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    if version >= FIRST_OFFSET_FETCH_VERSION_WITH_GROUP_ERROR:
        response.error_code = code
        return response
    for topic in request.topics or ():
        response.topics.append(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=offset_fetch_partitions(topic.partition_indexes, code),
            )
        )
    return response


def offset_fetch_partitions(partitions: Iterable[int], code: ErrorCode) -> list[OffsetFetchResponsePartitions]:
    """Return partitions without an offset and with an error."""
    return [
        OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
        )
        for partition in partitions
    ]


def leave_group(request: LeaveGroupRequest, code: ErrorCode) -> LeaveGroupResponse:
    """Return the error of the request; UNKNOWN_MEMBER_ID of every member if the group is unknown."""
    if code is not ErrorCode.UNKNOWN_MEMBER_ID:
        return LeaveGroupResponse(error_code=code)
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for member in request.members
        ]
    )
