"""OffsetForLeaderEpoch (23): where an epoch ended (KIP-320). v3 adds the replica that asks, v4 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
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
    """Every partition failed."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(error_code=code, partition=each.partition) for each in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@api(
    23,
    versions=(2, 4),
    acl=access.each(access.on_topic(AclOperation.DESCRIBE), access.on_cluster(AclOperation.CLUSTER_ACTION)),
    on_error=on_error,
)
def offset_for_leader_epoch(call: Call, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Answer each partition from its log's epochs."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_end_of(call, topic.topic, each) for each in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _end_of(call: Call, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        if not call.may_cluster(AclOperation.CLUSTER_ACTION):
            call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        partition = call.broker.leader_partition(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        epoch, end = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=wanted.partition)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end)
