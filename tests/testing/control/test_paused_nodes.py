"""Paused nodes as clients see them: connections are accepted, and nothing is answered until the node resumes."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest
from ottla.testing import Cluster, VirtualClock
from tests.testing.clients import assigned, consumer, eventually, producer, read, send, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer

ASK = encode_request(18, 0, 7, "test", ApiVersionsRequest())


def connect(cluster: Cluster, node: int = 1) -> socket.socket:
    host, _, port = cluster.nodes()[node].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def hears_nothing(wire: socket.socket) -> bool:
    wire.settimeout(0.2)
    try:
        wire.recv(1)
    except TimeoutError:
        return True
    finally:
        wire.settimeout(60)
    return False


def test_clients_of_paused_node_are_answered_after_resume() -> None:
    with Cluster() as cluster:
        before = connect(cluster)
        before.sendall(ASK)
        assert before.recv(1)
        eventually(lambda: cluster.connections())
        cluster.pause_node(1)
        cluster.pause_node(1)
        after = connect(cluster)
        for wire in (before, after):
            wire.sendall(ASK)
        assert hears_nothing(after)
        assert len(cluster.requests("ApiVersions")) == 1
        cluster.resume_node(1)
        cluster.resume_node(1)
        assert after.recv(8)[4:] == b"\0\0\0\7"
        eventually(lambda: len(cluster.requests("ApiVersions")) == 3)
        before.close()
        after.close()


def test_pending_response_is_sent_after_resume() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster, connect(cluster) as wire:
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        fetch = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1000)
        fetch.topics, fetch.session_epoch = [FetchTopic(topic="t", partitions=[partition])], -1
        wire.sendall(encode_request(1, 11, 9, "test", fetch))
        eventually(lambda: cluster.requests("Fetch"))
        cluster.pause_node(1)
        cluster.advance(60)  # the fetch has reached its max_wait_ms
        assert hears_nothing(wire)
        cluster.resume_node(1)
        assert wire.recv(8)[4:] == b"\0\0\0\x09"


def test_paused_node_starts_no_tls_handshake() -> None:
    with Cluster(tls=True) as cluster:
        cluster.pause_node(1)
        context = ssl.create_default_context(cadata=cluster.ca_pem)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
        wire = connect(cluster)
        wire.sendall(outgoing.read())
        assert hears_nothing(wire)
        cluster.resume_node(1)
        assert wire.recv(1) == b"\x16"
        wire.close()


def joined(cluster: Cluster) -> Consumer:
    member = consumer(cluster, "t", group_id="g", session_timeout_ms=30_000, heartbeat_interval_ms=100)
    assigned(cluster, member)
    return member


def test_sessions_do_not_expire_on_paused_coordinator() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        member = joined(cluster)
        cluster.pause_node(1)
        cluster.advance(3600)
        assert not cluster.events("member.left")
        assert len(cluster.group("g").members) == 1
        cluster.resume_node(1)
        member.close()


def test_sessions_expire_when_coordinator_resumes() -> None:
    with Cluster(topics=["t"], clock=VirtualClock()) as cluster:
        member = joined(cluster)
        for rule in ("Heartbeat", "JoinGroup"):
            cluster.on(rule, times=None).drop_connection()
        cluster.pause_node(1)
        cluster.advance(3600)
        cluster.resume_node(1)
        cluster.advance(1)
        (left,) = cluster.events("member.left", group="g")
        assert left["reason"] == "session timeout"
        member.close()


def test_member_continues_after_coordinator_resumes() -> None:
    with Cluster(topics=["t"]) as cluster:
        reader, writer = consumer(cluster, "t", group_id="g"), producer(cluster)
        send(writer, "t", "a")
        assert read(reader, 1) == ["a"]
        cluster.pause_node(1)
        writer.produce("t", "b")
        writer.poll(0.2)
        assert values(cluster, "t") == ["a"]
        cluster.resume_node(1)
        assert writer.flush(60) == 0
        assert read(reader, 1) == ["b"]
        reader.close()


def test_paused_node_is_fenced_until_resume() -> None:
    topics = {"t": {"replication_factor": 3}}
    with Cluster(3, topics=topics, clock=VirtualClock(), configs={"broker.session.timeout.ms": "9000"}) as cluster:
        leader = cluster.partition("t").leader
        cluster.pause_node(leader)
        cluster.advance(8)
        assert cluster.partition("t").leader == leader
        cluster.advance(2)
        assert cluster.partition("t").leader not in (leader, -1)
        assert leader not in cluster.partition("t").in_sync
        assert send(producer(cluster), "t", "a").error is None
        cluster.resume_node(leader)
        assert leader in cluster.partition("t").in_sync


def _stop(cluster: Cluster, node: int) -> None:
    cluster.stop_node(node)
    cluster.start_node(node)


def _reset(cluster: Cluster, _: int) -> None:
    cluster.reset()


def _remove(cluster: Cluster, node: int) -> None:
    cluster.remove_node(node)


@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("action", [_stop, _reset, _remove])
def test_paused_node_can_be_stopped_reset_and_removed(action: Callable[[Cluster, int], None], fenced: bool) -> None:
    with Cluster(2, topics={"t": {"replication_factor": 2}}, clock=VirtualClock()) as cluster:
        leader = cluster.partition("t").leader
        wire = connect(cluster, leader)
        cluster.pause_node(leader)
        if fenced:
            cluster.advance(60)
        action(cluster, leader)
        assert send(producer(cluster), "t", "a").error is None
        if leader in cluster.nodes():
            with connect(cluster, leader) as again:
                again.sendall(ASK)
                assert again.recv(1)
        wire.close()


def test_cluster_closes_with_paused_node() -> None:
    cluster = Cluster(2).start()
    wire = connect(cluster)
    wire.sendall(ASK)
    cluster.pause_node(1)
    cluster.close()
    wire.close()


def test_unknown_node_cannot_be_paused() -> None:
    with Cluster() as cluster:
        for action in (cluster.pause_node, cluster.resume_node):
            with pytest.raises(ValueError, match="there is no node 7"):
                action(7)
