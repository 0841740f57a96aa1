"""SyncGroup (14): send the leader's assignment and receive the member's own.

v1 adds throttle_time_ms, v2 throttles after responding, v3 adds instance ids, v4 is flexible, v5 adds the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending

FIRST_VERSION_WITH_PROTOCOL = 5


def on_error(request: SyncGroupRequest, version: int, code: ErrorCode, message: str | None) -> SyncGroupResponse:
    """Return the error of a sync."""
    return SyncGroupResponse(error_code=code)


@api(14, versions=(0, 5), acl=access.group(AclOperation.READ), on_error=on_error)
def sync_group(call: Call, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    """Return the member's assignment once the leader has sent it."""
    if call.version >= FIRST_VERSION_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return call.broker.groups.sync_group(request_context(call), request)
