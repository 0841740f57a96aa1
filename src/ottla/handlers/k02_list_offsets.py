"""ListOffsets (2): offsets by timestamp, or at the start or end of a log.

v2 adds the isolation level, v4 leader epochs, v5 OFFSET_NOT_AVAILABLE, v6 is flexible, v7 adds the offset of the
maximum timestamp, v8 the earliest local offset, v9 the latest tiered one, v10 a timeout, v11 the earliest offset that
is not uploaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

LATEST = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# The first version with each special timestamp.
SPECIAL = {-3: 7, -4: 8, -5: 9, -6: 11}


def on_error(request: ListOffsetsRequest, version: int, code: ErrorCode, message: str | None) -> ListOffsetsResponse:
    """Return the error for every partition."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_failure(partition.partition_index, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ]
    )


@api(
    2,
    versions=(1, 11),
    acl=access.per_resource(access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("topics.partitions"),
)
def list_offsets(call: Call, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up each timestamp in its partition's log; a repeated partition is rejected once."""
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown isolation level {request.isolation_level}")
    requested: dict[str, dict[int, list[ListOffsetsPartition]]] = {}
    for topic in request.topics:
        partitions = requested.setdefault(topic.name, {})
        for partition in topic.partitions:
            partitions.setdefault(partition.partition_index, []).append(partition)
    response = ListOffsetsResponse()
    for name, partitions in requested.items():
        responses = []
        for index, repeats in partitions.items():
            try:
                call.require(AclOperation.DESCRIBE, ResourceType.TOPIC, name)
                if len(repeats) > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                responses.append(_lookup(call, request, name, repeats[0]))
            except KafkaError as error:
                responses.append(_failure(index, error.code))
        response.topics.append(ListOffsetsTopicResponse(name=name, partitions=responses))
    return response


def _lookup(
    call: Call, request: ListOffsetsRequest, topic: str, requested: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    timestamp = requested.timestamp
    if timestamp < -2 and call.version < SPECIAL.get(timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    partition = call.broker.leader_partition(topic, requested.partition_index)
    partition.check_leader_epoch(requested.current_leader_epoch)
    end = partition.readable_end(request.isolation_level == READ_COMMITTED)
    if timestamp == LATEST:
        return _response_at(call, requested, -1, end, partition.state.leader_epoch)
    position = partition.log.offset_for_timestamp(timestamp)
    if position is None or (position.offset >= end and timestamp >= 0):
        return ListOffsetsPartitionResponse(partition_index=requested.partition_index)
    return _response_at(call, requested, position.timestamp, position.offset, position.leader_epoch)


def _response_at(
    call: Call, requested: ListOffsetsPartition, timestamp: int, offset: int, leader_epoch: int | None
) -> ListOffsetsPartitionResponse:
    response = ListOffsetsPartitionResponse(
        partition_index=requested.partition_index, timestamp=timestamp, offset=offset
    )
    if leader_epoch is not None and call.version >= 4:
        response.leader_epoch = leader_epoch
    return response


def _failure(index: int, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
