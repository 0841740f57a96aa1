r"""Topics as Spark tables: Spark's own Kafka connector, `ottla` over the network and `ottla-log` on the files.

    python bench/spark.py [--megabytes N] [--rounds N] [--curve MB,MB,...] [--partitions N,N,...] [--spread MB]
                          [--filter MB]

One session, one Apache Kafka, the same four-partition topics for all three; each figure is the best of the rounds after
a first one that warms up. The curve and the filtered read use directories made for the purpose, which are real files;
the session is warm by then, so that one round will do for what takes long. To 10 GB and 1,000 partitions:

    python bench/spark.py --rounds 1 --curve 1024,2560,5120,10240 --partitions 1,10,100,1000 --spread 2560 \
        --filter 10240
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import crc32c
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.interop.spark_jars import connector_jars

from bench.peers import Peer, start_apache_kafka
from bench.plot import line_chart
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 4
SIZES = {100: "100 B", 1024: "1 KiB"}
FORMATS = ("kafka", "ottla", "ottla-log")
SEGMENT = 256 << 20
START = 1_700_000_000_000
PLOT = Path(__file__).resolve().parent.parent / "docs" / "images" / "spark-scan.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200, help="data of each size for the comparison; 0: none")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--curve", default="64,128,256,512", help="megabytes of the scans that the plot shows")
    parser.add_argument("--partitions", default="1,10,100", help="partitions over which data is spread")
    parser.add_argument("--spread", type=int, help="megabytes that are spread; the largest of the curve unless given")
    parser.add_argument("--filter", type=int, default=512, help="megabytes of the topic of which 1% is read")
    parser.add_argument("--plot", type=Path, default=PLOT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        work = Path(folder)
        settings = {"spark.jars": connector_jars(), "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
        spark = session("bench", master="local[2]", config=settings)
        spark.sparkContext.setLogLevel("ERROR")
        if args.megabytes:
            compare(spark, work, args.megabytes, args.rounds)
        sizes = [int(each) for each in args.curve.split(",")]
        curve(spark, work, sizes, args.rounds, args.plot)
        partitions = [int(each) for each in args.partitions.split(",")]
        spread(spark, work, args.spread or sizes[-1], partitions, args.rounds, args.plot)
        filtered(spark, work, args.filter, args.rounds)
        spark.stop()


# Side by side.


def compare(spark: Any, work: Path, megabytes: int, rounds: int) -> None:
    print(f"\n{PARTITIONS} partitions, local[2], {megabytes} MB of each size, Apache Kafka serving. Processor time is")
    print("that of driver, JVM and Python workers together, not the broker: compare it on a machine that others use.\n")
    print("| | connector | ottla | gain | ottla-log | gain | | connector | ottla | gain | ottla-log | gain |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    print("| | thousand records/s | | | | | | processor µs a record | | | | |")
    peer = start_apache_kafka(work)
    try:
        counts = {size: fill(peer, size, megabytes) for size in SIZES}
        for size, label in SIZES.items():
            for what, act, kinds in (
                ("count", count, FORMATS),
                ("to Parquet", parquet, FORMATS),
                ("stream (availableNow) to Parquet", stream, FORMATS[:2]),
            ):
                costs = {kind: best(rounds, act, spark, kind, peer, size, work, broker=peer.pid) for kind in kinds}
                show(f"{label} {what}", costs, counts[size])
    finally:
        peer.stop()


def show(label: str, costs: dict[str, Cost], records: int) -> None:
    rates, cells = [f"{records / costs['kafka'].wall / 1000:.0f}"], [f"{costs['kafka'].processor / records * 1e6:.2f}"]
    for kind in FORMATS[1:]:
        if kind in costs:
            faster, cheaper = (costs["kafka"][each] / costs[kind][each] for each in (0, 1))
            rates += [f"{records / costs[kind].wall / 1000:.0f}", f"{faster:.1f}"]
            cells += [f"{costs[kind].processor / records * 1e6:.2f}", f"{cheaper:.1f}"]
        else:
            rates += ["", ""]
            cells += ["", ""]
    print(f"| {' | '.join([label, *rates, '', *cells])} |", flush=True)


def fill(peer: Peer, size: int, megabytes: int) -> int:
    """Produce a topic; returns how many records it has."""
    topic, records = f"bench-{size}", megabytes * 1_000_000 // size
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 200_000, "log_level": 0}
    )
    value = os.urandom(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0
    return records


def table(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> Any:
    reader = spark.read.format(kind).option("subscribe", f"bench-{size}")
    if kind == "ottla-log":
        return reader.load(str(work / "kafka"))
    return reader.option("kafka.bootstrap.servers", peer.bootstrap).load()


def count(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> None:
    assert table(spark, kind, peer, size, work).count() > 0


def parquet(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> None:
    table(spark, kind, peer, size, work).write.mode("overwrite").parquet(str(work / "out"))


def stream(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> None:
    for name in ("stream", "checkpoint"):
        shutil.rmtree(work / name, ignore_errors=True)
    options = {"kafka.bootstrap.servers": peer.bootstrap, "subscribe": f"bench-{size}", "startingOffsets": "earliest"}
    query = (
        spark.readStream.format(kind)
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "stream"))
    )
    query.awaitTermination()
    assert query.exception() is None


class Cost(NamedTuple):
    """What a job took, in seconds."""

    wall: float
    processor: float

    def less(self, other: Cost) -> Cost:
        return Cost(max(self.wall - other.wall, 0.001), max(self.processor - other.processor, 0.001))


def best(
    rounds: int, act: Callable[..., None], *given: Any, broker: int = 0, warm_up: bool = True, **options: Any
) -> Cost:
    """The least of each, of some rounds after one that warms up."""
    if warm_up:
        act(*given, **options)
    found = []
    for _ in range(rounds):
        with Meter(broker) as meter:
            act(*given, **options)
        found.append(meter.cost)
    return Cost(min(cost.wall for cost in found), min(cost.processor for cost in found))


class Meter(threading.Thread):
    """Adds up the processor time of this process and all below it but a broker, with those that come and go."""

    def __init__(self, broker: int) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._before: dict[int, int] = {}
        self._ticks: dict[int, int] = {}
        self._ended = threading.Event()
        self.cost = Cost(0, 0)

    def __enter__(self) -> Meter:
        self._before = self._look()
        self._began = time.perf_counter()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._began
        self._ended.set()
        self.join()
        self._ticks |= self._look()
        used = sum(ticks - self._before.get(process, 0) for process, ticks in self._ticks.items())
        self.cost = Cost(wall, used / os.sysconf("SC_CLK_TCK"))

    def run(self) -> None:
        while not self._ended.wait(0.1):
            self._ticks |= self._look()

    def _look(self) -> dict[int, int]:
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            process = int(stat.parent.name)
            parents[process], ticks[process] = int(fields[1]), int(fields[11]) + int(fields[12])
        ours = {}
        for process, used in ticks.items():
            above = process
            while above not in (0, self._broker, os.getpid()):
                above = parents.get(above, 0)
            if above == os.getpid():
                ours[process] = used
        return ours


# How the cost of a scan grows, and what a filter saves.


def curve(spark: Any, work: Path, sizes: list[int], rounds: int, plot: Path) -> None:
    print("\nA scan by `ottla-log` (count, 100-byte records), less what a job costs that reads nothing:\n")
    print("| MB | partitions | seconds | processor seconds | processor seconds a GB |\n|---|---|---|---|---|")
    best(2, scan, spark, write_directory(work / "curve", 64, PARTITIONS))  # compiled by now, whatever was run before
    points = [(size, measured(spark, work, size, PARTITIONS, rounds)) for size in sizes]
    draw(plot, "A scan by ottla-log", "MB of records of 100 bytes, 4 partitions", points)


def spread(spark: Any, work: Path, megabytes: int, partitions: list[int], rounds: int, plot: Path) -> None:
    print(f"\nThe same for {megabytes} MB over more and more partitions:\n")
    print("| MB | partitions | seconds | processor seconds | processor seconds a GB |\n|---|---|---|---|---|")
    points = [(each, measured(spark, work, megabytes, each, rounds)) for each in partitions]
    draw(plot.with_stem(f"{plot.stem}-partitions"), f"A scan of {megabytes} MB by ottla-log", "partitions", points)


def measured(spark: Any, work: Path, megabytes: int, partitions: int, rounds: int) -> Cost:
    folder = write_directory(work / "curve", megabytes, partitions)
    empty = best(3, nothing, spark, folder)
    cost = best(rounds, scan, spark, folder, warm_up=False).less(empty)
    shutil.rmtree(folder)
    per_gb = cost.processor / megabytes * 1000
    print(f"| {megabytes} | {partitions} | {cost.wall:.2f} | {cost.processor:.2f} | {per_gb:.2f} |", flush=True)
    return cost


def draw(plot: Path, title: str, across: str, points: list[tuple[int, Cost]]) -> None:
    lines = {
        "processor seconds": [(float(x), cost.processor) for x, cost in points],
        "seconds on two cores": [(float(x), cost.wall) for x, cost in points],
    }
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(line_chart(title, across, "seconds", lines))
    print(f"\n![{title}](images/{plot.name})")


def scan(spark: Any, folder: Path, **options: str) -> None:
    assert spark.read.format("ottla-log").options(**options).load(str(folder)).count() > 0


def nothing(spark: Any, folder: Path) -> None:
    """A job that has nothing to read: what starting one costs."""
    assert spark.read.format("ottla-log").option("startingOffsets", "latest").load(str(folder)).count() == 0


def filtered(spark: Any, work: Path, megabytes: int, rounds: int) -> None:
    folder = write_directory(work / "filter", megabytes, PARTITIONS)
    last = last_timestamp(folder)
    middle, width = START + (last - START) // 2, (last - START) // 100

    def by_filter() -> None:
        frame = spark.read.format("ottla-log").option("filterPushdown", "true").load(str(folder))
        low, high = f"timestamp_millis({middle})", f"timestamp_millis({middle + width})"
        assert frame.filter(f"timestamp >= {low} AND timestamp < {high}").count() > 0

    between = {"startingTimestamp": str(middle), "endingTimestamp": str(middle + width)}
    start = best(3, nothing, spark, folder)
    costs = {
        "full scan": best(rounds, scan, spark, folder, warm_up=False),
        "startingTimestamp and endingTimestamp": best(3, scan, spark, folder, **between),
        "a filter on timestamp, pushed down": best(3, by_filter),
    }
    full = costs["full scan"].less(start)
    print(f"\n1% by time, from the middle of {megabytes} MB; the job's start ({start.wall:.2f} s) is not counted:\n")
    print("| | seconds | of the full scan | processor seconds | of the full scan |\n|---|---|---|---|---|")
    for name, cost in costs.items():
        wall, processor = cost.less(start)
        shares = f"{wall:.2f} | {wall / full.wall:.1%} | {processor:.2f} | {processor / full.processor:.1%}"
        print(f"| {name} | {shares} |", flush=True)
    shutil.rmtree(folder)


def write_directory(folder: Path, megabytes: int, partitions: int, size: int = 100) -> Path:
    """A log directory as a broker would have it: batches of about 16 KB, both indexes, timestamps that grow."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text("version=1\nnode.id=1\n")
    (folder / ".kafka_cleanshutdown").write_text("")
    value, records = os.urandom(size), max(16_000 // size, 1)
    template = build_batch([Record(n, START + n, None, value, ()) for n in range(records)])
    for number in range(partitions):
        _write_partition(folder / f"bench-{number}", bytearray(template), records, megabytes * 1_000_000 // partitions)
    return folder


def _write_partition(folder: Path, batch: bytearray, records: int, wanted: int) -> None:
    folder.mkdir()
    offset = written = 0
    while written < wanted:
        base, position, since = offset, 0, 0
        name = folder / f"{base:020d}"
        with (
            open(f"{name}.log", "wb") as log,
            open(f"{name}.index", "wb") as index,
            open(f"{name}.timeindex", "wb") as times,
        ):
            while position < SEGMENT and written < wanted:
                last = START + offset + records - 1
                struct.pack_into(">q", batch, 0, offset)
                struct.pack_into(">qq", batch, 27, START + offset, last)
                struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
                log.write(batch)
                since += len(batch)
                if since > 4096 and position:
                    index.write(struct.pack(">ii", offset + records - 1 - base, position))
                    times.write(struct.pack(">qi", last, offset + records - 1 - base))
                    since = 0
                position += len(batch)
                written += len(batch)
                offset += records


def last_timestamp(folder: Path) -> int:
    """The newest time in partition 0."""
    newest = max((folder / "bench-0").glob("*.timeindex"))
    return int(struct.unpack(">qi", newest.read_bytes()[-12:])[0])


if __name__ == "__main__":
    main()
