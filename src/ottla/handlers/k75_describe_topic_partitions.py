"""DescribeTopicPartitions (75): topics in pages, with a cursor for the next page (KIP-966)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.metadata.partition_view import PartitionView
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.cluster.topic_names import validate_topic_name
from ottla.handlers import access
from ottla.handlers.registry import api, kafka_error
from ottla.pieces import run_in_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k75_describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from ottla.broker.runtime import BrokerRuntime
    from ottla.broker.session import Call
    from ottla.cluster.partitions.state import Topic
    from ottla.pending import Pending

DESCRIBE_WORK = 10
"""Units of work (`ottla.pieces`) of a topic or a partition."""
MANY_TOPICS = 500


def on_error(
    request: DescribeTopicPartitionsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeTopicPartitionsResponse:
    """Return the error for every named topic."""
    return DescribeTopicPartitionsResponse(
        topics=[DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code) for topic in request.topics]
    )


@api(75, versions=(0, 0), acl=access.per_resource(access.on_topic(AclOperation.DESCRIBE)), on_error=on_error)
def describe_topic_partitions(
    call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Pending[DescribeTopicPartitionsResponse]:
    """Describe topics in order of their names from the cursor, up to a number of partitions."""
    call.large_response = len(request.topics) > MANY_TOPICS
    return run_in_pieces(
        call.broker.runtime.world.clock,
        _describe_from_cursor(call, request),
        lambda error: on_error(request, call.version, *kafka_error(error)),
    )


def _describe_from_cursor(
    call: Call, request: DescribeTopicPartitionsRequest
) -> Generator[int, None, DescribeTopicPartitionsResponse]:
    runtime = call.broker.runtime
    most = call.broker.config_int("max.request.partition.size.limit")
    remaining = max(min(request.response_partition_limit, most), 1)
    cursor = request.cursor
    first_name, first_index = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    names = [topic.name for topic in request.topics] or list(runtime.image.topic_ids)
    if request.topics and cursor is not None and first_name not in names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The topics do not contain the one of the cursor: {first_name}")
    if first_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The cursor's partition is {first_index}")
    view = PartitionView(runtime, call.session.listener, listener_errors=True)
    response = DescribeTopicPartitionsResponse()
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(dict.fromkeys(names)):
        yield DESCRIBE_WORK
        if name < first_name:
            continue
        if not call.may_topic(AclOperation.DESCRIBE, name):
            if request.topics:
                hidden.append(_refused(name))
            continue
        start = first_index if name == first_name else 0
        if remaining == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=start)
            break
        topic = runtime.image.topic(name)
        if topic is None:
            if request.topics:
                response.topics.append(_missing(runtime, name))
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= start]
        response.topics.append(_describe(view, topic, indexes[:remaining]))
        if len(indexes) > remaining:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[remaining])
            break
        remaining -= len(indexes)
        yield DESCRIBE_WORK * len(indexes)
    for described in response.topics:
        described.topic_authorized_operations = call.authorized_operations(ResourceType.TOPIC, described.name or "")
        yield DESCRIBE_WORK
    response.topics += hidden
    return response


def _refused(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _missing(runtime: BrokerRuntime, name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        validate_topic_name(name)
    except KafkaError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code, is_internal=runtime.is_internal(name))


def _describe(view: PartitionView, topic: Topic, indexes: list[int]) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        state = topic.partitions[index]
        leader, error = view.leader(state)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=error,
                partition_index=index,
                leader_id=leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=list(state.replicas),
                isr_nodes=list(state.isr),
                eligible_leader_replicas=list(state.elr),
                last_known_elr=list(state.last_known_elr),
                offline_replicas=view.offline_replicas(state),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=view.runtime.is_internal(topic.name), partitions=partitions
    )
