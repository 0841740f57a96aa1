"""What security costs: ACLs with ten thousand bindings, TLS next to plain text, and a crowd of TLS handshakes.

    python bench/security.py [--rounds N]

Brokers run in processes of their own, with and without what is measured, in turns; each figure is the median of the
rounds. Processor time is the broker's own, which a busy machine changes less than the rates.
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
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Producer

from ottla.client import Client
from ottla.client.security import create_acls
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
REQUESTS = 4_000
HANDSHAKES = 100
MEGABYTES = 48
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
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


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


def request_costs(with_acls: bool) -> dict[str, tuple[float, float]]:
    """Requests per second and processor time per request in µs, of produce and of fetch."""
    configs = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"} if with_acls else {}
    with Broker(configs) as broker:
        if with_acls:
            with Client(broker.bootstrap, timeout=60) as client:
                entries = [allow("ANONYMOUS", "all", topic="orders")]
                entries += [
                    allow(f"user-{n}", "read", topic=f"topic-{n}", prefixed=n % 2 == 0) for n in range(1, BINDINGS)
                ]
                for start in range(0, len(entries), 500):
                    create_acls(client, entries[start : start + 500])
        found = {}
        for name, frame in (("produce", produce_frame()), ("fetch", fetch_frame())):
            with broker.connect() as wire:
                for _ in range(200):
                    exchange(wire, frame)
                began, spent = time.perf_counter(), broker.cpu()
                for _ in range(REQUESTS):
                    exchange(wire, frame)
                took, used = time.perf_counter() - began, broker.cpu() - spent
            found[name] = (REQUESTS / took, used / REQUESTS * 1e6)
        return found


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


def _shake_hands(port: int, authority: str, ready: object, go: object) -> None:
    context = ssl.create_default_context(cafile=authority)
    wires = [socket.create_connection(("localhost", port), timeout=60) for _ in range(HANDSHAKES)]
    threads = [
        threading.Thread(target=lambda wire: context.wrap_socket(wire, server_hostname="localhost"), args=(wire,))
        for wire in wires
    ]
    ready.set()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
    quiet = max(waits(broker, 1.0))
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    crowd = context.Process(target=_shake_hands, args=(port, str(folder / "ca.pem"), ready, go))
    crowd.start()
    ready.wait(60)
    go.set()
    busy = max(waits(broker, 1.5))
    crowd.join(60)
    return quiet, busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    costs: dict[bool, dict[str, list[tuple[float, float]]]] = {
        False: {"produce": [], "fetch": []},
        True: {"produce": [], "fetch": []},
    }
    rates: dict[str, list[tuple[float, float]]] = {"plain text": [], "TLS 1.3": []}
    held: list[tuple[float, float]] = []
    for _ in range(rounds):
        for with_acls in (False, True):
            for name, figures in request_costs(with_acls).items():
                costs[with_acls][name].append(figures)
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
            folder = Path(name)
            broker, port = tls_broker(folder)
            with broker:
                rates["plain text"].append(produce_rate(broker, {"bootstrap.servers": broker.bootstrap}))
                rates["TLS 1.3"].append(
                    produce_rate(
                        broker,
                        {
                            "bootstrap.servers": f"localhost:{port}",
                            "security.protocol": "SSL",
                            "ssl.ca.location": str(folder / "ca.pem"),
                        },
                    )
                )
                held.append(handshake_waits(broker, port, folder))

    def median(figures: list[tuple[float, float]], column: int) -> float:
        return statistics.median(each[column] for each in figures)

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
    plain, secured = rates["plain text"], rates["TLS 1.3"]
    print("\n| | plain text | TLS 1.3 | share |")
    print("|---|---:|---:|---:|")
    print(
        f"| produce 1 KiB, MB/s | {median(plain, 0):.0f} | {median(secured, 0):.0f} "
        f"| {median(secured, 0) / median(plain, 0):.2f} |"
    )
    print(
        f"| produce 1 KiB, broker CPU ms/MB | {median(plain, 1):.1f} | {median(secured, 1):.1f} "
        f"| {median(secured, 1) / median(plain, 1):.2f} |"
    )
    print(
        f"\n{HANDSHAKES} TLS handshakes at once: another client's longest wait is {median(held, 1):.0f} ms "
        f"({median(held, 0):.0f} ms when nobody shakes hands)."
    )


if __name__ == "__main__":
    main()
