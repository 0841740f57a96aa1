"""ConsumerGroupHeartbeat (68): a member of a consumer group joins, stays or leaves (KIP-848).

v1 adds regular expressions and has members choose their own id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context, require_protocol
from ottla.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ConsumerGroupHeartbeatRequest, version: int, code: ErrorCode, message: str | None
) -> ConsumerGroupHeartbeatResponse:
    """The heartbeat did not count."""
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


@api(
    68, versions=(0, 1), acl=access.group(AclOperation.READ, access.on_topic(AclOperation.DESCRIBE)), on_error=on_error
)
def consumer_group_heartbeat(
    call: Call, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]:
    """Let the member take its next step, and tell it what it owns if that has changed."""
    require_protocol(call, "consumer")
    for topic in request.subscribed_topic_names or ():
        call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    # A regular expression finds only topics that its sender may know of, now and when it is resolved again.
    context = replace(
        request_context(call),
        describable=lambda names: [name for name in names if call.may_topic(AclOperation.DESCRIBE, name)],
    )
    return call.broker.groups.consumer_group_heartbeat(context, request)
