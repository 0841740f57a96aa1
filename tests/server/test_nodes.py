"""Several nodes in one process, and several listeners of one node: leaders, errors and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.client.client import TRANSACTION
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.k15_describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.k65_describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.testing import Cluster

from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(3, topics={"shared": {"partitions": 6, "replication_factor": 1}}) as cluster:
        yield cluster


@pytest.fixture
def client(three: Cluster) -> Iterator[Client]:
    with Client(three.bootstrap) as connected:
        yield connected


def test_partitions_are_spread_over_nodes(client: Client) -> None:
    leaders = [partition.leader for partition in client.topic("shared").partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    assert sorted(client.brokers) == [1, 2, 3]
    described = client.to_any(DescribeClusterRequest(), DescribeClusterResponse)
    assert {(broker.broker_id, broker.port) for broker in described.brokers} == {
        (node, port) for node, (_, port) in client.brokers.items()
    }


def test_node_refuses_partitions_led_by_another(client: Client) -> None:
    leader = client.leader("shared", 0)
    stranger = client.node(next(node for node in client.brokers if node != leader))
    info = client.topic("shared")
    batch = build_batch([Record(0, 1_700_000_000_000, None, b"x")])

    produced = stranger.send(
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name="shared", topic_id=info.id, partition_data=[PartitionProduceData(index=0, records=batch)]
                )
            ],
        ),
        ProduceResponse,
    )
    refused = produced.responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.base_offset == -1
    # KIP-951: the current leader and its endpoint.
    assert refused.current_leader.leader_id == leader
    assert [(node_endpoint.node_id, node_endpoint.port) for node_endpoint in produced.node_endpoints] == [
        (leader, client.brokers[leader][1])
    ]

    fetched = stranger.send(
        FetchRequest(
            topics=[
                FetchTopic(topic_id=info.id, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
            ],
            session_epoch=-1,
        ),
        FetchResponse,
    )
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched.responses[0].partitions[0].current_leader.leader_id == leader
    assert [node_endpoint.node_id for node_endpoint in fetched.node_endpoints] == [leader]

    offsets = stranger.send(
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name="shared", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
            ],
        ),
        ListOffsetsResponse,
    )
    assert offsets.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    epochs = stranger.send(
        OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(topic="shared", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)])
            ],
        ),
        OffsetForLeaderEpochResponse,
    )
    assert epochs.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    deleted = stranger.send(
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(name="shared", partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
            ]
        ),
        DeleteRecordsResponse,
    )
    assert deleted.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    producers = stranger.send(
        DescribeProducersRequest(topics=[TopicRequest(name="shared", partition_indexes=[0])]), DescribeProducersResponse
    )
    assert producers.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_node_refuses_groups_and_transactions_of_another(client: Client) -> None:
    coordinator = client.coordinator("mine")
    stranger = client.node(next(node for node in client.brokers if node != coordinator))
    beat = stranger.send(HeartbeatRequest(group_id="mine", generation_id=1, member_id="m"), HeartbeatResponse)
    assert beat.error_code == ErrorCode.NOT_COORDINATOR
    described = stranger.send(DescribeGroupsRequest(groups=["mine"]), DescribeGroupsResponse)
    assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    fetched = stranger.send(
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="mine", topics=None)]), OffsetFetchResponse
    )
    assert fetched.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    committed = stranger.send(
        OffsetCommitRequest(
            group_id="mine",
            topics=[
                OffsetCommitRequestTopic(
                    topic_id=client.topic("shared").id, partitions=[OffsetCommitRequestPartition(partition_index=0)]
                )
            ],
        ),
        OffsetCommitResponse,
    )
    assert committed.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    owner = client.coordinator("my-transactions", TRANSACTION)
    other = client.node(next(node for node in client.brokers if node != owner))
    begun = other.send(
        InitProducerIdRequest(transactional_id="my-transactions", transaction_timeout_ms=1000), InitProducerIdResponse
    )
    assert begun.error_code == ErrorCode.NOT_COORDINATOR
    notified = other.send(
        DescribeTransactionsRequest(transactional_ids=["my-transactions"]), DescribeTransactionsResponse
    )
    assert notified.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR


def test_groups_are_spread_over_nodes(client: Client) -> None:
    assert {client.coordinator(f"group-{number}") for number in range(40)} == {1, 2, 3}


def test_any_node_accepts_controller_requests(client: Client) -> None:
    """As a KRaft broker does, which forwards it."""
    for node in client.brokers:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name=f"by-{node}", num_partitions=1, replication_factor=1)]
        )
        assert client.to_node(node, request, CreateTopicsResponse).topics[0].error_code == 0
    assert {f"by-{node}" for node in client.brokers} <= {topic.name for topic in client.topics()}


def test_requests_for_unknown_topics_create_nothing(client: Client) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="nowhere")], allow_auto_topic_creation=False)
    response = client.to_any(request, MetadataResponse)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nowhere" not in {topic.name for topic in client.topics()}


# Listeners


def test_metadata_has_addresses_of_the_listener() -> None:
    settings = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "advertised.listeners": "INSIDE://127.0.0.1:0,OUTSIDE://kafka.example.org:19092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with Cluster(configs=settings) as cluster:
        running = cluster._running
        assert running is not None
        ports = cluster.call(lambda _: [listener.port for listener in running.servers[1]._listeners.values()])
        assert len(set(ports)) == 2

        def told(port: int) -> tuple[str, int]:
            with Wire(f"127.0.0.1:{port}") as wire:
                broker = wire.ask(MetadataRequest(topics=[]), MetadataResponse, 12).brokers[0]
            return broker.host, broker.port

        assert told(ports[0]) == ("127.0.0.1", ports[0])
        assert told(ports[1]) == ("kafka.example.org", 19092)


def test_default_listener_is_loopback() -> None:
    with Cluster() as cluster:
        running = cluster._running
        assert running is not None
        hosts = cluster.call(lambda _: [listener.host for listener in running._configs[0].listeners])
    assert hosts == ["127.0.0.1"]
