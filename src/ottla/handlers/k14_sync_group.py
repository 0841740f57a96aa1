"""SyncGroup (14): a classic member asks for its assignment; the leader brings that of all.

v1 adds throttling, v2 throttles before the answer, v3 adds the instance id, v4 is flexible, v5 must say the protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
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
    """There is no assignment."""
    return SyncGroupResponse(error_code=code)


@api(14, versions=(0, 5), acl=access.group(AclOperation.READ), on_error=on_error)
def sync_group(call: Call, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    """Answer when the leader has assigned."""
    if call.version >= FIRST_VERSION_WITH_PROTOCOL and None in (request.protocol_type, request.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return call.broker.groups.sync_group(request_context(call), request)
