"""Connections as clients see them: bad frames, order, limits, idle connections, shutdown."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.server.connection import MAX_UNANSWERED, WRITE_PIECE
from ottla.storage.names import CLEAN_SHUTDOWN_FILE
from ottla.testing import Cluster
from ottla.world.clock import VirtualClock

from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ottla.server.server import NodeServer

METADATA = MetadataRequest(topics=[])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["t"], configs={"socket.request.max.bytes": "100000"}) as running:
        yield running


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def server(cluster: Cluster, node: int = 1) -> NodeServer:
    assert cluster._running is not None
    return cluster._running.servers[node]


def fetch(offset: int = 0, *, wait: int = 0, topic: str = "t", least: int = 1, most: int = 1 << 20) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait,
        min_bytes=least,
        max_bytes=50 << 20,
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=most)]
            )
        ],
    )


def produce(value: bytes, topic: str = "t", acks: int = -1) -> ProduceRequest:
    batch = build_batch([Record(0, 1_700_000_000_000, None, value)])
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])],
    )


# Bad frames


BAD = {
    "a negative length": struct.pack(">i", -5),
    "a length beyond socket.request.max.bytes": struct.pack(">i", 100_001),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(200),
    "an empty frame": struct.pack(">i", 0),
    "half a header": struct.pack(">i", 4) + bytes(4),
    "no client id": struct.pack(">ihhi", 8, 3, 12, 1),
    "a client id that is longer than the frame": struct.pack(">ihhih", 10, 3, 8, 1, 500),
    "half a request": struct.pack(">i", 11) + encode_request(3, 8, 1, "x", METADATA)[4:15],
    "an API that nobody knows": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a negative API": struct.pack(">ihhih", 10, -1, 0, 1, -1),
    "a version that is too new": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "a negative version": struct.pack(">ihhih", 10, 3, -1, 1, -1),
    "an API of controllers": struct.pack(">ihhih", 10, 52, 0, 1, -1),
    "a count of topics that no frame could hold": struct.pack(">ihhihi", 14, 3, 8, 1, -1, 0x7FFFFFFF),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_frame_closes_only_its_connection_and_is_logged(
    cluster: Cluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Wire(cluster.bootstrap) as good, Wire(cluster.bootstrap) as bad:
        good.ask(METADATA, MetadataResponse, 8)
        with caplog.at_level(logging.WARNING, "ottla"):
            bad.send(data)
            assert bad.closed()
        log_records = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(log_records) == 1
        assert log_records[0].exc_info is None
        assert "closing connection of 127.0.0.1:" in log_records[0].getMessage()
        good.ask(METADATA, MetadataResponse, 8)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_unknown_api_versions_version_is_answered_in_version_0(cluster: Cluster, version: int) -> None:
    with Wire(cluster.bootstrap) as wire:
        # KIP-511: the header may have an unknown form as well.
        wire.frame(struct.pack(">hhih", 18, version, 7, -1) + bytes(1))
        response = wire.answer(ApiVersionsResponse, 0, 7)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(api_key.api_key, api_key.min_version, api_key.max_version) for api_key in response.api_keys] == [
            (18, 0, 4)
        ]
        fine = ApiVersionsRequest(client_software_name="wire", client_software_version="1")
        assert wire.ask(fine, ApiVersionsResponse, 4).error_code == 0


def test_trailing_bytes_of_a_request_are_ignored(cluster: Cluster) -> None:
    """As Kafka lets them be: librdkafka's question for all topics has some."""
    with Wire(cluster.bootstrap) as wire:
        wire.frame(encode_request(3, 8, 1, "x", METADATA)[4:] + bytes(3))
        wire.answer(MetadataResponse, 8, 1)


def test_tagged_fields_of_the_header_are_skipped(cluster: Cluster) -> None:
    body = encode_request(3, 12, 9, "x", METADATA)[4:]
    assert body[11] == 0  # no tags
    tagged = body[:11] + b"\x01\x05\x02ab" + body[12:]
    with Wire(cluster.bootstrap) as wire:
        wire.frame(tagged)
        wire.answer(MetadataResponse, 12, 9)


# Exceptions of handlers


def test_exception_in_handler_is_answered_and_logged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    dispatch = server(cluster).dispatch
    assert dispatch is not None

    def broken(call: object, request: object) -> None:
        raise ZeroDivisionError("on purpose")

    before = dispatch._apis[60]
    cluster.call(lambda _: dispatch._apis.__setitem__(60, replace(before, handler=broken)))
    try:
        with Wire(cluster.bootstrap) as wire:
            request = DescribeClusterRequest(endpoint_type=1, include_cluster_authorized_operations=True)
            response = wire.ask(request, DescribeClusterResponse, 1)
            assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            wire.ask(METADATA, MetadataResponse, 12)
    finally:
        cluster.call(lambda _: (dispatch._apis.__setitem__(60, before), dispatch._routes.pop((60, 1))))
    log_records = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert "include_cluster_authorized_operations=True" in log_records.getMessage()
    assert log_records.exc_info is not None
    assert log_records.exc_info[0] is ZeroDivisionError


# Order and back-pressure


def test_pipelined_requests_are_answered_in_order(cluster: Cluster) -> None:
    cluster.create_topic("order")
    with Wire(cluster.bootstrap) as wire:
        frames = b""
        for number in range(300):
            request = METADATA if number % 3 else produce(b"%d" % number, "order")
            frames += encode_request(0 if number % 3 == 0 else 3, 9, number, "wire", request)
        wire.send(frames)
        for number in range(300):
            if number % 3:
                wire.answer(MetadataResponse, 9, number)
            else:
                response = wire.answer(ProduceResponse, 9, number)
                assert response.responses[0].partition_responses[0].base_offset == number // 3


def test_request_after_delayed_fetch_is_answered_after_it(cluster: Cluster) -> None:
    cluster.create_topic("waiting")
    with Wire(cluster.bootstrap) as wire, Wire(cluster.bootstrap) as other:
        wire.request(fetch(wait=60_000, topic="waiting"), 12, 1)
        wire.request(METADATA, 12, 2)
        assert (
            other.ask(produce(b"now", "waiting"), ProduceResponse, 9).responses[0].partition_responses[0].error_code
            == 0
        )
        result = wire.answer(FetchResponse, 12, 1)
        assert b"now" in bytes(result.responses[0].partitions[0].records)
        wire.answer(MetadataResponse, 12, 2)


def test_request_received_byte_by_byte_is_handled(cluster: Cluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        for byte in encode_request(3, 12, 4, "slow", METADATA):
            wire.send(bytes([byte]))
        wire.answer(MetadataResponse, 12, 4)


def test_client_that_does_not_read_is_not_read() -> None:
    """Two hundred responses of a megabyte each must not accumulate in the broker."""
    with Cluster(topics=["large"]) as cluster:
        with Wire(cluster.bootstrap) as wire:
            for _ in range(20):
                wire.ask(produce(bytes(50_000), "large"), ProduceResponse, 9)
        with Wire(cluster.bootstrap, receive_buffer=32 * 1024) as wire:
            ask = b"".join(encode_request(1, 12, n, "wire", fetch(topic="large")) for n in range(200))
            wire.send(ask)
            node, port = server(cluster), wire.socket.getsockname()[1]

            def buffered() -> int:
                def look(_: object) -> int:
                    result = [
                        connection
                        for connection in node.connections
                        if connection.session and connection.session.port == port
                    ]
                    if not result:  # not accepted yet
                        return 0
                    (connection,) = result
                    assert connection._transport is not None
                    assert connection.unanswered <= MAX_UNANSWERED
                    waiting = sum(len(part) for part in connection._out if isinstance(part, bytes | bytearray))
                    return connection._transport.get_write_buffer_size() + waiting

                return cluster.call(look)

            wait_for(lambda: buffered() > 0)
            assert buffered() < 4 * WRITE_PIECE
            for number in range(200):
                response = wire.answer(FetchResponse, 12, number)
                assert len(response.responses[0].partitions[0].records) > 1_000_000
                assert buffered() < 4 * WRITE_PIECE if number % 50 == 0 else True


def test_produce_with_acks_0_has_no_response(cluster: Cluster) -> None:
    cluster.create_topic("silent")
    with Wire(cluster.bootstrap) as wire:
        wire.request(produce(b"x", "silent", acks=0), 9, 1)
        wire.request(METADATA, 9, 2)
        wire.answer(MetadataResponse, 9, 2)
        assert [record.value for record in cluster.records("silent")] == [b"x"]


def test_failed_produce_with_acks_0_closes_connection(cluster: Cluster) -> None:
    with Wire(cluster.bootstrap) as wire:
        wire.request(produce(b"x", "missing", acks=0), 9, 1)
        assert wire.closed()


# Limits


def test_connections_beyond_max_connections_are_refused() -> None:
    with Cluster(configs={"max.connections": "2"}) as cluster:
        with Wire(cluster.bootstrap) as one, Wire(cluster.bootstrap) as two:
            one.ask(METADATA, MetadataResponse, 9)
            two.ask(METADATA, MetadataResponse, 9)
            with Wire(cluster.bootstrap) as three:
                assert three.closed()
            one.ask(METADATA, MetadataResponse, 9)
        wait_for(lambda: not server(cluster).connections)
        with Wire(cluster.bootstrap) as again:
            again.ask(METADATA, MetadataResponse, 9)


def test_connections_beyond_max_per_ip_are_refused() -> None:
    with Cluster(configs={"max.connections.per.ip": "1"}) as cluster, Wire(cluster.bootstrap) as one:
        one.ask(METADATA, MetadataResponse, 9)
        with Wire(cluster.bootstrap) as two:
            assert two.closed()
        one.ask(METADATA, MetadataResponse, 9)
    overrides = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:2"}
    with Cluster(configs=overrides) as cluster, Wire(cluster.bootstrap) as one:
        one.ask(METADATA, MetadataResponse, 9)


def test_idle_connection_is_closed() -> None:
    cluster = Cluster(topics=["quiet"], clock=VirtualClock(), configs={"connections.max.idle.ms": "60000"}).start()
    try:
        with Wire(cluster.bootstrap) as idle, Wire(cluster.bootstrap) as waiting:
            idle.ask(METADATA, MetadataResponse, 9)
            waiting.request(fetch(wait=200_000, topic="quiet"), 12, 1)
            wait_for(lambda: cluster.call(lambda _: sum(c.unanswered for c in server(cluster).connections)) == 1)
            cluster.advance(50)
            assert len(server(cluster).connections) == 2
            cluster.advance(15)
            assert idle.closed()
            cluster.advance(150)
            assert waiting.answer(FetchResponse, 12, 1).error_code == 0
    finally:
        cluster.close()


# Shutdown


def test_stop_completes_delayed_fetches_and_writes_clean_shutdown_file(tmp_path: Path) -> None:
    cluster = Cluster(topics=["kept"], data_dir=str(tmp_path)).start()
    with Wire(cluster.bootstrap) as wire, Wire(cluster.bootstrap) as idle:
        idle.ask(METADATA, MetadataResponse, 9)
        wire.ask(produce(b"kept", "kept"), ProduceResponse, 9)
        wire.request(fetch(1, wait=600_000, topic="kept"), 12, 1)
        wait_for(lambda: cluster.call(lambda broker: len(broker.partitions["kept", 0].delayed)) == 1)
        running, loop = cluster._running, cluster._loop
        assert running is not None
        assert loop is not None
        stop = asyncio.run_coroutine_threadsafe(running.stop(20), loop)
        assert wire.answer(FetchResponse, 12, 1).error_code == 0
        assert wire.closed()
        assert idle.closed()
        stop.result(60)
    cluster.close()
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    with Cluster(data_dir=str(tmp_path)) as again:
        assert [record.value for record in again.records("kept")] == [b"kept"]
