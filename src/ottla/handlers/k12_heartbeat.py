"""Heartbeat (12): keep the session of a classic member alive.

v1 adds throttle_time_ms, v2 throttles after responding, v3 adds instance ids, v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(request: HeartbeatRequest, version: int, code: ErrorCode, message: str | None) -> HeartbeatResponse:
    """Return the error of a heartbeat."""
    return HeartbeatResponse(error_code=code)


@api(12, versions=(0, 4), acl=access.group(AclOperation.READ), on_error=on_error)
def heartbeat(call: Call, request: HeartbeatRequest) -> HeartbeatResponse | Pending[HeartbeatResponse]:
    """Reset the member's session timer; return REBALANCE_IN_PROGRESS if it must rejoin."""
    return call.broker.groups.heartbeat(request_context(call), request)
