"""The test kit: how long a test waits for its cluster, and what the tap and the event log cost.

    python bench/testing.py [--tests N]

Times are medians in milliseconds; the processor's own time says more on a busy machine, and stands next to them.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from confluent_kafka import Producer

from ottla.protocol.framing import encode_request
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.k03_metadata import MetadataRequest
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.testing import Cluster
from ottla.testing.cluster import new_loop

if TYPE_CHECKING:
    from collections.abc import Callable

FRAME = 1024 * 1024
IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import ottla.testing
{more}
print((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000)
"""


def row(what: str, value: str, target: str = "") -> None:
    print(f"| {what} | {value} | {target} |", flush=True)


def measured(action: Callable[[], object], times: int) -> tuple[float, float]:
    """Median wall time and processor time (of this process), in milliseconds."""
    walls, cpus = [], []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append((time.perf_counter() - wall) * 1000)
        cpus.append((time.process_time() - cpu) * 1000)
    return statistics.median(walls), statistics.median(cpus)


def imports(more: str) -> tuple[float, float]:
    figures = []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(7):
        done = subprocess.run(
            [sys.executable, "-c", IMPORT.format(more=more)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        figures.append([float(word) for word in done.stdout.split()])
    return statistics.median(figure[0] for figure in figures), statistics.median(figure[1] for figure in figures)


# A record over a bare socket

PRODUCE = encode_request(
    0,
    9,
    1,
    "bench",
    ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[PartitionProduceData(index=0, records=bytes(build_batch([Record(0, 1, None, b"x")])))],
            )
        ],
    ),
)


def ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    return receive(connection)


def receive(connection: socket.socket) -> bytes:
    size = int.from_bytes(exactly(connection, 4), "big")
    return exactly(connection, size)


def exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray(count)
    view = memoryview(received)
    while view:
        got = connection.recv_into(view)
        if not got:
            raise ConnectionError("the connection was closed")
        view = view[got:]
    return bytes(received)


def first_record() -> None:
    """From the call to the first acknowledged record; closing is not part of it."""
    cluster = Cluster(topics=["t"]).start()
    host, _, port = cluster.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        ask(connection, PRODUCE)
    CLOSERS.append(cluster)


CLOSERS: list[Cluster] = []


def close_all() -> None:
    while CLOSERS:
        CLOSERS.pop().close()


def a_test() -> None:
    """What a small test does: a cluster, a real client, a record."""
    with Cluster(topics=["t"]) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0})
        producer.produce("t", b"x")
        assert producer.flush(30) == 0
        assert len(cluster.records("t")) == 1


# The tap


class BareKafka:
    """Answers every request with a frame of a megabyte, as quickly as sockets go."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        body = bytes(FRAME)
        with connection:
            try:
                while True:
                    request = receive(connection)
                    connection.sendall((FRAME + 4).to_bytes(4, "big") + request[4:8] + body)
            except ConnectionError:
                return


def rate(address: str, request: bytes, seconds: float) -> float:
    """Megabytes per second that come back."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        ask(connection, request)
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            connection.sendall(request * 4)
            for _ in range(4):
                receive(connection)
            count += 4
        return count * FRAME / (time.perf_counter() - begin) / 1e6


def tap(seconds: float) -> None:
    # ListOffsets is a stand-in for any answer without addresses; Fetch has its structure read as well.
    from ottla.protocol.messages.k02_list_offsets import ListOffsetsRequest

    request = encode_request(2, 1, 7, "bench", ListOffsetsRequest())
    program = (
        "import sys; from ottla.testing import Tap\n"
        "tap = Tap(sys.argv[1]).start(); print(tap.bootstrap, flush=True); sys.stdin.read(); tap.close()"
    )
    kafka = subprocess.Popen(
        [sys.executable, __file__, "--bare-kafka"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kafka.stdout is not None
    target = kafka.stdout.readline().strip()
    process = subprocess.Popen(
        [sys.executable, "-c", program, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    before = cpu_seconds(process.pid)
    through = rate(address, request, seconds)
    used = cpu_seconds(process.pid) - before
    megabytes = through * seconds
    direct = rate(target, request, seconds)
    row("tap: answers of 1 MB, one connection, MB/s", f"{through:.0f} (without the tap {direct:.0f})", "300")
    row("tap: MB per second of its own processor time", f"{megabytes / used:.0f}", "300")
    for process_or_broker in (process, kafka):
        process_or_broker.communicate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The event log


def event_log(count: int) -> None:
    """What a request costs a broker with its event log off, and on."""
    import asyncio

    from ottla.cluster.server_config import server_config
    from ottla.events import Events, RecentEvents
    from ottla.server.run import RunningCluster
    from ottla.world.disk_memory import MemoryDisk
    from ottla.world.world import World

    request = encode_request(3, 9, 1, "bench", MetadataRequest(topics=[]))

    async def run(on: bool) -> float:
        loop = asyncio.get_running_loop()
        world = World.real(loop, MemoryDisk())
        config = server_config({"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/ottla"})
        events = Events(world.clock.now_ms, [RecentEvents()]) if on else None
        running = RunningCluster(world, [config], events=events)
        await running.start()
        dispatch = running.servers[1].dispatch
        assert dispatch is not None
        from ottla.broker.session import Session

        session = Session(1, "PLAINTEXT", "127.0.0.1", 1)
        frame = memoryview(request)[4:]
        for _ in range(200):
            dispatch.handle(session, frame)
        begin = time.process_time()
        for _ in range(count):
            dispatch.handle(session, frame)
        used = time.process_time() - begin
        await running.stop(0)
        return used / count * 1e6

    off, on = [], []
    for _ in range(5):
        for results, logged in ((off, False), (on, True)):
            loop = new_loop()
            results.append(loop.run_until_complete(run(logged)))
            loop.close()
    row("a Metadata request, CPU µs, event log off", f"{min(off):.1f}")
    row("the same with the event log in memory", f"{min(on):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--bare-kafka", action="store_true")
    options = parser.parse_args()
    if options.bare_kafka:
        print(BareKafka().address, flush=True)
        sys.stdin.read()
        return
    print("| | | target |\n|---|---|---|")
    row("import ottla.testing, ms", "{:.0f} (CPU {:.0f})".format(*imports("")), "150")
    row("and its Cluster, ms", "{:.0f} (CPU {:.0f})".format(*imports("from ottla.testing import Cluster")), "150")
    row("first cluster to first acknowledged record, ms", "{:.1f} (CPU {:.1f})".format(*measured(first_record, 1)))
    close_all()
    row("second cluster and later ones, ms", "{:.1f} (CPU {:.1f})".format(*measured(first_record, 30)), "10")
    begin = time.perf_counter()
    count = len(CLOSERS)
    close_all()
    row("closing one, ms", f"{(time.perf_counter() - begin) / count * 1000:.1f}")
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(options.tests):
        a_test()
    row(
        f"{options.tests} tests, each with a cluster and a confluent-kafka producer, s",
        f"{time.perf_counter() - wall:.1f} (CPU {time.process_time() - cpu:.1f})",
        "10",
    )
    tap(options.seconds)
    event_log(3000)


if __name__ == "__main__":
    main()
