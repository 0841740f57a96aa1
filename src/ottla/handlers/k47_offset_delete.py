"""OffsetDelete (47): delete the offsets of topics to which a group does not subscribe (KIP-496)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, merge_topics, request_context
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(request: OffsetDeleteRequest, version: int, code: ErrorCode, message: str | None) -> OffsetDeleteResponse:
    """Return the error of the whole request."""
    return OffsetDeleteResponse(error_code=code)


@api(
    47,
    versions=(0, 0),
    acl=access.group(AclOperation.DELETE, access.on_topic(AclOperation.READ)),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def offset_delete(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse | Pending[OffsetDeleteResponse]:
    """Delete the offsets of existing partitions; the others get an error each."""
    accepted: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        allowed = call.may_topic(AclOperation.READ, topic.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        existing_topic = call.broker.runtime.image.topic(topic.name) if allowed else None
        existing = existing_topic.partitions if existing_topic is not None else {}
        valid = [partition for partition in topic.partitions if partition.partition_index in existing]
        missing = [partition for partition in topic.partitions if partition.partition_index not in existing]
        if valid:
            accepted.append(OffsetDeleteRequestTopic(name=topic.name, partitions=valid))
        if missing:
            partitions = [
                OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=code)
                for partition in missing
            ]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    request.topics = accepted

    def complete(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if response.error_code == ErrorCode.NONE and refused:
            response.topics = merge_topics([*refused, *response.topics], attrgetter("name"))
        return response

    return map_response(call.broker.groups.delete_offsets(request_context(call), request), complete)
