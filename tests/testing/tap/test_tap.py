"""A tap in front of a cluster: addresses, captures and rules."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from ottla.protocol.capture import CapturedFrame, read_capture
from ottla.protocol.framing import decode_request, decode_response
from ottla.testing import Cluster, Tap
from ottla.testing.security import allow
from ottla.testing.tap.tap import CaptureFile, parse_address
from tests.ports import free_ports
from tests.testing.clients import Delivery, consumer, eventually, producer, read, send, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    topics = {"t": {"partitions": 3, "replication_factor": 3}}
    with Cluster(brokers=3, topics=topics) as running:
        yield running


def first(cluster: Cluster) -> str:
    return cluster.bootstrap.split(",")[0]


def test_clients_stay_behind_tap(cluster: Cluster) -> None:
    seen: list[CapturedFrame] = []
    with Tap(first(cluster), sinks=[seen.append]) as tap:
        client = producer(tap, client_id="me")  # type: ignore[arg-type]
        for index in range(3):
            assert send(client, "t", f"to {index}", index).error is None
        reader = consumer(tap, "t", client_id="me")  # type: ignore[arg-type]
        assert sorted(read(reader, 3)) == ["to 0", "to 1", "to 2"]
        reader.commit(asynchronous=False)
        reader.close()
        through_tap = {frame.server for frame in seen if frame.api == "Produce"}
        assert through_tap == set(cluster.nodes().values())
        # Every request that the brokers received passed the tap (one may be lost when a client closes).
        assert 0 < len(cluster.requests(client_id="me")) <= sum(frame.direction == "request" for frame in seen)
        assert {frame.node for frame in seen if frame.api == "Produce"} == {1, 2, 3}
    assert cluster.group("g").offsets == {("t", 0): 1, ("t", 1): 1, ("t", 2): 1}


def test_moved_leader_is_followed_behind_tap(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        client = producer(tap)  # type: ignore[arg-type]
        for node in (1, 2, 3):
            cluster.move_leader("t", 0, node)
            assert send(client, "t", str(node), 0).error is None
        peers = {seen.client for seen in cluster.requests("Produce")}
        assert values(cluster, "t") == ["1", "2", "3"]
        assert len(peers) >= 3


def test_capture_contains_forwarded_frames(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    capture = CaptureFile(str(path), first(cluster))
    with Tap(first(cluster), sinks=[capture]) as tap:
        send(producer(tap, client_id="me"), "t", "hello")  # type: ignore[arg-type]
    capture.close()
    with path.open() as lines:
        frames = list(read_capture(lines))
    assert len(frames) == capture.frames
    (request_frame,) = [frame for frame in frames if frame.api == "Produce" and frame.direction == "request"]
    header, request = decode_request(request_frame.frame)
    assert (header.client_id, request_frame.client_id, request_frame.is_whole) == ("me", "me", True)
    assert b"hello" in bytes(request.topic_data[0].partition_data[0].records)  # type: ignore[attr-defined]
    (reply,) = [frame for frame in frames if frame.api == "Produce" and frame.direction == "response"]
    assert (reply.correlation_id, reply.connection) == (request_frame.correlation_id, request_frame.connection)
    _, response = decode_response(reply.frame, reply.api_key, reply.version)
    assert response.responses[0].partition_responses[0].error_code == 0  # type: ignore[attr-defined]


def test_secrets_are_not_captured(tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    acls = [allow("alice", "write", topic="t")]
    with Cluster(topics=["t"], users={"alice": "very-secret"}, acls=acls) as cluster:
        capture = CaptureFile(str(path), cluster.bootstrap)
        with Tap(cluster.bootstrap, sinks=[capture]) as tap:
            client = Producer(
                {
                    "bootstrap.servers": tap.bootstrap,
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": "alice",
                    "sasl.password": "very-secret",
                }
            )
            assert send(client, "t", "hello").error is None
        capture.close()
    with path.open() as lines:
        frames = list(read_capture(lines))
    tokens = [frame for frame in frames if frame.api == "SaslAuthenticate"]
    assert tokens
    assert not any(b"very-secret" in frame.frame for frame in frames)
    assert all(len(frame.frame) == frame.size for frame in tokens)


def test_max_bytes_cuts_captured_frames(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "capture.jsonl"
    capture = CaptureFile(str(path), first(cluster), max_bytes=64)
    with Tap(first(cluster), sinks=[capture]) as tap:
        send(producer(tap), "t", "x" * 1000)  # type: ignore[arg-type]
    capture.close()
    with path.open() as lines:
        frames = list(read_capture(lines))
    assert max(len(frame.frame) for frame in frames) == 64
    assert any(not frame.is_whole for frame in frames)


# Rules in front of a cluster without rules of its own


def test_error_for_one_partition(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        rule = tap.on("Produce", topic="t", partition=1, times=None).error("MESSAGE_TOO_LARGE")
        client = producer(tap, enable_idempotence=False)  # type: ignore[arg-type]
        assert send(client, "t", "a", 0).error is None
        assert send(client, "t", "b", 1).error_name == "MSG_SIZE_TOO_LARGE"
        assert rule.hits == 1
    assert (values(cluster, "t", 0), values(cluster, "t", 1)) == (["a"], [])


def test_sleep_holds_request(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        rule = tap.on("Produce").sleep()
        delivery = Delivery(producer(tap), "t", "a")  # type: ignore[arg-type]
        rule.wait()
        assert values(cluster, "t") == []
        rule.wake()
        assert delivery.wait().error is None


@pytest.mark.parametrize("action", ["drop_connection", "cut", "drop_response"])
def test_dropped_connection_is_retried(cluster: Cluster, action: str) -> None:
    with Tap(first(cluster)) as tap:
        rule = getattr(tap.on("Produce"), action)()
        client = producer(tap, enable_idempotence=True, request_timeout_ms=500, socket_timeout_ms=1000)  # type: ignore[arg-type]
        assert send(client, "t", "a").error is None
        assert rule.hits == 1
    assert values(cluster, "t") == ["a"]


def test_edit_changes_response(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        rule = tap.on("Metadata", times=None).edit(lambda response: response)
        assert send(producer(tap), "t", "a").error is None  # type: ignore[arg-type]
        assert rule.hits >= 1
        assert {seen.api for seen in tap.requests("Metadata")} == {"Metadata"}


def test_produce_with_acks_0_is_forwarded(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        client = producer(tap, acks=0)  # type: ignore[arg-type]
        for number in range(5):
            client.produce("t", str(number), partition=0)
        client.flush(60)
        eventually(lambda: len(values(cluster, "t")) == 5)


def test_unreachable_target_closes_connection() -> None:
    with Tap(f"127.0.0.1:{free_ports(1)[0]}") as tap:
        client = producer(tap, message_timeout_ms=300)  # type: ignore[arg-type]
        assert send(client, "t", "a").error_name == "_MSG_TIMED_OUT"


def test_invalid_address_raises() -> None:
    with pytest.raises(ValueError, match="write host:port"):
        parse_address("kafka")


def test_undecodable_frames_bypass_rules(cluster: Cluster) -> None:
    with Tap(first(cluster)) as tap:
        rule = tap.on(times=None).observe()
        host, _, port = tap.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as wire:
            frame = struct.pack(">hhih", 999, 0, 7, -1)
            wire.sendall(len(frame).to_bytes(4, "big") + frame)
            assert wire.recv(1) == b"", "the broker ends a connection that asks for an API it does not have"
        assert send(producer(tap), "t", "a").error is None  # type: ignore[arg-type]
        assert 999 not in {seen.api_key for seen in rule.requests}
