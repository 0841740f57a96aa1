"""JoinGroup (11): a classic member joins, and waits for the others.

v1 adds a rebalance timeout, v2 throttling, v3 throttles before the answer, v4 sends unknown members away with an id
(KIP-394), v5 adds instance ids (KIP-345), v6 is flexible, v7 tells the protocol type, v8 takes a reason, v9 may tell
the leader to skip the assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context, then
from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode

FIRST_VERSION_WITH_NULLABLE_PROTOCOL = 7


def on_error(request: JoinGroupRequest, version: int, code: ErrorCode, message: str | None) -> JoinGroupResponse:
    """The member is not in the group."""
    return _for_version(JoinGroupResponse(error_code=code), version)


@api(11, versions=(0, 9), acl=access.group(AclOperation.READ), on_error=on_error)
def join_group(call: Call, request: JoinGroupRequest) -> JoinGroupResponse | Pending[JoinGroupResponse]:
    """Join, or join again, and wait for the next generation."""
    if call.version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    answer = call.broker.groups.join_group(request_context(call), request)
    return then(answer, lambda response: _for_version(response, call.version))


def _for_version(response: JoinGroupResponse, version: int) -> JoinGroupResponse:
    """No protocol is null where null can be said, and empty before."""
    response.protocol_name = response.protocol_name or None
    if version < FIRST_VERSION_WITH_NULLABLE_PROTOCOL:
        response.protocol_name = response.protocol_name or ""
    return response
