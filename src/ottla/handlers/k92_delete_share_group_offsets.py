"""DeleteShareGroupOffsets (92): forget how far a share group without members has come in some topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import require_protocol, sort_out, then
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
    """Nothing was deleted."""
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))


@api(92, versions=(0, 0), acl=access.group(AclOperation.DELETE, access.on_topic(AclOperation.READ)), on_error=on_error)
def delete_share_group_offsets(
    call: Call, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse | Pending[DeleteShareGroupOffsetsResponse]:
    """Delete the state of all partitions of each topic."""
    require_protocol(call, "share")
    allowed, hidden = sort_out(request.topics, lambda each: call.may_topic(AclOperation.READ, each.topic_name))
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        DeleteShareGroupOffsetsResponseTopic(
            topic_name=each.topic_name, error_code=code, error_message=error_text(code)
        )
        for each in hidden
    ]

    def complete(response: DeleteShareGroupOffsetsResponse) -> DeleteShareGroupOffsetsResponse:
        if not response.error_code:
            response.responses = refused + response.responses
        return response

    asked = DeleteShareGroupOffsetsRequest(group_id=request.group_id, topics=allowed)
    return then(call.broker.groups.delete_share_group_offsets(asked), complete)
