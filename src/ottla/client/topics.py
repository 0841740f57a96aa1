"""Topics, asked for and changed: create, delete, more partitions, delete records. A refusal is a KafkaError."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.client.client import Client

TIMEOUT_MS = 30_000


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    assignment: Mapping[int, Sequence[int]] | None = None,
    validate_only: bool = False,
) -> CreatableTopicResult:
    """Create a topic; what is left out is the broker's default. Tells what was, or would be, created."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if assignment else partitions,
        replication_factor=-1 if assignment else replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in (assignment or {}).items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    result = client.to_controller(request, CreateTopicsResponse).topics[0]
    if result.error_code:
        raise _refused(result.error_code, result.error_message, name)
    return result


def delete_topic(client: Client, name: str) -> None:
    """Delete a topic with all that is in it."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS)
    # Up to version 5 topics are named in another field.
    if client.node(client.controller).best_version(20) < 6:
        request.topics = []
    result = client.to_controller(request, DeleteTopicsResponse).responses[0]
    if result.error_code:
        raise _refused(result.error_code, result.error_message, name)


def create_partitions(client: Client, name: str, count: int, *, validate_only: bool = False) -> None:
    """Raise a topic's number of partitions to `count`."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )
    result = client.to_controller(request, CreatePartitionsResponse).results[0]
    if result.error_code:
        raise _refused(result.error_code, result.error_message, name)


def delete_records(client: Client, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """Delete what lies before an offset (-1: the high watermark) in each partition; the new starts."""
    found: dict[int, int] = {}
    for node, partitions in client.by_leader(topic, before).items():
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=each, offset=before[each]) for each in partitions
                    ],
                )
            ],
            timeout_ms=TIMEOUT_MS,
        )
        for answer in client.to_node(node, request, DeleteRecordsResponse).topics[0].partitions:
            if answer.error_code:
                raise KafkaError(answer.error_code, f"{topic}-{answer.partition_index}")
            found[answer.partition_index] = answer.low_watermark
    return found


def _refused(code: int, message: str | None, topic: str) -> KafkaError:
    """Kafka's refusal, which does not always say what it is about."""
    if message and topic in message:
        return KafkaError(code, message)
    return KafkaError(code, f"topic {topic}: {message}" if message else f"topic {topic}")
