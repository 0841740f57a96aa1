"""AlterShareGroupOffsets (91): set the start offsets of a share group without members."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, merge_topics, require_protocol
from ottla.handlers.splitting import divide_by
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(
    request: AlterShareGroupOffsetsRequest, version: int, code: ErrorCode, message: str | None
) -> AlterShareGroupOffsetsResponse:
    """Return the error of the whole request."""
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))


@api(
    91,
    versions=(0, 0),
    acl=access.group(AclOperation.READ, access.on_topic(AclOperation.READ)),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def alter_share_group_offsets(
    call: Call, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse | Pending[AlterShareGroupOffsetsResponse]:
    """Initialize each partition at its new start offset."""
    require_protocol(call, "share")
    refused: list[AlterShareGroupOffsetsResponseTopic] = []
    allowed: list[AlterShareGroupOffsetsRequestTopic] = []
    for topic in request.topics:
        if not call.may_topic(AclOperation.READ, topic.topic_name):
            refused.append(_error_topic(call, topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif call.broker.runtime.image.topic(topic.topic_name) is None:
            refused.append(_error_topic(call, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            allowed.append(topic)

    def complete(response: AlterShareGroupOffsetsResponse) -> AlterShareGroupOffsetsResponse:
        if not response.error_code:
            response.responses = merge_topics([*refused, *response.responses], attrgetter("topic_name"))
        return response

    authorized = AlterShareGroupOffsetsRequest(group_id=request.group_id, topics=allowed)
    return map_response(call.broker.groups.alter_share_group_offsets(authorized), complete)


def _error_topic(
    call: Call, topic: AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> AlterShareGroupOffsetsResponseTopic:
    existing = call.broker.runtime.image.topic(topic.topic_name)
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        topic_id=ZERO_UUID if existing is None else existing.id,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index, error_code=code, error_message=error_text(code)
            )
            for partition in topic.partitions
        ],
    )
