"""Moves leadership of partitions: elections of the preferred replica, and reassignments that change which it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.client.client import Client


def elect_preferred(client: Client, topic: str, partitions: Iterable[int]) -> list[int]:
    """Elect the first replica of each partition; return the partitions whose leader changed."""
    request = ElectLeadersRequest(
        election_type=0, topic_partitions=[TopicPartitions(topic=topic, partitions=list(partitions))], timeout_ms=30_000
    )
    response = client.to_controller(request, ElectLeadersResponse)
    if response.error_code:
        raise KafkaError(response.error_code, f"election of leaders of {topic}")
    elected = []
    for result in response.replica_election_results:
        for partition in result.partition_result:
            if partition.error_code == ErrorCode.NONE:
                elected.append(partition.partition_id)
            elif partition.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                raise KafkaError(partition.error_code, partition.error_message or f"{topic}-{partition.partition_id}")
    return elected


def reassign(client: Client, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """Assign a partition to these brokers, the preferred leader first."""
    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic, partitions=[ReassignablePartition(partition_index=partition, replicas=list(replicas))]
            )
        ],
        timeout_ms=30_000,
    )
    response = client.to_controller(request, AlterPartitionReassignmentsResponse)
    if response.error_code:
        raise KafkaError(response.error_code, response.error_message)
    for result in response.responses:
        for entry in result.partitions:
            if entry.error_code:
                raise KafkaError(entry.error_code, entry.error_message or f"{topic}-{entry.partition_index}")
