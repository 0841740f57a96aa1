"""What security costs: ACLs with ten thousand bindings, TLS next to plain text, and a crowd of TLS handshakes.

    python bench/security.py [--rounds N]

Brokers run in processes of their own and are asked in turns, with and without what is measured; each figure is the
median of its slices or rounds. Processor time is the broker's own, which a busy machine changes less than the rates.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Producer

from ottla.client import Client
from ottla.client.access import create_acls
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.k03_metadata import MetadataRequest
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.security.dev_tls import Authority, write_private
from ottla.testing.security import AUTHORIZER, allow

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
BINDINGS = 10_000
REQUESTS = 8_000
SLICES = 8
HANDSHAKES = 100
MEGABYTES = 48
CROWD_SECONDS = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


class Broker:
    """`ottla serve` in a process of its own."""

    def __init__(self, configs: dict[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "ottla",
            "serve",
            "--json",
            "-p",
            "0",
            "-l",
            "error",
            "--seed-topic",
            "orders:1",
        ]
        for key, value in configs.items():
            command += ["-c", f"{key}={value}"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap: str = json.loads(self._process.stdout.readline())["bootstrap"]

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def connect(self) -> socket.socket:
        host, _, port = self.bootstrap.rpartition(":")
        made = socket.create_connection((host, int(port)), timeout=60)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def exchange(wire: socket.socket, frame: bytes) -> None:
    wire.sendall(frame)
    size = int.from_bytes(exactly(wire, 4), "big")
    exactly(wire, size)


def exactly(wire: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = wire.recv(count - len(data))
        if not piece:
            raise ConnectionError("the broker hung up")
        data += piece
    return bytes(data)


# ACLs.


def produce_frame() -> bytes:
    batch = bytes(build_batch([Record(0, int(time.time() * 1000), None, bytes(100), ())]))
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=5000, topic_data=[TopicProduceData(name="orders", partition_data=[data])]
    )
    return encode_request(0, 9, 1, "bench", request)


def fetch_frame() -> bytes:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[FetchTopic(topic="orders", partitions=[partition])]
    )
    request.session_epoch = -1
    return encode_request(1, 11, 1, "bench", request)


def request_costs(rounds: int) -> dict[bool, dict[str, list[tuple[float, float]]]]:
    """Requests per second and processor time per request in µs, of produce and fetch, without and with ACLs.

    Both brokers are up all the time and are asked in turns, a slice of the requests each, so that whatever else the
    machine does meets both.
    """
    request_costs: dict[bool, dict[str, list[tuple[float, float]]]] = {False: {}, True: {}}
    configs = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with Broker({}) as without, Broker(configs) as having:
        with Client(having.bootstrap, timeout=60) as client:
            entries = [allow("ANONYMOUS", "all", topic="orders")]
            entries += [allow(f"user-{n}", "read", topic=f"topic-{n}", prefixed=n % 2 == 0) for n in range(1, BINDINGS)]
            for start in range(0, len(entries), 500):
                create_acls(client, entries[start : start + 500])
        for name, frame in (("produce", produce_frame()), ("fetch", fetch_frame())):
            with without.connect() as plain, having.connect() as checked:
                sides = [(False, without, plain), (True, having, checked)]
                for slice_number in range(-1, rounds * SLICES):
                    for with_acls, broker, wire in sides if slice_number % 2 else reversed(sides):
                        figures = slice_cost(broker, wire, frame)
                        if slice_number >= 0:  # the first is to get warm
                            request_costs[with_acls].setdefault(name, []).append(figures)
    return request_costs


def slice_cost(broker: Broker, wire: socket.socket, frame: bytes) -> tuple[float, float]:
    began, spent = time.perf_counter(), broker.cpu()
    for _ in range(REQUESTS // SLICES):
        exchange(wire, frame)
    took, used = time.perf_counter() - began, broker.cpu() - spent
    return REQUESTS // SLICES / took, used / (REQUESTS // SLICES) * 1e6


# TLS.


def tls_broker(folder: Path) -> tuple[Broker, int]:
    """A broker with a listener of each kind, and the port of the one with TLS."""
    authority = Authority()
    write_private(str(folder / "server.pem"), authority.server().pem)
    write_private(str(folder / "ca.pem"), authority.certificate_pem)
    plain, secured = free_port(), free_port()
    broker = Broker(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secured}",
            "ssl.keystore.location": str(folder / "server.pem"),
        }
    )
    return broker, secured


def produce_rate(broker: Broker, settings: dict[str, str]) -> tuple[float, float]:
    """Megabytes per second, and processor time of the broker per megabyte in ms."""
    producer = Producer({**settings, "linger.ms": 5, "batch.size": 200_000, "acks": "all", "log_level": 0})
    value = os.urandom(1024)
    producer.produce("orders", value)
    producer.flush(60)
    began, spent = time.perf_counter(), broker.cpu()
    for _ in range(MEGABYTES * 1000):
        while True:
            try:
                producer.produce("orders", value)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(120) == 0
    took, used = time.perf_counter() - began, broker.cpu() - spent
    return MEGABYTES / took, used / MEGABYTES * 1000


def _send_frames(port: int, authority: str | None, result: object) -> None:
    """Prepared requests, five on their way at a time: OpenSSL makes records of 16 KB of them."""
    wire = socket.create_connection(("localhost", port), timeout=60)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if authority is not None:
        wire = ssl.create_default_context(cafile=authority).wrap_socket(wire, server_hostname="localhost")
    now = int(time.time() * 1000)
    batch = bytes(build_batch([Record(number, now, None, os.urandom(1024), ()) for number in range(200)]))
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name="orders", partition_data=[data])
    frame = encode_request(0, 9, 1, "bench", ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic]))
    count = MEGABYTES * 1_000_000 // len(frame)
    began = time.perf_counter()
    for number in range(count + 5):
        if number < count:
            wire.sendall(frame)
        if number >= 5:
            exactly(wire, int.from_bytes(exactly(wire, 4), "big"))
    result.put(count * len(frame) / 1e6 / (time.perf_counter() - began))  # type: ignore[attr-defined]


def frame_rate(broker: Broker, port: int, authority: str | None) -> tuple[float, float]:
    """The same as `produce_rate` with prepared requests over a bare socket."""
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    spent = broker.cpu()
    sender = context.Process(target=_send_frames, args=(port, authority, result))
    sender.start()
    rate = result.get(timeout=120)
    sender.join(60)
    return rate, (broker.cpu() - spent) / MEGABYTES * 1000


def _shake_hands(port: int, authority: str, ready: object, go: object) -> None:
    """A crowd that opens its connections beforehand and then sends all its first messages at once.

    One thread does it for all, so that the crowd takes one processor and not a hundred turns of both.
    """
    context = ssl.create_default_context(cafile=authority)
    crowd = []
    for _ in range(HANDSHAKES):
        wire = socket.create_connection(("localhost", port), timeout=60)
        came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(came, goes, server_hostname="localhost")
        advance(side)
        crowd.append((wire, came, goes, side))
    ready.set()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    for wire, _, goes, _ in crowd:
        wire.sendall(goes.read())
    for wire, came, goes, side in crowd:
        while not advance(side):
            came.write(wire.recv(65536))
        wire.sendall(goes.read())


def advance(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def waits(broker: Broker, seconds: float) -> Iterator[float]:
    """Round trips of somebody else's requests, in ms."""
    frame = encode_request(3, 9, 1, "bench", MetadataRequest(topics=[]))
    with broker.connect() as wire:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            exchange(wire, frame)
            yield (time.perf_counter() - began) * 1000


def handshake_waits(broker: Broker, port: int, folder: Path) -> tuple[float, float]:
    """The longest wait of somebody else without and with a crowd of handshakes, in ms."""
    quiet = max(waits(broker, CROWD_SECONDS))
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    crowd = context.Process(target=_shake_hands, args=(port, str(folder / "ca.pem"), ready, go))
    crowd.start()
    ready.wait(60)
    go.set()
    busy = max(waits(broker, CROWD_SECONDS))
    crowd.join(60)
    assert crowd.exitcode == 0, "not all handshakes came to their end"
    return quiet, busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    costs = request_costs(rounds)
    rates: dict[str, list[tuple[float, float]]] = {"plain text": [], "TLS 1.3": []}
    frames: dict[str, list[tuple[float, float]]] = {"plain text": [], "TLS 1.3": []}
    held: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        folder = Path(name)
        broker, port = tls_broker(folder)
        secured = {
            "bootstrap.servers": f"localhost:{port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(folder / "ca.pem"),
        }
        with broker:
            for _ in range(rounds):
                rates["plain text"].append(produce_rate(broker, {"bootstrap.servers": broker.bootstrap}))
                rates["TLS 1.3"].append(produce_rate(broker, secured))
                frames["plain text"].append(frame_rate(broker, int(broker.bootstrap.rpartition(":")[2]), None))
                frames["TLS 1.3"].append(frame_rate(broker, port, str(folder / "ca.pem")))
        broker, port = tls_broker(folder)
        with broker:
            held += [handshake_waits(broker, port, folder) for _ in range(rounds * 3)]

    def median(figures: list[tuple[float, float]], column: int) -> float:
        return statistics.median(figure[column] for figure in figures)

    print(f"{rounds} rounds, medians; brokers in memory, one client after the other.\n")
    print(f"| | without ACLs | with {BINDINGS:,} bindings | share |")
    print("|---|---:|---:|---:|")
    for name in ("produce", "fetch"):
        before, after = costs[False][name], costs[True][name]
        print(
            f"| {name} requests/s, one at a time | {median(before, 0):,.0f} | {median(after, 0):,.0f} "
            f"| {median(after, 0) / median(before, 0):.2f} |"
        )
        print(
            f"| {name} request, broker CPU µs | {median(before, 1):.0f} | {median(after, 1):.0f} "
            f"| {median(after, 1) / median(before, 1):.2f} |"
        )
    print("\n| | plain text | TLS 1.3 | share |")
    print("|---|---:|---:|---:|")
    for what, rate in (("librdkafka", rates), ("prepared requests of 200 KB", frames)):
        plain, tls = rate["plain text"], rate["TLS 1.3"]
        for unit, column, digits in (("MB/s", 0, 0), ("broker CPU ms/MB", 1, 1)):
            print(
                f"| produce 1 KiB, {what}, {unit} | {median(plain, column):.{digits}f} "
                f"| {median(tls, column):.{digits}f} | {median(tls, column) / median(plain, column):.2f} |"
            )
    print("\nlibrdkafka makes TLS records of about 1 KB, one or two per message; OpenSSL by itself makes 16 KB.")
    print(
        f"\n{HANDSHAKES} TLS handshakes at once, {len(held)} times: another client's longest wait is "
        f"{median(held, 1):.0f} ms in the median, {max(busy for _, busy in held):.0f} ms in the worst of them "
        f"({median(held, 0):.0f} and {max(quiet for quiet, _ in held):.0f} ms in as long a time without handshakes)."
    )


if __name__ == "__main__":
    main()
