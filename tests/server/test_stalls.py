"""No request holds the loop: how much work is done between two turns, and what leaves the loop."""

from __future__ import annotations

import asyncio
import threading
from struct import Struct
from typing import TYPE_CHECKING, Any

import pytest

from ottla import pieces
from ottla.broker.session import LARGE_FRAME, Session
from ottla.handlers import k03_metadata
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.records import validate as validation
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.iterate import Record
from ottla.records.validate import INLINE_BYTES
from ottla.server.connection import INITIAL_BUFFER, MAX_PER_TURN, Connection
from ottla.server.frame_memory import FrameMemory
from ottla.server.produce_skim import MOST_PARTITIONS, has_few_partitions
from ottla.testing import Cluster
from ottla.world.clock import VirtualClock

from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from ottla.server.connection import Part

LENGTH = Struct(">i")
TIMESTAMP = 1_700_000_000_000


def produce(value: bytes, *, codec: CompressionType = CompressionType.ZSTD, acks: int = -1) -> ProduceRequest:
    batch = build_batch([Record(0, TIMESTAMP, b"key", value)], compression=codec)
    return ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])],
    )


BOMB = bytes(8 << 20)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["t"]) as running:
        yield running


class Watch:
    """Counts what the request workers are given, and what is decompressed in which thread."""

    def __init__(self, cluster: Cluster, patch: pytest.MonkeyPatch) -> None:
        self.submitted = 0
        self.inline_limits: list[int] = []
        self.worker_limits: list[int] = []
        assert cluster._running is not None
        workers = cluster._running._world.workers
        submit = workers.submit_request

        def counted(work: Callable[[], Any], done: Callable[[Any, Exception | None], object]) -> None:
            self.submitted += 1
            submit(work, done)

        decompress = validation.decompress

        def watched(codec: int, data: Any, limit: int) -> Any:
            inline = not threading.current_thread().name.startswith("ottla-request")
            (self.inline_limits if inline else self.worker_limits).append(limit)
            return decompress(codec, data, limit)

        patch.setattr(workers, "submit_request", counted)
        patch.setattr(validation, "decompress", watched)


@pytest.fixture
def watch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(cluster, monkeypatch)


@pytest.mark.parametrize("codec", [entry for entry in CompressionType if entry is not CompressionType.NONE])
def test_batch_that_decompresses_to_much_is_validated_in_worker(
    cluster: Cluster, watch: Watch, codec: CompressionType
) -> None:
    with Wire(cluster.bootstrap) as wire:
        response = wire.ask(produce(BOMB, codec=codec), ProduceResponse, 9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert watch.submitted == 1
    assert all(limit <= INLINE_BYTES for limit in watch.inline_limits)
    assert watch.worker_limits


def test_small_compressed_batch_stays_on_the_loop(cluster: Cluster, watch: Watch) -> None:
    with Wire(cluster.bootstrap) as wire:
        wire.ask(produce(bytes(1000)), ProduceResponse, 9)
    assert watch.submitted == 0
    assert watch.inline_limits == [INLINE_BYTES]


def test_requests_keep_order_when_validation_is_deferred(cluster: Cluster, watch: Watch) -> None:
    with Wire(cluster.bootstrap) as wire:
        wire.request(produce(BOMB, acks=0), 9, 1)
        wire.request(produce(b"second"), 9, 2)
        response = wire.answer(ProduceResponse, 9, 2)
        assert response.responses[0].partition_responses[0].base_offset == 1
    assert watch.submitted == 1


def test_deferred_batch_of_acks_zero_that_fails_closes_the_connection(cluster: Cluster) -> None:
    request = produce(BOMB, acks=0)
    cluster.create_topic("compacted", configs={"cleanup.policy": "compact"})
    batch = build_batch([Record(0, TIMESTAMP, None, BOMB)], compression=CompressionType.ZSTD)
    request.topic_data[0].name = "compacted"
    request.topic_data[0].partition_data[0].records = batch
    with Wire(cluster.bootstrap) as wire:
        wire.request(request, 9, 1)
        assert wire.closed()


def test_batch_is_validated_again_when_the_config_changed_meanwhile(cluster: Cluster, watch: Watch) -> None:
    inner = validation.decompress
    changed = threading.Event()

    def change_config(codec: int, data: Any, limit: int) -> Any:
        if limit > INLINE_BYTES and not changed.is_set():
            changed.set()
            with Wire(cluster.bootstrap) as admin:
                compact = AlterableConfig(name="cleanup.policy", value="compact")
                resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[compact])
                admin.ask(IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse, 1)
        return inner(codec, data, limit)

    validation.decompress = change_config  # `watch` restores it
    request = produce(BOMB)
    request.topic_data[0].partition_data[0].records = build_batch(
        [Record(0, TIMESTAMP, None, BOMB)], compression=CompressionType.ZSTD
    )
    with Wire(cluster.bootstrap) as wire:
        response = wire.ask(request, ProduceResponse, 9)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
    assert watch.submitted == 2


def test_large_request_is_decoded_in_worker(cluster: Cluster, watch: Watch) -> None:
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(20_000)]
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    with Wire(cluster.bootstrap) as wire:
        response = wire.ask(request, MetadataResponse, 12)
    assert len(response.topics) == 20_000
    assert watch.submitted == 1


def test_large_request_that_is_malformed_closes_its_connection(cluster: Cluster, watch: Watch) -> None:
    frame = encode_request(3, 12, 1, "wire", MetadataRequest(topics=[MetadataRequestTopic(name="a" * 1000)] * 200))
    with Wire(cluster.bootstrap) as wire:
        wire.send(LENGTH.pack(len(frame) - 4 - 500) + frame[4:-500])
        assert wire.closed()
    assert watch.submitted == 1


def test_metadata_of_all_topics_is_described_once_per_change(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    inner = k03_metadata._describe
    monkeypatch.setattr(
        k03_metadata, "_describe", lambda view, topic: described.append(topic.name) or inner(view, topic)
    )
    for number in range(50):
        cluster.create_topic(f"more-{number}")
    with Wire(cluster.bootstrap) as wire:
        first = wire.ask(MetadataRequest(topics=None), MetadataResponse, 12)
        assert len(described) == len(first.topics) == 51
        assert wire.ask(MetadataRequest(topics=None), MetadataResponse, 12) == first
        assert len(described) == 51
        cluster.create_topic("one-more")
        assert len(wire.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics) == 52
        assert len(described) == 52


def test_metadata_of_all_topics_equals_metadata_by_name_in_every_version(cluster: Cluster) -> None:
    cluster.create_topic("wide", partitions=5)
    with Wire(cluster.bootstrap) as wire:
        for version in range(14):
            every = wire.ask(MetadataRequest(topics=None if version else []), MetadataResponse, version)
            named = [MetadataRequestTopic(name=topic.name) for topic in every.topics]
            assert wire.ask(MetadataRequest(topics=named), MetadataResponse, version) == every


def test_work_in_pieces_takes_a_turn_per_budget() -> None:
    clock = VirtualClock()
    done: list[int] = []

    def steps() -> Generator[int, None, str]:
        for number in range(100):
            done.append(number)
            yield pieces.PIECE // 10
        return "result"

    pending = pieces.run_in_pieces(clock, steps(), lambda error: str(error))
    assert isinstance(pending, Pending)
    assert len(done) == 10
    while not pending.done:
        before = len(done)
        clock.step()
        assert len(done) - before <= 10
    assert pending.response == "result"
    assert len(done) == 100


# Connections without sockets ------------------------------------------------------------------------------------


class Broker:
    """A dispatcher that answers every frame with nothing, and notes it."""

    max_frame_size = max_sasl_frame_size = 100 << 20

    def __init__(self, limit: int = -1) -> None:
        self.clock = VirtualClock()
        self.memory = FrameMemory(self.clock, lambda: limit)
        self.frames: list[bytes] = []
        self.kept: list[memoryview] = []

    def connected(self, connection: Connection) -> Session:
        return Session(1, "PLAINTEXT", "host", 1)

    def disconnected(self, connection: Connection, session: Session) -> None:
        pass

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | None:
        self.frames.append(bytes(frame))
        self.kept.append(frame)
        return [b"answer"]


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.written = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += 1

    def writelines(self, data: Any) -> None:
        self.written += 1

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        pass


def connect(broker: Broker) -> tuple[Connection, Transport]:
    connection, transport = Connection(broker), Transport()
    connection.connection_made(transport)
    return connection, transport


def receive(connection: Connection, transport: Transport, data: bytes) -> int:
    """Give a connection what it reads; return how many bytes it took."""
    taken = 0
    while taken < len(data) and transport.reading:
        buffer = connection.get_buffer(65536)
        size = min(len(buffer), len(data) - taken)
        buffer[:size] = data[taken : taken + size]
        connection.buffer_updated(size)
        taken += size
    return taken


def frame(size: int) -> bytes:
    return LENGTH.pack(size) + bytes(size)


def test_pipelined_requests_are_handled_some_per_turn() -> None:
    broker = Broker()
    connection, transport = connect(broker)
    requests = frame(8) * 1000
    taken = receive(connection, transport, requests)
    assert len(broker.frames) == MAX_PER_TURN
    while len(broker.frames) < 1000:
        before = len(broker.frames)
        broker.clock.step()
        assert len(broker.frames) - before <= MAX_PER_TURN
        taken += receive(connection, transport, requests[taken:])
    assert len(connection._buffer) == INITIAL_BUFFER


def test_large_frame_has_its_own_buffer() -> None:
    broker = Broker()
    connection, transport = connect(broker)
    receive(connection, transport, frame(3 * LARGE_FRAME) + frame(100))
    assert [len(frame) for frame in broker.frames] == [3 * LARGE_FRAME, 100]
    assert len(connection._buffer) == INITIAL_BUFFER
    assert broker.kept[0].obj is not connection._buffer
    assert broker.memory.used == 0


def test_frame_waits_while_unfinished_frames_have_all_memory() -> None:
    broker = Broker(limit=1_000_000)
    (first, transport), (second, other) = connect(broker), connect(broker)
    data = frame(2_000_000)
    receive(first, transport, data[:100_000])
    assert broker.memory.used == 2_000_000
    assert receive(second, other, data) == INITIAL_BUFFER
    assert not other.reading
    receive(first, transport, data[100_000:])
    assert broker.memory.used == 0
    broker.clock.step()
    assert other.reading
    receive(second, other, data[INITIAL_BUFFER:])
    assert [len(frame) for frame in broker.frames] == [2_000_000, 2_000_000]


def test_lost_connection_gives_its_memory_to_the_next() -> None:
    broker = Broker(limit=1_000_000)
    (first, transport), (second, other) = connect(broker), connect(broker)
    receive(first, transport, frame(2_000_000)[:100_000])
    receive(second, other, frame(500_000))
    first.connection_lost(None)
    broker.clock.step()
    assert broker.memory.used == 500_000
    second.connection_lost(None)
    assert broker.memory.used == 0


def test_unfinished_small_frames_take_no_memory() -> None:
    broker = Broker(limit=1)
    connection, transport = connect(broker)
    receive(connection, transport, frame(10_000)[:5_000])
    assert broker.memory.used == 0
    assert transport.reading


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_skim_counts_partitions_of_every_version(version: int) -> None:
    def skim(topics: int, partitions: int) -> bool:
        request = ProduceRequest(
            acks=1,
            timeout_ms=1,
            topic_data=[
                TopicProduceData(
                    name="" if version >= 13 else f"topic-{number}",
                    partition_data=[
                        PartitionProduceData(index=index, records=bytes(300)) for index in range(partitions)
                    ],
                )
                for number in range(topics)
            ],
        )
        data = memoryview(encode_request(0, version, 1, "wire", request))[4:]
        return has_few_partitions(data, 10 + len("wire"), version, version >= 9)

    assert skim(1, 1)
    assert skim(10, 10)
    assert not skim(1, MOST_PARTITIONS + 1)
    assert not skim(MOST_PARTITIONS, 1)


def test_produce_with_many_partitions_is_decoded_in_worker(cluster: Cluster, watch: Watch) -> None:
    partitions = [PartitionProduceData(index=index, records=None) for index in range(20_000)]
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=partitions)])
    with Wire(cluster.bootstrap) as wire:
        assert len(wire.ask(request, ProduceResponse, 9).responses[0].partition_responses) == 20_000
    assert watch.submitted == 1


def test_api_versions_is_answered_while_batches_are_validated(cluster: Cluster) -> None:
    with Wire(cluster.bootstrap) as bomber, Wire(cluster.bootstrap) as other:
        for number in range(5):
            bomber.request(produce(BOMB), 9, number)
        assert other.ask(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == ErrorCode.NONE
        for number in range(5):
            bomber.answer(ProduceResponse, 9, number)
