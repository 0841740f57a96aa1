"""Heartbeat (12): a classic member says that it is alive.

v1 adds throttling, v2 throttles before the answer, v3 adds the instance id, v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(request: HeartbeatRequest, version: int, code: ErrorCode, message: str | None) -> HeartbeatResponse:
    """The heartbeat did not count."""
    return HeartbeatResponse(error_code=code)


@api(12, versions=(0, 4), acl=access.group(AclOperation.READ), on_error=on_error)
def heartbeat(call: Call, request: HeartbeatRequest) -> HeartbeatResponse | Pending[HeartbeatResponse]:
    """Begin the member's session anew, and tell it if it has to join again."""
    return call.broker.groups.heartbeat(request_context(call), request)
