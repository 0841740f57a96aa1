"""How fast the storage layer is: append, sequential read, recovery, and opening many partitions.

    python bench/storage.py [append|read|recover|open|restart ...] [--mib N] [--partitions N] [--dir PATH]

Prints one line a measurement. Append and read work in the page cache; nothing is synced while the clock runs. Recovery
is measured next to Apache Kafka's on a copy of the same files, where Java and Maven are there: the time that its log
gives for loading the partition, without its start.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.protocol.uuids import Uuid
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.records.kernel import COMPILED
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.names import RECOVERY_POINT_CHECKPOINT, TopicPartition
from ottla.testing import Cluster
from ottla.world.clock import VirtualClock
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log

BATCH_BYTES = 16 << 10
PARTITION = TopicPartition("bench", 0)
CLOCK = VirtualClock()


def directory(path: str) -> LogDirectory:
    made = LogDirectory(RealDisk(), CLOCK, SeededRandom(1), path)
    made.open()
    return made


def a_batch(**options: int) -> bytes:
    """One batch of about 16 KiB in records of 100 bytes."""
    record = Record(0, CLOCK.now_ms(), b"key-%06d" % 1, bytes(range(90)))
    count = 1
    while len(build_batch([record] * (count + 1))) <= BATCH_BYTES:
        count += 1
    return bytes(build_batch([record] * count, **options))


def fill(log: Log, total: int, batch: bytes) -> int:
    buffer = bytearray(batch)
    zero = bytes(8)
    append = log.append_as_leader
    count = total // len(batch)
    for _ in range(count):
        buffer[:8] = zero  # as if it had just been received: the last append left its offset there
        append(buffer, 0)
    return count * len(batch)


def report(name: str, amount: int, seconds: float, cpu: float) -> None:
    gigabytes = amount / 1e9
    print(
        f"{name:<34} {amount / 1e6 / seconds:8.0f} MB/s   {cpu / gigabytes:6.2f} s CPU/GB   "
        f"({amount / 2**20:.0f} MiB in {seconds:.2f} s)",
        flush=True,
    )


def timed(work: Callable[[], int]) -> tuple[int, float, float]:
    cpu, start = time.process_time(), time.perf_counter()
    amount = work()
    return amount, time.perf_counter() - start, time.process_time() - cpu


def bench_append(path: str, total: int) -> None:
    batch = a_batch()
    amount, seconds, cpu = timed(lambda: write_alone(f"{path}/alone", total, batch))
    report("the same bytes, os.write alone", amount, seconds, cpu)
    for name, options in (
        ("append 16 KiB batches", {}),
        ("append, idempotent producer", {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}),
    ):
        opened = directory(f"{path}/append")
        log = opened.create_log(PARTITION, LogConfig())
        batch = a_batch(**options)
        if options:
            amount, seconds, cpu = timed(lambda log=log, batch=batch: fill_idempotent(log, total, batch))
        else:
            amount, seconds, cpu = timed(lambda log=log, batch=batch: fill(log, total, batch))
        report(name, amount, seconds, cpu)
        opened.abandon()
        shutil.rmtree(f"{path}/append")


def write_alone(path: str, total: int, batch: bytes) -> int:
    """What the kernel takes for the bytes of an append: no log can be faster."""
    count = total // len(batch)
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.write(batch)
    Path(path).unlink()
    return count * len(batch)


def fill_idempotent(log: Log, total: int, batch: bytes) -> int:
    """As `fill`, with sequence numbers; the CRC of each batch is prepared before the clock could notice much."""
    count = total // len(batch)
    for number in range(count):
        options = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0}
        if number % 5 == 0:
            prepared = bytearray(a_header(batch, options["producer_id"]))
        else:
            prepared[:8] = bytes(8)
            import struct

            from ottla.records.batch import compute_crc

            records = int.from_bytes(prepared[57:61])
            sequence = int.from_bytes(prepared[53:57]) + records
            struct.pack_into(">i", prepared, 53, sequence)
            struct.pack_into(">I", prepared, 17, compute_crc(prepared, 0, len(prepared)))
        log.append_as_leader(prepared, 0)
    return count * len(batch)


def a_header(batch: bytes, producer_id: int) -> bytearray:
    import struct

    from ottla.records.batch import compute_crc

    made = bytearray(batch)
    struct.pack_into(">q", made, 43, producer_id)
    struct.pack_into(">I", made, 17, compute_crc(made, 0, len(made)))
    return made


def bench_read(path: str, total: int) -> None:
    opened = directory(f"{path}/read")
    log = opened.create_log(PARTITION, LogConfig())
    batch = a_batch()
    fill(log, total, batch)
    per_batch = log.log_end_offset // (total // len(batch))
    for max_bytes in (1 << 20, 256 << 10, 64 << 10):

        def work(max_bytes: int = max_bytes) -> int:
            offset = amount = 0
            while offset < log.high_watermark:
                result = log.read(offset, max_bytes)
                assert result.records is not None
                with result.records as records:
                    data = records.read_all()
                amount += len(data)
                offset += len(data) // len(batch) * per_batch
            return amount

        report(f"sequential read, {max_bytes >> 10} KiB ranges", *timed(work))
    opened.abandon()
    shutil.rmtree(f"{path}/read")


def bench_recover(path: str, total: int) -> None:
    """Recover a log whose broker died, and let Apache Kafka recover the same files."""
    home = Path(path, "recover")
    with Cluster(topics=[f"{PARTITION.topic}:1"], data_dir=str(home / "ottla")):
        pass
    opened = directory(str(home / "ottla"))
    opened.load()
    log = opened.logs[PARTITION]
    fill(log, total, a_batch())
    end = log.log_end_offset
    opened.abandon()
    (home / "ottla" / RECOVERY_POINT_CHECKPOINT).unlink(missing_ok=True)  # nothing is known to be on the disk
    shutil.copytree(home / "ottla", home / "kafka")
    again = directory(str(home / "ottla"))

    def work() -> int:
        again.load()
        assert again.logs[PARTITION].log_end_offset == end
        return next(report for report in again.reports if report.topic_partition == PARTITION).bytes_checked

    amount, seconds, cpu = timed(work)
    report("recovery after an unclean stop", amount, seconds, cpu)
    again.abandon()
    kafkas = kafka_recovery_seconds(home / "kafka")
    if kafkas is None:
        print("Apache Kafka's recovery is not measured: there is no Java or Maven")
    else:
        print(f"{'Apache Kafka on the same files':<34} {amount / 1e6 / kafkas:8.0f} MB/s   ", end="")
        print(f"({kafkas:.2f} s; ottla / Kafka {seconds / kafkas:.2f})")
    shutil.rmtree(home)


def kafka_recovery_seconds(data: Path) -> float | None:
    """How long Apache Kafka says that it took to load the partition."""
    from tests.interop.apache_kafka import ApacheKafka
    from tests.interop.jvm import JvmMissingError

    try:
        with ApacheKafka(data, heap="1g") as kafka:
            match = re.search(rf"Completed load of Log\(dir=\S*{PARTITION.topic}-0,.* in (\d+)ms", kafka.log_text())
    except JvmMissingError:
        return None
    assert match is not None, "Kafka's log does not say how long it took"
    return int(match[1]) / 1000


def bench_open(path: str, partitions: int) -> None:
    log_directory = directory(f"{path}/open")
    config = LogConfig()
    start = time.perf_counter()
    for number in range(partitions):
        log = log_directory.create_log(TopicPartition("many", number), config, Uuid(b"0123456789abcdef"))
        log.append_as_leader(build_batch([Record(0, CLOCK.now_ms(), None, b"x")]), 0)
    made = time.perf_counter()
    log_directory.env.disk.sync_dir = lambda path: None  # type: ignore[method-assign]
    log_directory.close()
    closed = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    again = directory(f"{path}/open")
    opening = time.perf_counter()
    again.load(lambda topic: config)
    opened = time.perf_counter()
    print(
        f"{partitions} partitions: made and written once in {made - start:.2f} s, closed in {closed - made:.2f} s, "
        f"opened in {opened - opening:.2f} s, {memory_of(path, partitions):.0f} MB (peak so far {before // 1024} MB)"
    )
    start = time.perf_counter()
    assert all(log.log_end_offset == 1 for log in again.logs.values())
    print(f"{partitions} partitions: first look at each in {time.perf_counter() - start:.2f} s")
    again.abandon()
    shutil.rmtree(f"{path}/open")


def bench_restart(path: str, partitions: int) -> None:
    """Start and stop a broker with two partitions a topic: after a kill, then after a clean stop. One process each."""
    import os
    import subprocess

    home = f"{path}/restart"
    for step in ("build", "start after a kill", "start after a clean stop"):
        command = [sys.executable, __file__, "--restart-step", step, "--partitions", str(partitions), "--dir", home]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run(command, check=True, env=environment)
    shutil.rmtree(home)


def restart_step(step: str, home: str, partitions: int) -> None:
    """Open the broker in `home` in this process and print the time; `build` creates the topics and dies."""
    import asyncio
    import os

    from ottla.broker.start import close_cluster, open_cluster
    from ottla.cluster.server_config import Endpoint, server_config
    from ottla.protocol.messages.k19_create_topics import CreatableTopic
    from ottla.world.world import World

    async def run() -> None:
        world = World.real(asyncio.get_running_loop())
        config = server_config({"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": home})
        advertised = {1: [Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092)]}
        cpu, start = time.process_time(), time.perf_counter()
        cluster = open_cluster(world, [config], advertised)
        if step == "build":
            for first in range(0, partitions // 2, 1000):
                names = [f"topic-{number}" for number in range(first, min(first + 1000, partitions // 2))]
                cluster.add_topics(
                    [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
                )
            os._exit(0)
        _print_step(f"{partitions} partitions: {step}", cpu, start)
        cpu, start = time.process_time(), time.perf_counter()
        close_cluster(cluster)
        _print_step(f"{partitions} partitions: clean stop after it", cpu, start)

    asyncio.run(run())


def _print_step(name: str, cpu: float, start: float) -> None:
    print(f"{name}: {time.process_time() - cpu:.2f} s CPU, {time.perf_counter() - start:.2f} s", flush=True)


def memory_of(path: str, partitions: int) -> float:
    """Resident megabytes of a process that has just opened the directory."""
    import subprocess

    code = (
        "import resource, sys; sys.argv=['x']\n"
        "from ottla.storage.directory import LogDirectory\n"
        "from ottla.storage.config import LogConfig\n"
        "from ottla.world.clock import VirtualClock\n"
        "from ottla.world.disk_real import RealDisk\n"
        "from ottla.world.random import SeededRandom\n"
        "import shutil, os\n"
        f"open({path + '/open/.kafka_cleanshutdown'!r}, 'w').write('{{}}')\n"
        f"d = LogDirectory(RealDisk(), VirtualClock(), SeededRandom(1), {path + '/open'!r})\n"
        "d.load(lambda t, c=LogConfig(): c)\n"
        f"assert len(d.logs) == {partitions}\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(out.stdout) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["append", "read", "recover", "open", "restart"])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--restart-step", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.restart_step is not None:
        restart_step(arguments.restart_step, arguments.dir, arguments.partitions)
        return
    print(f"kernel {'compiled' if COMPILED else 'not compiled'}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as path:
        for what in arguments.what:
            if what == "append":
                bench_append(path, arguments.mib << 20)
            elif what == "read":
                bench_read(path, arguments.mib << 20)
            elif what == "recover":
                bench_recover(path, arguments.mib << 20)
            elif what == "open":
                bench_open(path, arguments.partitions)
            elif what == "restart":
                bench_restart(path, 2 * arguments.partitions)
            else:
                sys.exit(f"unknown measurement {what!r}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
