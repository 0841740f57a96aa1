"""LeaveGroup (13): remove members from a group.

v1 adds throttle_time_ms, v2 throttles after responding, v3 takes several members and instance ids (KIP-345), v4 is
flexible, v5 adds a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, request_context
from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode

FIRST_VERSION_WITH_MEMBERS = 3


def on_error(request: LeaveGroupRequest, version: int, code: ErrorCode, message: str | None) -> LeaveGroupResponse:
    """Return the error of the whole request."""
    return LeaveGroupResponse(error_code=code)


@api(13, versions=(0, 5), acl=access.group(AclOperation.READ), on_error=on_error)
def leave_group(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
    """Remove the members; before v3 there is one, and its error is the error of the response."""
    if call.version >= FIRST_VERSION_WITH_MEMBERS:
        return call.broker.groups.leave_group(request_context(call), request)
    request.members = [MemberIdentity(member_id=request.member_id)]

    def single(response: LeaveGroupResponse) -> LeaveGroupResponse:
        members, response.members = response.members, []
        if members and not response.error_code:
            response.error_code = members[0].error_code
        return response

    return map_response(call.broker.groups.leave_group(request_context(call), request), single)
