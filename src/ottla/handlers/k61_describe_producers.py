"""DescribeProducers (API 61): the producer state of partitions, used to find hanging transactions (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.cluster.topic_names import validate_topic_name
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: DescribeProducersRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeProducersResponse:
    """Return the same error for all partitions."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=code, error_message=message)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


@api(
    61,
    versions=(0, 0),
    acl=access.per_resource(access.on_topic(AclOperation.READ)),
    on_error=on_error,
    split=divide_by("topics.partition_indexes"),
)
def describe_producers(call: Call, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """Describe the producers of each partition that this node leads."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name, partitions=[_describe(call, topic.name, index) for index in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _describe(call: Call, topic: str, index: int) -> PartitionResponse:
    try:
        call.require(AclOperation.READ, ResourceType.TOPIC, topic)
        validate_topic_name(topic)
        if call.broker.runtime.image.topic(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        log = call.broker.leader_partition(topic, index).log
        log.load()
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in log.producers.producers.values()
        ],
    )
