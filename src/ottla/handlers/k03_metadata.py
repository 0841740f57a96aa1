"""Metadata (3): brokers, controller, topics and who leads their partitions.

v0 asks for all topics with an empty list, later versions with null. v4 lets clients forbid automatic creation, v5 adds
offline replicas, v7 leader epochs, v8 authorized operations, v9 is flexible, v10 adds topic ids, v12 allows asking by
id alone, v13 adds an error of the whole answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.names import validate_topic_name
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.cluster.registrations import Topic

NO_OPERATIONS = -(2**31)


def on_error(request: MetadataRequest, version: int, code: ErrorCode, message: str | None) -> MetadataResponse:
    """Every topic that was named failed."""
    return MetadataResponse(
        error_code=code,
        topics=[
            MetadataResponseTopic(error_code=code, name=each.name or "", topic_id=each.topic_id)
            for each in request.topics or []
        ],
    )


@api(3, versions=(0, 13), on_error=on_error)
def metadata(call: Call, request: MetadataRequest) -> MetadataResponse:
    """Describe the cluster as this node's clients can reach it."""
    cluster = call.broker.cluster
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in cluster.reachable_brokers(call.session.listener)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller.node_id,
    )
    wanted = request.topics
    if wanted is None or (call.version == 0 and not wanted):
        topics = [_describe(call, topic) for topic in cluster.image.topics.values()]
    else:
        topics = [_answer(call, request, each) for each in wanted]
    response.topics = topics
    return response


def _answer(call: Call, request: MetadataRequest, wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    image = call.broker.cluster.image
    if wanted.name is None or (wanted.topic_id != ZERO_UUID and call.version >= 12):
        if wanted.topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        found = image.topics.get(wanted.topic_id)
        if found is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if call.version >= 12 else "",
                topic_id=wanted.topic_id,
            )
        return _describe(call, found)
    found = image.topic(wanted.name)
    if found is not None:
        return _describe(call, found)
    broker = call.broker
    allowed = call.version < 4 or request.allow_auto_topic_creation
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        validate_topic_name(wanted.name)
        if allowed and broker.config_bool("auto.create.topics.enable"):
            code = _create(call, wanted.name)
    except KafkaError as error:
        code = error.code
    return MetadataResponseTopic(error_code=code, name=wanted.name, is_internal=broker.cluster.is_internal(wanted.name))


def _create(call: Call, name: str) -> ErrorCode:
    """Make a topic because somebody asked about it; the answer tells them to come back for its leader."""
    call.broker.cluster.create_topic(name)
    return ErrorCode.LEADER_NOT_AVAILABLE


def _describe(call: Call, topic: Topic) -> MetadataResponseTopic:
    cluster = call.broker.cluster
    alive = cluster.nodes
    partitions = []
    for index, state in topic.partitions.items():
        error = ErrorCode.NONE if state.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE
        partitions.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                offline_replicas=[replica for replica in state.replicas if replica not in alive],
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=cluster.is_internal(topic.name),
        partitions=partitions,
        topic_authorized_operations=NO_OPERATIONS,
    )
