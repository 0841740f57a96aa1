"""OffsetCommit (8): remember how far a group has read.

v2-4 carry a retention time of their own, v6 adds leader epochs, v7 instance ids, v8 is flexible, v9 takes member epochs
(KIP-848), v10 names topics by id.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.groups import error_responses
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import merged, request_context, sort_out, then
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending

FIRST_VERSION_WITH_TOPIC_IDS = 10
NAME_AND_ID = attrgetter("name", "topic_id")


def on_error(request: OffsetCommitRequest, version: int, code: ErrorCode, message: str | None) -> OffsetCommitResponse:
    """No offset was committed."""
    return error_responses.offset_commit(request, code)


@api(8, versions=(2, 10), acl=access.group(AclOperation.READ, access.on_topic(AclOperation.READ)), on_error=on_error)
def offset_commit(call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
    """Commit the offsets of partitions that exist; the others are answered for themselves."""
    known: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        _sort_out(call, topic, known, refused)
    if not known:
        return OffsetCommitResponse(topics=merged(refused, NAME_AND_ID))
    request.topics = known

    def complete(response: OffsetCommitResponse) -> OffsetCommitResponse:
        if refused:
            response.topics = merged([*refused, *response.topics], NAME_AND_ID)
        return response

    return then(call.broker.groups.commit_offsets(request_context(call), request), complete)


def _sort_out(
    call: Call,
    topic: OffsetCommitRequestTopic,
    known: list[OffsetCommitRequestTopic],
    refused: list[OffsetCommitResponseTopic],
) -> None:
    image = call.broker.cluster.image
    by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    found = image.topics.get(topic.topic_id) if by_id else image.topic(topic.name)
    allowed = call.may_topic(AclOperation.READ, found.name if found is not None else topic.name)
    right: list[OffsetCommitRequestPartition] = []
    wrong = topic.partitions
    if by_id and found is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif not allowed:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    else:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is not None:
            topic.name, topic.topic_id = found.name, found.id
            existing = found.partitions
            right, wrong = sort_out(topic.partitions, lambda each: each.partition_index in existing)
    if wrong:
        refused.append(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in wrong
                ],
            )
        )
    if right:
        topic.partitions = right
        known.append(topic)
