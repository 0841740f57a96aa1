"""OffsetForLeaderEpoch (API 23): the end offset of a leader epoch (KIP-320).

v3 adds the replica id, v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k23_offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: OffsetForLeaderEpochRequest, version: int, code: ErrorCode, message: str | None
) -> OffsetForLeaderEpochResponse:
    """Return the same error for every partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(error_code=code, partition=partition.partition) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@api(
    23,
    versions=(2, 4),
    acl=access.per_resource(access.on_topic(AclOperation.DESCRIBE), access.on_cluster(AclOperation.CLUSTER_ACTION)),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def offset_for_leader_epoch(call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Return the end offset of the requested leader epoch of each partition."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_offset(call, topic.topic, partition) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_offset(call: Call, topic: str, requested: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        if not call.may_cluster(AclOperation.CLUSTER_ACTION):
            call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        partition = call.broker.leader_partition(topic, requested.partition)
        partition.check_leader_epoch(requested.current_leader_epoch)
        epoch, end = partition.log.end_offset_for_epoch(requested.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=requested.partition)
    return EpochEndOffset(partition=requested.partition, leader_epoch=epoch, end_offset=end)
