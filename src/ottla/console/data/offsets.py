"""Offsets of many partitions with one request per broker: log ends, log starts, last stable and committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.client.client import Client, TopicInfo, TopicPartition
    from ottla.client.groups import GroupListing

BATCH: Final = 5000
"""Partitions per request: a broker answers in a few milliseconds."""


def list_offsets(
    client: Client, topics: Iterable[TopicInfo], timestamp: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """Return an offset of every partition that has a leader and answers; others are left out."""
    by_leader: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for partition in topic.partitions.values():
            if partition.leader >= 0:
                by_leader.setdefault(partition.leader, []).append((topic.name, partition.index))
    offsets: dict[TopicPartition, int] = {}
    for node, partitions in by_leader.items():
        for first in range(0, len(partitions), BATCH):
            grouped: dict[str, list[int]] = {}
            for name, index in partitions[first : first + BATCH]:
                grouped.setdefault(name, []).append(index)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=1 if read_committed else 0,
                topics=[
                    ListOffsetsTopic(
                        name=name,
                        partitions=[ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in indexes],
                    )
                    for name, indexes in grouped.items()
                ],
            )
            try:
                answer = client.to_node(node, request, ListOffsetsResponse)
            except ConnectionFailedError:
                continue  # one broker of several is away
            for topic_answer in answer.topics:
                for result in topic_answer.partitions:
                    if not result.error_code:
                        offsets[topic_answer.name, result.partition_index] = result.offset
    return offsets


def committed_of_groups(client: Client, groups: Iterable[GroupListing]) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of many groups, with one request per coordinator; refused groups are left out."""
    by_node: dict[int, list[str]] = {}
    for group in groups:
        by_node.setdefault(group.coordinator, []).append(group.group)
    committed: dict[str, dict[TopicPartition, int]] = {}
    for node, names in by_node.items():
        connection = client.node(node)
        version = min(connection.best_version(9), 9)  # version 10 has topic ids instead of names
        if version < 8:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node} returns the offsets of one group at a time")
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
        for answered in connection.send(request, OffsetFetchResponse, version=version).groups:
            if answered.error_code:
                continue
            committed[answered.group_id] = {
                (topic.name, partition.partition_index): partition.committed_offset
                for topic in answered.topics
                for partition in topic.partitions
                if not partition.error_code and partition.committed_offset >= 0
            }
    return committed


def total_lag(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """Return the records between committed offsets and log ends, over the partitions of which both are known."""
    return sum(max(0, ends[key] - offset) for key, offset in committed.items() if key in ends)
