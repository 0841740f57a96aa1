"""ShareAcknowledge (API 79): accept, release, reject or renew records of a share group member (KIP-932).

v1 is the first supported version; v2 renews acquisition locks and returns their duration (KIP-1222).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_acknowledgements import LEADER_ERRORS, Acknowledgements, find_leader, read_session_key
from ottla.protocol.messages.k79_share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from ottla.shares.sessions import FINAL_EPOCH

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.handlers.shared.share_acknowledgements import Outcome
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.shares.sessions import SessionKey


def on_error(
    request: ShareAcknowledgeRequest, version: int, code: ErrorCode, message: str | None
) -> ShareAcknowledgeResponse:
    """Return a top-level error; Kafka sends no error message."""
    return ShareAcknowledgeResponse(error_code=code)


@api(
    79,
    versions=(1, 2),
    acl=access.per_resource(access.on_group(AclOperation.READ), access.on_topic(AclOperation.READ)),
    on_error=on_error,
)
def share_acknowledge(call: Call, request: ShareAcknowledgeRequest) -> Pending[ShareAcknowledgeResponse]:
    """Acknowledge records; the final epoch ends the session and releases the member's other records."""
    session_key = read_session_key(call, request)
    call.broker.share_partitions.sessions.acknowledge(session_key, request.share_session_epoch)
    acknowledged = Acknowledgements.of(request).apply(
        call, session_key, renews=call.version >= 2 and request.is_renew_ack
    )
    return acknowledged.map(lambda outcome: _response(call, request, session_key, outcome))


def _response(
    call: Call, request: ShareAcknowledgeRequest, session_key: SessionKey, outcome: Outcome
) -> ShareAcknowledgeResponse:
    shares = call.broker.share_partitions
    if request.share_session_epoch == FINAL_EPOCH:
        shares.end_session(session_key)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=shares.settings(session_key.group_id).record_lock_duration_ms
    )
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for topic_partition, error in outcome.items():
        data = PartitionData(partition_index=topic_partition.partition)
        if error is not None:
            data.error_code, data.error_message = error.code, error.message
            hint = find_leader(call, topic_partition) if error.code in LEADER_ERRORS else None
            if hint is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
                endpoints[hint.leader] = NodeEndpoint(
                    node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack
                )
        topic = topics.get(topic_partition.topic_id)
        if topic is None:
            topic = topics[topic_partition.topic_id] = ShareAcknowledgeTopicResponse(topic_id=topic_partition.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    response.node_endpoints = list(endpoints.values())
    return response
