"""WriteTxnMarkers (API 27): write the control batches that end transactions, hanging transactions included.

v1 is flexible, v2 adds the transaction version, which decides how strictly a marker's epoch is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
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
    """Return the same error for all partitions."""
    return _response({marker.producer_id: dict.fromkeys(_partitions(marker), code) for marker in request.markers})


@api(
    27,
    versions=(1, 2),
    acl=access.per_resource(access.on_cluster(AclOperation.ALTER), access.on_cluster(AclOperation.CLUSTER_ACTION)),
    on_error=on_error,
    split=divide_by("markers.topics.partition_indexes"),
)
def write_txn_markers(
    call: Call, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Pending[WriteTxnMarkersResponse]:
    """Write each marker to those of its partitions that this node leads."""
    if not call.may_cluster(AclOperation.ALTER):
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
    if any(marker.producer_id < 0 or marker.producer_epoch < 0 for marker in request.markers):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka, which cannot build such a batch
    results: dict[int, Errors] = {}
    written: list[Log] = []
    for requested in request.markers:
        marker = TransactionMarker(
            requested.producer_id,
            requested.producer_epoch,
            requested.coordinator_epoch,
            requested.transaction_result,
            requested.transaction_version,
        )
        errors = results.setdefault(requested.producer_id, {})
        for topic_partition in _partitions(requested):
            errors[topic_partition] = _write(call, marker, topic_partition)
            if errors[topic_partition] is ErrorCode.NONE:
                written.append(call.broker.runtime.partitions[topic_partition].log)
    response = _response(results)
    if not written or not call.broker.runtime.sync:
        return response
    return call.broker.when_durable(
        written, response, lambda: on_error(request, 1, ErrorCode.KAFKA_STORAGE_ERROR, None)
    )


def _write(call: Call, marker: TransactionMarker, topic_partition: TopicPartition) -> ErrorCode:
    runtime = call.broker.runtime
    partition = runtime.partitions.get(topic_partition)
    if partition is None or call.broker.node_id not in partition.state.replicas:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.state.leader != call.broker.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return runtime.write_marker(topic_partition, marker)


def _partitions(marker: WritableTxnMarker) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes]


def _response(results: dict[int, Errors]) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, errors in results.items():
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for topic_partition, code in errors.items():
            topic = topics.setdefault(topic_partition.topic, WritableTxnMarkerTopicResult(name=topic_partition.topic))
            topic.partitions.append(
                WritableTxnMarkerPartitionResult(partition_index=topic_partition.partition, error_code=code)
            )
        response.markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values())))
    return response
