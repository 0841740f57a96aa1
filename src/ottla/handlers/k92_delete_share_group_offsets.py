"""DeleteShareGroupOffsets (92): delete the start offsets of topics of a share group without members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, require_protocol, split
from ottla.handlers.splitting import divide_by
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(
    request: DeleteShareGroupOffsetsRequest, version: int, code: ErrorCode, message: str | None
) -> DeleteShareGroupOffsetsResponse:
    """Return the error of the whole request."""
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))


@api(
    92,
    versions=(0, 0),
    acl=access.group(AclOperation.DELETE, access.on_topic(AclOperation.READ)),
    on_error=on_error,
    split=divide_by("topics"),
)
def delete_share_group_offsets(
    call: Call, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse | Pending[DeleteShareGroupOffsetsResponse]:
    """Delete the state of all partitions of each topic."""
    require_protocol(call, "share")
    allowed, unauthorized = split(request.topics, lambda topic: call.may_topic(AclOperation.READ, topic.topic_name))
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=code, error_message=error_text(code)
        )
        for topic in unauthorized
    ]

    def complete(response: DeleteShareGroupOffsetsResponse) -> DeleteShareGroupOffsetsResponse:
        if not response.error_code:
            response.responses = refused + response.responses
        return response

    authorized = DeleteShareGroupOffsetsRequest(group_id=request.group_id, topics=allowed)
    return map_response(call.broker.groups.delete_share_group_offsets(authorized), complete)
