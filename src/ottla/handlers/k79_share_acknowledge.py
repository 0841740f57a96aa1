"""ShareAcknowledge (79): a member of a share group says what became of records that it holds (KIP-932).

v1 is the first that is served, v2 renews locks and tells how long they last (KIP-1222).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_acknowledgements import LEADER_ERRORS, Acknowledgements, leader_of, who_asks
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
    """The whole request failed; Kafka gives no words."""
    return ShareAcknowledgeResponse(error_code=code)


@api(
    79,
    versions=(1, 2),
    acl=access.each(access.on_group(AclOperation.READ), access.on_topic(AclOperation.READ)),
    on_error=on_error,
)
def share_acknowledge(call: Call, request: ShareAcknowledgeRequest) -> Pending[ShareAcknowledgeResponse]:
    """Take the acknowledgements; with the last of a session, what the member still holds goes back."""
    who = who_asks(call, request)
    call.broker.share_partitions.sessions.acknowledge(who, request.share_session_epoch)
    said = Acknowledgements.of(request).do(call, who, renews=call.version >= 2 and request.is_renew_ack)
    return said.map(lambda outcome: _response(call, request, who, outcome))


def _response(
    call: Call, request: ShareAcknowledgeRequest, who: SessionKey, outcome: Outcome
) -> ShareAcknowledgeResponse:
    shares = call.broker.share_partitions
    if request.share_session_epoch == FINAL_EPOCH:
        shares.end_session(who)
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=shares.settings(who.group_id).record_lock_duration_ms
    )
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    endpoints: dict[int, NodeEndpoint] = {}
    for place, error in outcome.items():
        data = PartitionData(partition_index=place.partition)
        if error is not None:
            data.error_code, data.error_message = error.code, error.message
            hint = leader_of(call, place) if error.code in LEADER_ERRORS else None
            if hint is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
                endpoints[hint.leader] = NodeEndpoint(
                    node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack
                )
        topic = topics.get(place.topic_id)
        if topic is None:
            topic = topics[place.topic_id] = ShareAcknowledgeTopicResponse(topic_id=place.topic_id)
            response.responses.append(topic)
        topic.partitions.append(data)
    response.node_endpoints = list(endpoints.values())
    return response
