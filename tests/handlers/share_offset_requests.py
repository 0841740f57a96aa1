"""Requests about the offsets of share groups, which the tests of three handlers send."""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages import k90_describe_share_group_offsets as k90
from ottla.protocol.messages import k91_alter_share_group_offsets as k91
from ottla.protocol.messages import k92_delete_share_group_offsets as k92

from .group_broker import GROUP, TOPIC, GroupBroker


def alter(broker: GroupBroker, offsets: dict[int, int], topic: str = TOPIC, group: str = GROUP) -> Any:
    """Set start offsets by partition; return the response."""
    partitions = [
        k91.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        for index, offset in offsets.items()
    ]
    altered = k91.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
    return broker.ask(k91.AlterShareGroupOffsetsRequest(group_id=group, topics=[altered]))


def describe(broker: GroupBroker, *partitions: int, topic: str = TOPIC, group: str = GROUP, version: int = 1) -> Any:
    """Return the described group: some partitions of a topic, or all initialized partitions."""
    requested = k90.DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=list(partitions))
    request = k90.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=[requested] if partitions else None)
    (described,) = broker.ask(k90.DescribeShareGroupOffsetsRequest(groups=[request]), version).groups
    return described


def start_offsets(broker: GroupBroker, *partitions: int) -> dict[tuple[str, int], int]:
    """Return the start offsets of partitions."""
    return {
        (topic.topic_name, partition.partition_index): partition.start_offset
        for topic in describe(broker, *partitions).topics
        for partition in topic.partitions
    }


def delete(broker: GroupBroker, *topics: str, group: str = GROUP) -> Any:
    """Delete the offsets of topics; return the response."""
    requested = [k92.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    return broker.ask(k92.DeleteShareGroupOffsetsRequest(group_id=group, topics=requested))
