"""The longest wait of one client while others send what is slow to handle, next to Apache Kafka.

    python bench/stalls.py [--topics N] [--producers N] [--rounds N]

A process of its own asks for ApiVersions, one request at a time, and notes its longest round trip. `idle` is the same
without any other client: what the machine itself does to a round trip.
"""

from __future__ import annotations

import argparse
import multiprocessing
import struct
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.server.wire import Wire

from bench.peers import Peer, available, start_apache_kafka, start_kfake
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.iterate import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

BOMB_BYTES = 100_000_000
BOMBERS = 10
METADATA_BYTES = 100_000_000
SEGMENT_BYTES = 1_048_576
PIPELINED = 200
TOPICS_PER_REQUEST = 500
HEAP = "2g"  # with less, a Metadata request of 100 MB ends Kafka
ROWS = (
    ("idle", "idle"),
    ("10 clients, zstd batches of 3.3 kB with 100 MB of zeros", "bombs"),
    ("a Metadata request of 100 MB", "large_metadata"),
    ("segments that roll, {producers} producer ids in the partition", "producers"),
    ("4 clients, Metadata of all {topics} topics", "all_topics"),
)


def watch(bootstrap: str, control: Connection) -> None:
    """Measure round trips until told to stop; send the longest, in milliseconds."""
    request = encode_request(18, 0, 1, "victim", ApiVersionsRequest())
    with Wire(bootstrap) as wire:
        wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
        control.send(0.0)
        longest = 0.0
        while not control.poll():
            began = time.perf_counter()
            wire.send(request)
            wire.read_frame()
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.0005)
    control.send(longest * 1000)


def longest_wait(peer: Peer, work: Callable[[], None]) -> float:
    """Return the longest round trip of another client, in milliseconds, while `work` runs."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=watch, args=(peer.bootstrap, there))
    process.start()
    here.recv()
    work()
    here.send(None)
    longest = float(here.recv())
    process.join()
    return longest


def create(wire: Wire, names: list[str], configs: dict[str, str] | None = None) -> None:
    settings = [CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings) for name in names]
    for start in range(0, len(topics), TOPICS_PER_REQUEST):
        piece = topics[start : start + TOPICS_PER_REQUEST]
        response = wire.ask(CreateTopicsRequest(topics=piece, timeout_ms=120_000), CreateTopicsResponse, 5)
        assert all(topic.error_code in (0, 36) for topic in response.topics), response.topics[0]
    while True:  # until the broker leads them
        named = [MetadataRequestTopic(name=name) for name in names[-1:]]
        shown = wire.ask(MetadataRequest(topics=named, allow_auto_topic_creation=False), MetadataResponse, 8)
        if all(topic.error_code == 0 and topic.partitions for topic in shown.topics):
            return
        time.sleep(0.1)


def produce(topic: str, batch: bytes | bytearray) -> ProduceRequest:
    return ProduceRequest(
        acks=1,
        timeout_ms=120_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])],
    )


def bomb() -> bytearray:
    return build_batch(
        [Record(0, int(time.time() * 1000), b"key", bytes(BOMB_BYTES))], compression=CompressionType.ZSTD
    )


def bombs(peer: Peer, batch: bytearray, rounds: int) -> float:
    frame = encode_request(0, 9, 1, "bomber", produce("bombs", batch))

    def one() -> None:
        with Wire(peer.bootstrap) as wire:
            for _ in range(rounds):
                wire.send(frame)
                wire.read_frame()

    def work() -> None:
        bombers = [threading.Thread(target=one) for _ in range(BOMBERS)]
        for bomber in bombers:
            bomber.start()
        for bomber in bombers:
            bomber.join()

    return longest_wait(peer, work)


def large_metadata(peer: Peer) -> float:
    name = "x" * 240
    count = METADATA_BYTES // (len(name) + 20)
    names = [MetadataRequestTopic(name=f"{name}{number:07}") for number in range(count)]
    frame = encode_request(3, 12, 1, "large", MetadataRequest(topics=names, allow_auto_topic_creation=False))

    def work() -> None:
        with Wire(peer.bootstrap) as wire:
            wire.socket.settimeout(600)
            wire.send(frame)
            left = struct.unpack(">i", wire.socket.recv(4, 0x100))[0]  # MSG_WAITALL
            while left:
                left -= len(wire.socket.recv(min(left, 1 << 20)))

    return longest_wait(peer, work)


def many_producers(peer: Peer, count: int) -> float:
    now = int(time.time() * 1000)
    with Wire(peer.bootstrap) as wire:
        create(wire, ["producers"], {"segment.bytes": str(SEGMENT_BYTES)})
        for start in range(0, count, PIPELINED):
            for producer_id in range(start, start + PIPELINED):
                batch = build_batch(
                    [Record(0, now, None, b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=0
                )
                wire.request(produce("producers", batch), 9)
            for _ in range(PIPELINED):
                assert wire.answer(ProduceResponse, 9).responses[0].partition_responses[0].error_code == 0

        def work() -> None:
            value = bytes(600_000)
            for _ in range(10):
                batch = build_batch([Record(0, now, None, value)])
                assert wire.ask(produce("producers", batch), ProduceResponse, 9)

        return longest_wait(peer, work)


def all_topics(peer: Peer, count: int, rounds: int) -> float:
    with Wire(peer.bootstrap) as wire:
        wire.socket.settimeout(600)
        create(wire, [f"topic-{number:06}" for number in range(count)])

    def one() -> None:
        with Wire(peer.bootstrap) as wire:
            for number in range(rounds):
                wire.request(MetadataRequest(topics=None), 12, number)
                wire.read_frame()

    def work() -> None:
        clients = [threading.Thread(target=one) for _ in range(4)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    return longest_wait(peer, work)


def measure(start: Callable[[Path], Peer], topics: int, producers: int, rounds: int) -> tuple[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            with Wire(peer.bootstrap) as wire:
                create(wire, ["bombs"])
            figures = {"idle": longest_wait(peer, lambda: time.sleep(3))}
            figures["bombs"] = bombs(peer, bomb(), rounds)
            figures["large_metadata"] = large_metadata(peer)
            figures["producers"] = many_producers(peer, producers)
            figures["all_topics"] = all_topics(peer, topics, rounds)
        finally:
            peer.stop()
    return peer.name, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--producers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="requests of each client")
    options = parser.parse_args()
    peers = [start for start in available() if start is not start_kfake]
    peers = [partial(start, heap=HEAP) if start is start_apache_kafka else start for start in peers]
    result = dict(measure(start, options.topics, options.producers, options.rounds) for start in peers)
    print("| longest round trip of another client, ms | " + " | ".join(result) + " |")
    print("|---|" + "---|" * len(result))
    for text, key in ROWS:
        title = text.format(topics=options.topics, producers=options.producers)
        print(f"| {title} | " + " | ".join(f"{figures[key]:.0f}" for figures in result.values()) + " |")


if __name__ == "__main__":
    main()
