"""OffsetCommit (8): commit offsets of a group.

v2-4 have a retention time, v6 adds leader epochs, v7 instance ids, v8 is flexible, v9 takes member epochs (KIP-848),
v10 identifies topics by id.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.groups import error_responses
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, merge_topics, request_context, split
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
    """Return the error for every partition."""
    return error_responses.offset_commit(request, code)


@api(
    8,
    versions=(2, 10),
    acl=access.group(AclOperation.READ, access.on_topic(AclOperation.READ)),
    on_error=on_error,
)
def offset_commit(call: Call, request: OffsetCommitRequest) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
    """Commit the offsets of existing partitions; the others get an error each."""
    accepted: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in request.topics:
        _validate(call, topic, accepted, refused)
    if not accepted:
        return OffsetCommitResponse(topics=merge_topics(refused, NAME_AND_ID))
    request.topics = accepted

    def complete(response: OffsetCommitResponse) -> OffsetCommitResponse:
        if refused:
            response.topics = merge_topics([*refused, *response.topics], NAME_AND_ID)
        return response

    return map_response(call.broker.groups.commit_offsets(request_context(call), request), complete)


def _validate(
    call: Call,
    topic: OffsetCommitRequestTopic,
    accepted: list[OffsetCommitRequestTopic],
    refused: list[OffsetCommitResponseTopic],
) -> None:
    image = call.broker.runtime.image
    by_id = call.version >= FIRST_VERSION_WITH_TOPIC_IDS
    existing_topic = image.topics.get(topic.topic_id) if by_id else image.topic(topic.name)
    allowed = call.may_topic(AclOperation.READ, existing_topic.name if existing_topic is not None else topic.name)
    valid: list[OffsetCommitRequestPartition] = []
    missing = topic.partitions
    if by_id and existing_topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif not allowed:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    else:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if existing_topic is not None:
            topic.name, topic.topic_id = existing_topic.name, existing_topic.id
            existing = existing_topic.partitions
            valid, missing = split(topic.partitions, lambda partition: partition.partition_index in existing)
    if missing:
        refused.append(
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in missing
                ],
            )
        )
    if valid:
        topic.partitions = valid
        accepted.append(topic)
