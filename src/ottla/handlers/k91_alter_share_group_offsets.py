"""AlterShareGroupOffsets (91): let a share group without members begin elsewhere."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import merged, require_protocol, then
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
    """Nothing was altered."""
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))


@api(91, versions=(0, 0), acl=access.group(AclOperation.READ, access.on_topic(AclOperation.READ)), on_error=on_error)
def alter_share_group_offsets(
    call: Call, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse | Pending[AlterShareGroupOffsetsResponse]:
    """Begin the state of each partition anew, at the offset that is wanted."""
    require_protocol(call, "share")
    refused: list[AlterShareGroupOffsetsResponseTopic] = []
    allowed: list[AlterShareGroupOffsetsRequestTopic] = []
    for topic in request.topics:
        if not call.may_topic(AclOperation.READ, topic.topic_name):
            refused.append(_refused(call, topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif call.broker.cluster.image.topic(topic.topic_name) is None:
            refused.append(_refused(call, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            allowed.append(topic)

    def complete(response: AlterShareGroupOffsetsResponse) -> AlterShareGroupOffsetsResponse:
        if not response.error_code:
            response.responses = merged([*refused, *response.responses], attrgetter("topic_name"))
        return response

    asked = AlterShareGroupOffsetsRequest(group_id=request.group_id, topics=allowed)
    return then(call.broker.groups.alter_share_group_offsets(asked), complete)


def _refused(
    call: Call, topic: AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> AlterShareGroupOffsetsResponseTopic:
    found = call.broker.cluster.image.topic(topic.topic_name)
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        topic_id=ZERO_UUID if found is None else found.id,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=each.partition_index, error_code=code, error_message=error_text(code)
            )
            for each in topic.partitions
        ],
    )
