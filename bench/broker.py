"""ottla next to Apache Kafka and kfake: the same confluent-kafka client, the same work, in turns.

    python bench/broker.py [--rounds N] [--megabytes N]

Every round starts each broker, measures, and stops it; each figure is the median of the rounds. Processor time is
the broker's own (user and kernel), so it says more than wall time on a machine that is shared with the client.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import Peer, available
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k03_metadata import MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Callable

QUIET = {"log_level": 0}
ROWS = (
    ("exec to first acknowledged record, ms", "first", 0),
    ("memory idle, MB", "idle", 0),
    ("memory after the load, MB", "loaded", 0),
    ("produce 100 B, broker CPU ms/MB", "produce_100_cpu", 2),
    ("produce 1 KiB, broker CPU ms/MB", "produce_1024_cpu", 2),
    ("consume 100 B, broker CPU ms/MB", "consume_100_cpu", 2),
    ("consume 1 KiB, broker CPU ms/MB", "consume_1024_cpu", 2),
    ("produce 100 B, thousand records/s", "produce_100_rate", 0),
    ("produce 1 KiB, thousand records/s", "produce_1024_rate", 0),
    ("consume 100 B, thousand records/s", "consume_100_rate", 0),
    ("consume 1 KiB, thousand records/s", "consume_1024_rate", 0),
    ("round trip acks=all, p50 ms", "rtt_p50", 3),
    ("round trip acks=all, p99 ms", "rtt_p99", 3),
    ("end to end, p50 ms", "e2e_p50", 3),
    ("end to end, p99 ms", "e2e_p99", 3),
    ("Metadata requests/s, 1 socket", "rate_1", 0),
    ("Metadata requests/s, 16 sockets", "rate_16", 0),
    ("Metadata request, broker CPU µs", "request_cpu", 1),
)


def measure(start: Callable[[Path], Peer], megabytes: int) -> tuple[str, dict[str, float]]:
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        peer = start(Path(folder))
        try:
            figures["first"] = (first_record(peer) - peer.started) * 1000
            time.sleep(1.0)
            figures["idle"] = peer.resident_mb()
            request_rates(peer, figures)
            for size in (100, 1024):
                bulk(peer, size, megabytes * 1_000_000 // size, figures)
            figures["loaded"] = peer.resident_mb()
            round_trips(peer, figures)
            end_to_end(peer, figures)
        finally:
            peer.stop()
    return peer.name, figures


def first_record(peer: Peer) -> float:
    """When the first record was acknowledged."""
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap, "linger.ms": 0, "topic.metadata.refresh.fast.interval.ms": 10, **QUIET}
    )
    acknowledged: list[float] = []
    producer.produce("first", b"x", on_delivery=lambda error, _: acknowledged.append(time.perf_counter()))
    producer.flush(60)
    return acknowledged[0]


def create(peer: Peer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, **QUIET})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        metadata = admin.list_topics(topic, timeout=10).topics[topic]
        if metadata.error is None and metadata.partitions:
            return
    raise KafkaException(f"{topic} has no leader")


def bulk(peer: Peer, size: int, count: int, figures: dict[str, float]) -> None:
    topic = f"bulk-{size}"
    create(peer, topic)
    value = os.urandom(size)
    megabytes = count * size / 1e6
    producer = Producer(
        {
            "bootstrap.servers": peer.bootstrap,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 500_000,
            **QUIET,
        }
    )
    cpu, began = peer.cpu_seconds(), time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    figures[f"produce_{size}_rate"] = count / (time.perf_counter() - began) / 1000
    figures[f"produce_{size}_cpu"] = (peer.cpu_seconds() - cpu) * 1000 / megabytes
    consumer = Consumer(
        {"bootstrap.servers": peer.bootstrap, "group.id": f"bench-{size}", "auto.offset.reset": "earliest",
         "queued.min.messages": 1_000_000, **QUIET}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    cpu, began, got = peer.cpu_seconds(), time.perf_counter(), 0
    while got < count:
        got += len(consumer.consume(10_000, 5.0))
    figures[f"consume_{size}_rate"] = count / (time.perf_counter() - began) / 1000
    figures[f"consume_{size}_cpu"] = (peer.cpu_seconds() - cpu) * 1000 / megabytes
    consumer.close()


def round_trips(peer: Peer, figures: dict[str, float], count: int = 2000) -> None:
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 0, "acks": "all", **QUIET})
    took = []
    for number in range(count + 200):
        began = time.perf_counter()
        producer.produce("first", b"x" * 100)
        producer.flush()
        if number >= 200:
            took.append((time.perf_counter() - began) * 1000)
    figures["rtt_p50"], figures["rtt_p99"] = percentiles(took)


def end_to_end(peer: Peer, figures: dict[str, float], count: int = 1000) -> None:
    create(peer, "latency")
    consumer = Consumer(
        {
            "bootstrap.servers": peer.bootstrap,
            "group.id": "latency",
            "fetch.wait.max.ms": 500,
            "fetch.min.bytes": 1,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition("latency", 0, 0)])
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 0, **QUIET})
    took = []
    for number in range(count + 100):
        began = time.perf_counter()
        producer.produce("latency", b"x" * 100)
        producer.flush()
        message = None
        while message is None:
            message = consumer.poll(5.0)
        if number >= 100:
            took.append((time.perf_counter() - began) * 1000)
    consumer.close()
    figures["e2e_p50"], figures["e2e_p99"] = percentiles(took)


def percentiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def request_rates(peer: Peer, figures: dict[str, float], seconds: float = 2.0) -> None:
    """Raw sockets that keep ten Metadata requests in flight each."""
    frame = bytes(encode_request(3, 12, 1, "bench", MetadataRequest(topics=[])))
    host, _, port = peer.bootstrap.split(",")[0].rpartition(":")
    for sockets in (1, 16):
        connections = [socket.create_connection((host, int(port))) for _ in range(sockets)]
        try:
            pump(connections, frame, 0.5)
            cpu, began = peer.cpu_seconds(), time.perf_counter()
            done = pump(connections, frame, seconds)
            figures[f"rate_{sockets}"] = done / (time.perf_counter() - began)
            figures["request_cpu"] = (peer.cpu_seconds() - cpu) * 1e6 / done
        finally:
            for connection in connections:
                connection.close()


def pump(connections: list[socket.socket], frame: bytes, seconds: float, depth: int = 10) -> int:
    """Keep `depth` requests of every connection in flight for a while; how many were answered."""
    waiting = {connection.fileno(): (connection, bytearray()) for connection in connections}
    poll = select.poll()
    outstanding = 0
    for sock in connections:
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.POLLIN)
        sock.sendall(frame * depth)
        outstanding += depth
    done = 0
    end = time.perf_counter() + seconds
    while outstanding:
        for descriptor, _ in poll.poll(1000):
            connection, buffer = waiting[descriptor]
            buffer += connection.recv(1 << 16)
            position = response = 0
            while len(buffer) - position >= 4:
                size = int.from_bytes(buffer[position : position + 4], "big")
                if len(buffer) - position < 4 + size:
                    break
                position += 4 + size
                response += 1
            del buffer[:position]
            done += response
            if time.perf_counter() < end:
                if response:
                    connection.sendall(frame * response)
            else:
                outstanding -= response
    return done


def table(results: dict[str, list[dict[str, float]]]) -> str:
    names = list(results)
    lines = [
        "| | " + " | ".join(names) + " | " + " | ".join(f"ottla / {name.split(' (')[0]}" for name in names[1:]) + " |"
    ]
    lines.append("|---|" + "---:|" * (2 * len(names) - 1))
    for title, key, digits in ROWS:
        medians = [statistics.median(figures[key] for figures in results[name]) for name in names]
        cells = [f"{value:,.{digits}f}" for value in medians]
        cells += [f"{medians[0] / value:.2f}" if value else "" for value in medians[1:]]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each broker is started and measured (3)")
    parser.add_argument("--megabytes", type=int, default=200, help="produced and consumed per record size (200)")
    parser.add_argument("--only", help="measure just the brokers whose name has this in it")
    options = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for start in available():
            if options.only and options.only not in start.__name__:
                continue
            print(f"round {number + 1}: {start.__name__.removeprefix('start_')}", file=sys.stderr, flush=True)
            name, figures = measure(start, options.megabytes)
            results.setdefault(name, []).append(figures)
    print(f"Medians of {options.rounds} rounds, {options.megabytes} MB of each record size, one partition.\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
