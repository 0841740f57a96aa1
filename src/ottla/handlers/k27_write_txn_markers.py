"""WriteTxnMarkers (27): a coordinator, or an administrator who ends a hanging transaction, has markers written.

v1 is flexible, v2 adds the transaction version, which says how strictly a marker's epoch is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.storage.names import TopicPartition
from ottla.transactions.environment import TransactionMarker

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.storage.log.log import Log

Errors = dict[TopicPartition, ErrorCode]


def on_error(
    request: WriteTxnMarkersRequest, version: int, code: ErrorCode, message: str | None
) -> WriteTxnMarkersResponse:
    """No marker was written."""
    return _response({each.producer_id: dict.fromkeys(_partitions(each), code) for each in request.markers})


@api(
    27,
    versions=(1, 2),
    acl=access.each(access.on_cluster(AclOperation.ALTER), access.on_cluster(AclOperation.CLUSTER_ACTION)),
    on_error=on_error,
)
def write_txn_markers(
    call: Call, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
    """Write each marker to its partitions, as far as they are led here."""
    if not call.may_cluster(AclOperation.ALTER):
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
    if any(each.producer_id < 0 or each.producer_epoch < 0 for each in request.markers):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # a batch of no producer cannot be made; Kafka stumbles here
    results: dict[int, Errors] = {}
    written: list[Log] = []
    for each in request.markers:
        marker = TransactionMarker(
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            each.transaction_version,
        )
        errors = results.setdefault(each.producer_id, {})
        for place in _partitions(each):
            errors[place] = _write(call, marker, place)
            if errors[place] is ErrorCode.NONE:
                written.append(call.broker.cluster.partitions[place].log)
    response = _response(results)
    if not written or not call.broker.cluster.sync:
        return response
    return call.broker.when_durable(
        written, response, lambda: on_error(request, 1, ErrorCode.KAFKA_STORAGE_ERROR, None)
    )


def _write(call: Call, marker: TransactionMarker, place: TopicPartition) -> ErrorCode:
    cluster = call.broker.cluster
    partition = cluster.partitions.get(place)
    if partition is None or call.broker.node_id not in partition.state.replicas:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.state.leader != call.broker.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return cluster.write_marker(place, marker)


def _partitions(marker: WritableTxnMarker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]


def _response(results: dict[int, Errors]) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, errors in results.items():
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for place, code in errors.items():
            topic = topics.setdefault(place.topic, WritableTxnMarkerTopicResult(name=place.topic))
            topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=place.partition, error_code=code))
        response.markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values())))
    return response
