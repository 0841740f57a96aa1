"""StreamsGroupHeartbeat (88): join, stay in or leave a streams group (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.groups.streams.topology import StatusCode, check_names, named_topics
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, request_context, require_protocol
from ottla.protocol.messages.k88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.groups.streams.heartbeat import StreamsHeartbeat
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode

_MOST_ERRORS_TOLD = 3


def on_error(
    request: StreamsGroupHeartbeatRequest, version: int, code: ErrorCode, message: str | None
) -> StreamsGroupHeartbeatResponse:
    """Return the error of a heartbeat."""
    return StreamsGroupHeartbeatResponse(error_code=code, error_message=message)


@api(
    88,
    versions=(0, 0),
    acl=access.group(
        AclOperation.READ,
        access.on_topic(AclOperation.DESCRIBE),
        access.on_cluster(AclOperation.CREATE),
        access.on_topic(AclOperation.CREATE),
    ),
    on_error=on_error,
)
def streams_group_heartbeat(
    call: Call, request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse | Pending[StreamsGroupHeartbeatResponse]:
    """Reconcile the member, and create the internal topics that its topology lacks."""
    require_protocol(call, "streams")
    if request.topology is not None:
        check_names(request.topology)
        for topic in named_topics(request.topology):
            call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    heartbeat = call.broker.groups.streams_group_heartbeat(request_context(call), request)
    return map_response(heartbeat, lambda result: _with_topics(call, request.group_id, result))


def _with_topics(call: Call, group_id: str, heartbeat: StreamsHeartbeat) -> StreamsGroupHeartbeatResponse:
    """Create the topics; add to the response why they are still missing."""
    response, topics = heartbeat
    if not topics:
        return response
    names = [topic.name for topic in topics]
    refused = []
    if not call.may_cluster(AclOperation.CREATE):
        refused = [name for name in names if not call.may_topic(AclOperation.CREATE, name)]
    detail = ""
    if refused:
        detail = f"; Unauthorized to CREATE on topics {', '.join(refused)}."
    else:
        failed = [f"{name} ({error})" for name, error in call.broker.streams_topics.errors(names).items()]
        if failed:
            detail = f"; Creation failed: {', '.join(failed[:_MOST_ERRORS_TOLD])}"
            detail += f" and {len(failed) - _MOST_ERRORS_TOLD} more." if len(failed) > _MOST_ERRORS_TOLD else "."
        heartbeat_ms = call.broker.group_configs.group(group_id).streams_heartbeat_interval_ms
        call.broker.streams_topics.create(topics, 2 * heartbeat_ms)
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += detail
    return response
