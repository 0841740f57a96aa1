"""OffsetDelete (47): forget offsets of topics that a group does not read (KIP-496)."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import merged, request_context, then
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
    """No offset was deleted."""
    return OffsetDeleteResponse(error_code=code)


@api(47, versions=(0, 0), acl=access.group(AclOperation.DELETE, access.on_topic(AclOperation.READ)), on_error=on_error)
def offset_delete(call: Call, request: OffsetDeleteRequest) -> OffsetDeleteResponse | Pending[OffsetDeleteResponse]:
    """Delete the offsets of partitions that exist; the others are answered for themselves."""
    known: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in request.topics:
        allowed = call.may_topic(AclOperation.READ, topic.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = call.broker.cluster.image.topic(topic.name) if allowed else None
        existing = found.partitions if found is not None else {}
        right = [each for each in topic.partitions if each.partition_index in existing]
        wrong = [each for each in topic.partitions if each.partition_index not in existing]
        if right:
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=right))
        if wrong:
            partitions = [
                OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code) for each in wrong
            ]
            refused.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    request.topics = known

    def complete(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        if response.error_code == ErrorCode.NONE and refused:
            response.topics = merged([*refused, *response.topics], attrgetter("name"))
        return response

    return then(call.broker.groups.delete_offsets(request_context(call), request), complete)
