"""JoinGroup (11): join a classic group and wait for its next generation.

v1 adds the rebalance timeout, v2 throttle_time_ms, v3 throttles after responding, v4 may return MEMBER_ID_REQUIRED
(KIP-394), v5 adds instance ids (KIP-345), v6 is flexible, v7 adds the protocol type, v8 a reason, v9 skip_assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, request_context
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode

FIRST_VERSION_WITH_NULLABLE_PROTOCOL = 7


def on_error(request: JoinGroupRequest, version: int, code: ErrorCode, message: str | None) -> JoinGroupResponse:
    """Return the error of a join."""
    return _for_version(JoinGroupResponse(error_code=code), version)


@api(11, versions=(0, 9), acl=access.group(AclOperation.READ), on_error=on_error)
def join_group(call: Call, request: JoinGroupRequest) -> JoinGroupResponse | Pending[JoinGroupResponse]:
    """Add or update the member; respond when its generation begins."""
    if call.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    response = call.broker.groups.join_group(request_context(call), request)
    return map_response(response, lambda joined: _for_version(joined, call.version))


def _for_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """Adapt an absent protocol to the version: null from v7, empty before."""
    response.protocol_name = response.protocol_name or None
    if version < FIRST_VERSION_WITH_NULLABLE_PROTOCOL:
        response.protocol_name = response.protocol_name or ""
    return response
