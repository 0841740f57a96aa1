"""ShareGroupHeartbeat (76): join, stay in or leave a share group (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context, require_protocol, require_share_member_id
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ShareGroupHeartbeatRequest, version: int, code: ErrorCode, message: str | None
) -> ShareGroupHeartbeatResponse:
    """Return the error of a heartbeat."""
    return ShareGroupHeartbeatResponse(error_code=code)


@api(
    76, versions=(1, 1), acl=access.group(AclOperation.READ, access.on_topic(AclOperation.DESCRIBE)), on_error=on_error
)
def share_group_heartbeat(
    call: Call, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
    """Update the member; return its assignment if it has changed."""
    require_protocol(call, "share")
    require_share_member_id(request.member_id)
    for topic in request.subscribed_topic_names or ():
        call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    return call.broker.groups.share_group_heartbeat(request_context(call), request)
