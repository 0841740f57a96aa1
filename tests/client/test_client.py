"""The protocol client: negotiation, routing, retries, and brokers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ottla.client import BrokerConnection, Client, ConnectionFailedError
from ottla.client.client import EARLIEST, LATEST, TRANSACTION, parse_address
from ottla.client.configs import Operation, Resource, alter_configs, describe_configs
from ottla.client.groups import commit, committed, delete_group, describe_group, list_groups
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds, offsets_at
from ottla.client.topics import create_partitions, create_topic, delete_records, delete_topic
from ottla.client.transactions import describe_producers, describe_transaction, list_transactions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.iterate import Record
from ottla.testing import Cluster
from tests.client.sending import send_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.bootstrap, timeout=60) as connected:
        yield connected


def batch(*values: bytes, codec: CompressionType = CompressionType.NONE) -> bytearray:
    records = [Record(0, NOW + number, None, value) for number, value in enumerate(values)]
    return build_batch(records, compression=codec)


@contextmanager
def strange_broker(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen on a socket and run `talk` for each connection; yield the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with taken:
                taken.settimeout(120)
                talk(taken)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


# Addresses.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("localhost", ("localhost", 9092)),
        (":1234", ("localhost", 1234)),
        ("[::1]:9093", ("::1", 9093)),
        ("fe80::1", ("fe80::1", 9092)),
        (" broker.example.org:19092 ", ("broker.example.org", 19092)),
    ],
)
def test_address_is_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["host:port", "host:0", "host:70000", "host:1:2", "host:"])
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        parse_address(text)


def test_empty_bootstrap_is_refused() -> None:
    with pytest.raises(ValueError, match="no bootstrap server"):
        Client(" , ")


# Brokers that misbehave.


def refused_by(where: str) -> str:
    with Client(where, timeout=60) as client, pytest.raises(ConnectionFailedError) as refused:
        client.topics()
    return str(refused.value)


def test_closed_port_is_an_error() -> None:
    with Client("127.0.0.1:1", timeout=60) as client, pytest.raises(ConnectionFailedError, match="cannot connect to"):
        client.topics()


def test_next_bootstrap_server_is_tried(cluster: Cluster) -> None:
    with Client(f"127.0.0.1:1,{cluster.bootstrap}") as client:
        assert sorted(client.brokers) == [1, 2, 3]


def test_broker_that_closes_the_connection() -> None:
    with strange_broker(lambda taken: None) as where:
        assert "did not answer" in refused_by(where)


@pytest.mark.parametrize("length", [-1, 0, 3, 0x48545450, 0x7FFFFFFF])
def test_response_with_impossible_length_is_refused(length: int) -> None:
    def talk(taken: socket.socket) -> None:
        taken.recv(1000)
        taken.sendall(struct.pack(">i", length) + b"garbage")

    with strange_broker(talk) as where:
        assert "is it a Kafka broker" in refused_by(where)


def test_response_with_wrong_correlation_id_is_refused() -> None:
    def talk(taken: socket.socket) -> None:
        taken.recv(1000)
        taken.sendall(struct.pack(">iih", 6, 12345, 0))

    with strange_broker(talk) as where:
        assert "answered request 12345" in refused_by(where)


def old_broker(taken: socket.socket) -> None:
    """Act as a broker with ApiVersions up to v2 and Metadata up to v1, which answers newer ones per KIP-511."""
    apis = [ApiVersion(api_key=3, max_version=1), ApiVersion(api_key=18, max_version=2)]
    while head := taken.recv(4):
        frame = taken.recv(struct.unpack(">i", head)[0])
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key == 18 and version > 2:
            body = ApiVersionsResponse(error_code=35, api_keys=apis[1:]).encode(0)
        elif key == 18:
            body = ApiVersionsResponse(api_keys=apis).encode(version)
        else:
            assert (key, version) == (3, 1)
            body = MetadataResponse(controller_id=1).encode(1)
        taken.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)


def test_old_broker_gets_versions_that_it_supports() -> None:
    with strange_broker(old_broker) as where:
        host, _, port = where.partition(":")
        connection = BrokerConnection(host, int(port), timeout=60)
        assert connection.best_version(3) == 1
        assert connection.send(MetadataRequest(topics=[]), MetadataResponse).controller_id == 1
        with pytest.raises(KafkaError, match="does not support Fetch"):
            connection.best_version(1)
        connection.close()


def test_broken_connection_is_opened_again(client: Client) -> None:
    node = client.node(1)
    node.send(MetadataRequest(topics=[]), MetadataResponse)
    assert node._socket is not None
    node._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionFailedError):
        node.send(MetadataRequest(topics=[]), MetadataResponse)
    node.send(MetadataRequest(topics=[]), MetadataResponse)


# Routing.


def test_requests_are_routed_to_leaders(client: Client, cluster: Cluster) -> None:
    cluster.create_topic("routed", 6)
    assert {client.leader("routed", index) for index in range(6)} == {1, 2, 3}
    sent = send_batches(client, "routed", {index: batch(b"%d" % index) for index in range(6)})
    assert {index: value.base_offset for index, value in sent.items()} == dict.fromkeys(range(6), 0)
    fetched = client.fetch("routed", dict.fromkeys(range(6), 0))
    assert all(len(fetched[index].records) > 60 for index in range(6))
    assert client.list_offsets("routed", range(6), LATEST) == dict.fromkeys(range(6), (1, -1))
    with pytest.raises(KafkaError, match="has partitions 0 to 5, not 6"):
        client.leader("routed", 6)


def test_moved_leader_is_found(client: Client, cluster: Cluster) -> None:
    cluster.create_topic("moving", 1, 3)
    send_batches(client, "moving", {0: batch(b"before")})
    before = client.leader("moving", 0)
    after = next(node for node in (1, 2, 3) if node != before)

    request = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(name="moving", partitions=[ReassignablePartition(partition_index=0, replicas=[after])])
        ]
    )
    assert client.to_any(request, AlterPartitionReassignmentsResponse).error_code == 0
    assert send_batches(client, "moving", {0: batch(b"after")})[0].base_offset == 1
    assert client.leader("moving", 0) == after


def test_error_that_is_not_retriable_is_raised(client: Client, cluster: Cluster) -> None:
    cluster.create_topic("strict", 1, configs={"max.message.bytes": "200"})
    with pytest.raises(KafkaError) as refused:
        send_batches(client, "strict", {0: batch(bytes(1000))})
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert not refused.value.retriable


# Records.


@pytest.mark.parametrize("codec", list(CompressionType))
def test_records_are_read_from_any_offset(client: Client, cluster: Cluster, codec: CompressionType) -> None:
    topic = f"read-{codec.name.lower()}"
    cluster.create_topic(topic, 2)
    for start in (0, 10):
        values = [b"%d" % number for number in range(start, start + 10)]
        send_batches(client, topic, {0: batch(*values, codec=codec), 1: batch(*values, codec=codec)})
    known = bounds(client, topic, [0, 1])
    assert [(entry.start, entry.end) for entry in known.values()] == [(0, 20), (0, 20)]
    read = list(RecordReader(client, topic, {0: 15, 1: 3}, until={0: 20, 1: 5}))
    assert [(entry.partition, entry.record.value) for entry in sorted(read, key=lambda entry: entry.partition)] == [
        *((0, b"%d" % number) for number in range(15, 20)),
        (1, b"3"),
        (1, b"4"),
    ]
    assert offsets_at(client, topic, [0, 1], NOW + 4) == {0: 4, 1: 4}
    assert offsets_at(client, topic, [0], NOW + 1_000_000) == {0: 20}


def test_reader_waits_for_its_end_offset(client: Client, cluster: Cluster) -> None:
    cluster.create_topic("grows", 1)
    send_batches(client, "grows", {0: batch(b"0", b"1")})
    reader = iter(RecordReader(client, "grows", {0: 0}, until={0: 3}))
    assert [next(reader).record.value for _ in range(2)] == [b"0", b"1"]
    with Client(cluster.bootstrap) as other:
        send_batches(other, "grows", {0: batch(b"2", b"3")})
    assert [entry.record.value for entry in reader] == [b"2"]


# Administration.


def test_topics_are_created_changed_and_deleted(client: Client) -> None:
    made = create_topic(client, "admin", partitions=2, replication_factor=3, configs={"retention.ms": "1000"})
    assert (made.num_partitions, made.replication_factor) == (2, 3)
    create_partitions(client, "admin", 3)
    assert len(client.topics(["admin"])[0].partitions) == 3
    alter_configs(client, Resource.TOPIC, "admin", [("retention.ms", Operation.SET, "2000")])
    assert describe_configs(client, Resource.TOPIC, "admin", ["retention.ms"])[0].value == "2000"
    alter_configs(client, Resource.BROKER, "2", [("log.cleaner.threads", Operation.SET, "2")])
    assert describe_configs(client, Resource.BROKER, "2", ["log.cleaner.threads"])[0].value == "2"
    send_batches(client, "admin", {0: batch(b"a", b"b")})
    assert delete_records(client, "admin", {0: 1}) == {0: 1}
    assert client.list_offsets("admin", [0], EARLIEST)[0][0] == 1
    delete_topic(client, "admin")
    with pytest.raises(KafkaError) as gone:
        client.topics(["admin"])
    assert gone.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        create_topic(client, "x/y")
    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    by_hand = create_topic(client, "by-hand", assignment={0: [3, 1], 1: [2, 3]})
    assert by_hand.num_partitions == 2
    assert [partition.replicas for partition in client.topics(["by-hand"])[0].partitions.values()] == [(3, 1), (2, 3)]


def test_group_offsets_are_committed_read_and_deleted(client: Client, cluster: Cluster) -> None:
    cluster.create_topic("grouped", 2)
    commit(client, "admins", {("grouped", 0): 0, ("grouped", 1): 0})
    assert committed(client, "admins") == {("grouped", 0): 0, ("grouped", 1): 0}
    assert "admins" in {group.group for group in list_groups(client)}
    assert describe_group(client, "admins").state == "Empty"
    delete_group(client, "admins")
    with pytest.raises(KafkaError) as gone:
        describe_group(client, "admins")
    assert gone.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_transactions_are_listed(client: Client, cluster: Cluster) -> None:
    from ottla.client.producer import Producer

    cluster.create_topic("ledger", 1)
    producer = Producer(client, transactional_id="books")
    producer.initialize()
    producer.send("ledger", value=b"x", key=None, partition=0)
    producer.flush()
    assert {
        transaction.transactional_id: transaction.transaction_state for _, transaction in list_transactions(client)
    }["books"] == "Ongoing"
    coordinator, state = describe_transaction(client, "books")
    assert coordinator == client.coordinator("books", TRANSACTION)
    assert [topic.topic for topic in state.topics] == ["ledger"]
    assert describe_producers(client, "ledger", [0])[0][0].current_txn_start_offset == 0
    producer.abort()


def racks() -> Cluster:
    return Cluster(2, racks=["north", "south"], topics={"t": {"partitions": 1, "replication_factor": 2}})


def test_fetch_goes_to_the_replica_in_the_clients_rack_and_back_to_the_leader() -> None:
    with racks() as cluster:
        leader = cluster.partition("t", 0).leader
        with Client(cluster.bootstrap, rack=["south", "north"][leader - 1]) as client:
            producer = Producer(client)
            producer.send("t", None, b"x")
            producer.flush()
            for _ in range(2):
                assert client.fetch("t", {0: 0})[0].records
            assert len(cluster.requests("Fetch", node=leader)) == 1, "the leader named the follower once"
            assert len(cluster.requests("Fetch", node=3 - leader)) == 2
            client._followers["t", 0] = (99, float("inf"))  # a follower that is gone
            assert client.fetch("t", {0: 0})[0].records
            client._followers["t", 0] = (3 - leader, 0.0)  # expired
            assert client.fetch("t", {0: 0})[0].records


def test_fetch_without_rack_goes_to_the_leader() -> None:
    with racks() as cluster:
        leader = cluster.partition("t", 0).leader
        with Client(cluster.bootstrap) as client:
            client.fetch("t", {0: 0}, max_wait_ms=1)
        assert cluster.requests("Fetch", node=3 - leader) == []
