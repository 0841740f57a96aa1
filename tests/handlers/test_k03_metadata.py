"""Metadata (3): leaders and offline replicas of partitions whose log directory or broker is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from ottla.protocol.messages.k75_describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.storage.names import TopicPartition
from ottla.testing import Cluster
from tests.conversations.broker import assert_as_kafka
from tests.conversations.local_talk import LocalTalk
from tests.server.wire import Wire

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk

TWO_DIRECTORIES = {"log.dirs": "/data/one,/data/two"}


def partitions(local: LocalTalk, version: int = 13) -> dict[int, MetadataResponsePartition]:
    response = local.quietly(
        MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, version=version
    )
    return {partition.partition_index: partition for partition in response.topics[0].partitions}


def lose_directory(local: LocalTalk, path: str = "/data/two") -> int:
    """Fail a log directory; return the partition that lay there."""
    directory = next(directory for directory in local.runtime.nodes[1].directories if directory.path == path)
    lost = next(index for index in (0, 1) if TopicPartition("t", index) in directory.logs)
    directory.env.fail(OSError(5, "Input/output error"))
    local.pause()
    return lost


@pytest.mark.parametrize("version", [5, 13])
def test_partition_on_an_offline_directory_has_no_leader(version: int) -> None:
    local = LocalTalk(TWO_DIRECTORIES)
    local.create("t", 2)
    lost = lose_directory(local)
    described = partitions(local, version)
    assert (described[lost].leader_id, described[lost].error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert described[lost].offline_replicas == [1]
    assert (described[1 - lost].leader_id, described[1 - lost].error_code) == (1, ErrorCode.NONE)
    assert described[1 - lost].offline_replicas == []
    local.close()


def test_describe_topic_partitions_shows_no_leader_for_an_offline_directory() -> None:
    local = LocalTalk(TWO_DIRECTORIES)
    local.create("t", 2)
    lost = lose_directory(local)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    partition = local.quietly(request, DescribeTopicPartitionsResponse).topics[0].partitions[lost]
    assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert partition.offline_replicas == [1]
    local.close()


def test_produce_to_an_offline_directory_fails_with_kafka_storage_error() -> None:
    local = LocalTalk(TWO_DIRECTORIES)
    local.create("t", 2)
    lost = lose_directory(local)
    data = [PartitionProduceData(index=lost, records=bytes(build_batch([Record(0, 1, None, b"x")])))]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])
    response = local.quietly(request, ProduceResponse, version=12)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    local.close()


def test_partition_is_led_again_after_a_restart_with_a_working_directory() -> None:
    local = LocalTalk(TWO_DIRECTORIES)
    local.create("t", 2)
    lose_directory(local)
    local.restart()
    assert [partition.leader_id for partition in partitions(local).values()] == [1, 1]
    local.close()


def test_replicas_of_a_stopped_node_are_offline() -> None:
    with Cluster(2, topics={"t": {"partitions": 1, "replication_factor": 2}}) as cluster:
        leader = cluster.partition("t", 0).leader
        cluster.stop_node(3 - leader)
        address = cluster.bootstrap.split(",")[leader - 1]
        with Wire(address) as wire:
            response = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), MetadataResponse, 13)
        assert [broker.node_id for broker in response.brokers] == [leader]
        partition = response.topics[0].partitions[0]
        assert (partition.leader_id, partition.offline_replicas) == (leader, [3 - leader])


@pytest.mark.parametrize("name", ["metadata", "metadata_creates_topics"])
def test_responses_are_those_of_kafka(name: str, broker_talk: Talk) -> None:
    assert_as_kafka(name, broker_talk)
