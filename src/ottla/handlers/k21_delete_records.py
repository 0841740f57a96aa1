"""DeleteRecords (21): advance log start offsets. v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

TO_HIGH_WATERMARK = -1
UNKNOWN = -1


def on_error(
    request: DeleteRecordsRequest, version: int, code: ErrorCode, message: str | None
) -> DeleteRecordsResponse:
    """Return the error for every partition."""
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[_failure(partition.partition_index, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@api(
    21,
    versions=(0, 2),
    acl=access.per_resource(access.on_topic(AclOperation.DELETE)),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def delete_records(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Advance each log start offset; the next retention run deletes the segments."""
    response = DeleteRecordsResponse()
    requested: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for topic in request.topics:
        for partition in topic.partitions:  # Of a repeated partition Kafka takes the last.
            requested.setdefault(topic.name, {})[partition.partition_index] = partition
    for name, partitions in requested.items():
        results = []
        for partition in partitions.values():
            try:
                results.append(_delete(call, name, partition))
            except KafkaError as error:
                results.append(_failure(partition.partition_index, error.code))
        response.topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
    return response


def _delete(call: Call, topic: str, requested: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    call.require(AclOperation.DELETE, ResourceType.TOPIC, topic)
    partition = call.broker.leader_partition(topic, requested.partition_index)
    if call.broker.runtime.is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}")
    log = partition.log
    if not log.config.delete and log.config.cleanup_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"Records of partition {partition} can not be deleted")
    offset = log.high_watermark if requested.offset == TO_HIGH_WATERMARK else requested.offset
    if offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    log.advance_log_start(offset)
    return DeleteRecordsPartitionResult(partition_index=requested.partition_index, low_watermark=log.log_start_offset)


def _failure(index: int, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=UNKNOWN, error_code=code)
