"""Creates and deletes topics, adds partitions, deletes records. Errors are KafkaErrors that name the topic."""

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
    """Create a topic, with the broker's defaults for missing arguments; return its properties."""
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
        raise _topic_error(result.error_code, result.error_message, name)
    return result


def delete_topic(client: Client, name: str) -> None:
    """Delete a topic with all its records."""
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=TIMEOUT_MS)
    # Versions up to 5 have the names in another field.
    if client.node(client.controller).best_version(20) < 6:
        request.topics = []
    result = client.to_controller(request, DeleteTopicsResponse).responses[0]
    if result.error_code:
        raise _topic_error(result.error_code, result.error_message, name)


def create_partitions(client: Client, name: str, count: int, *, validate_only: bool = False) -> None:
    """Raise a topic's number of partitions to `count`."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)],
        timeout_ms=TIMEOUT_MS,
        validate_only=validate_only,
    )
    result = client.to_controller(request, CreatePartitionsResponse).results[0]
    if result.error_code:
        raise _topic_error(result.error_code, result.error_message, name)


def delete_records(client: Client, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """Delete the records before an offset (-1: the high watermark) of each partition; return the new start offsets."""
    starts: dict[int, int] = {}
    for node, partitions in client.by_leader(topic, before).items():
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=index, offset=before[index]) for index in partitions
                    ],
                )
            ],
            timeout_ms=TIMEOUT_MS,
        )
        for result in client.to_node(node, request, DeleteRecordsResponse).topics[0].partitions:
            if result.error_code:
                raise KafkaError(result.error_code, f"{topic}-{result.partition_index}")
            starts[result.partition_index] = result.low_watermark
    return starts


def _topic_error(code: int, message: str | None, topic: str) -> KafkaError:
    """Return the error of a topic; name the topic if Kafka's message does not."""
    if message and topic in message:
        return KafkaError(code, message)
    return KafkaError(code, f"topic {topic}: {message}" if message else f"topic {topic}")
