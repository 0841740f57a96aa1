"""Follower fetch (KIP-392): a consumer reads from the replica in its rack if replica.selector.class selects it."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.session import Session
from ottla.broker.start import close_cluster, open_cluster
from ottla.cluster.server_config import Endpoint, server_config
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.server.dispatch import Dispatch
from ottla.testing import Cluster
from ottla.world.world import World

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {1: "north", 2: "south", 3: "west"}


class Three:
    """Three nodes in three racks, in virtual time."""

    def __init__(self, selector: str | None) -> None:
        world = World.simulated(1)
        configs = []
        for node, rack in RACKS.items():
            values = {
                "node.id": str(node),
                "broker.rack": rack,
                "log.dirs": f"/data/{node}",
                "listeners": f"PLAINTEXT://127.0.0.1:{9091 + node}",
            }
            configs.append(server_config(values | ({"replica.selector.class": selector} if selector else {})))
        advertised = {node: [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9091 + node)] for node in RACKS}
        self.runtime = open_cluster(world, configs, advertised)
        self.runtime.create_topic("t", 1, 2)
        partition = self.runtime.partitions["t", 0]
        partition.append(build_batch([Record(0, world.clock.now_ms(), None, b"x")]))
        self.leader = partition.state.leader
        self.follower = next(node for node in partition.state.replicas if node != self.leader)
        self.stranger = next(node for node in RACKS if node not in partition.state.replicas)

    def fetch(self, node: int, rack: str, version: int = 12) -> PartitionData:
        request = FetchRequest(
            session_epoch=-1,
            rack_id=rack,
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])],
        )
        if version < 11:
            request.rack_id = ""
        frame = encode_request(1, version, 1, "c", request)
        response = Dispatch(self.runtime.nodes[node]).handle(
            Session(1, "PLAINTEXT", "127.0.0.1", 1), memoryview(bytearray(frame))[4:]
        )
        assert response is not None
        assert not isinstance(response, Pending)
        data = b"".join(
            bytes(part) if isinstance(part, bytes | bytearray | memoryview) else part.read(0, len(part))
            for part in response
        )
        _, position = ResponseHeader.decode_from(data, 4, 1 if version >= 12 else 0)
        return FetchResponse.decode_from(data, position, version)[0].responses[0].partitions[0]


@pytest.mark.parametrize("version", [11, 12])
def test_leader_returns_preferred_replica_in_client_rack(version: int) -> None:
    three = Three(SELECTOR)
    sent = three.fetch(three.leader, RACKS[three.follower], version)
    assert sent.preferred_read_replica == three.follower
    assert not sent.records
    there = three.fetch(three.follower, RACKS[three.follower], version)
    assert (there.error_code, there.preferred_read_replica) == (0, -1)
    assert there.records
    assert (there.high_watermark, there.log_start_offset) == (1, 0)
    close_cluster(three.runtime)


def test_client_without_replica_in_its_rack_reads_from_leader() -> None:
    three = Three(SELECTOR)
    for rack in (RACKS[three.leader], RACKS[three.stranger], "elsewhere", ""):
        response = three.fetch(three.leader, rack)
        assert (response.preferred_read_replica, bool(response.records)) == (-1, True), rack
    close_cluster(three.runtime)


def test_without_selector_clients_read_from_leader() -> None:
    three = Three(None)
    assert three.fetch(three.leader, RACKS[three.follower]).preferred_read_replica == -1
    close_cluster(three.runtime)


def test_fetch_fails_without_replica_and_on_follower_before_v11() -> None:
    three = Three(SELECTOR)
    assert three.fetch(three.stranger, "north").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert three.fetch(three.follower, "", 10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    close_cluster(three.runtime)


def test_consumer_of_a_test_cluster_fetches_from_the_replica_in_its_rack() -> None:
    topics = {"t": {"partitions": 1, "replication_factor": 2}}
    with Cluster(2, racks=["north", "south"], topics=topics) as cluster:
        leader = cluster.partition("t", 0).leader
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("t", b"x")
        assert producer.flush(120) == 0
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "client.rack": ["south", "north"][leader - 1],
        }
        consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(120)
        assert message is not None
        assert message.value() == b"x"
        consumer.close()
        assert cluster.requests("Fetch", node=3 - leader) != []
    with pytest.raises(ValueError, match="racks= names 1 racks for 2 brokers"):
        Cluster(2, racks=["north"])
