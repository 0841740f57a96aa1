"""Topics as Spark tables: Spark's own Kafka connector, `ottla` over the network and `ottla-log` on the files.

    python bench/spark.py [--megabytes N] [--rounds N] [--curve MB,MB,...] [--partitions N,N,...] [--filter MB]

One session, one Apache Kafka, the same four-partition topics for all three; each figure is the best of the rounds after
a first one that warms up. The curve and the filtered read use directories made for the purpose, which are real files.
With --curve 1024,2560,5120,10240 --partitions 1,10,100,1000 --filter 10240 it is taken to 10 GB and 1,000 partitions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
FORMATS = {"kafka": "connector", "ottla": "ottla", "ottla-log": "ottla-log"}
SEGMENT = 256 << 20
START = 1_700_000_000_000
PLOT = Path(__file__).resolve().parent.parent / "docs" / "images" / "spark-scan.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100, help="data of each size for the comparison")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--curve", default="64,128,256,512", help="megabytes of the scans that the plot shows")
    parser.add_argument("--partitions", default="1,10,100", help="partitions over which the largest of them is spread")
    parser.add_argument("--filter", type=int, default=512, help="megabytes of the topic of which 1% is read")
    parser.add_argument("--plot", type=Path, default=PLOT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        work = Path(folder)
        settings = {"spark.jars": connector_jars(), "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
        spark = session("bench", master="local[2]", config=settings)
        spark.sparkContext.setLogLevel("ERROR")
        compare(spark, work, args.megabytes, args.rounds)
        sizes = [int(each) for each in args.curve.split(",")]
        curve(spark, work, sizes, [int(each) for each in args.partitions.split(",")], args.rounds, args.plot)
        filtered(spark, work, args.filter, args.rounds)
        spark.stop()


# Side by side.


def compare(spark: Any, work: Path, megabytes: int, rounds: int) -> None:
    print(
        f"\nThousand records/s, {PARTITIONS} partitions, local[2], {megabytes} MB of each size, Apache Kafka serving:\n"
    )
    print("| | connector | ottla | ratio | ottla-log | ratio |\n|---|---|---|---|---|---|")
    peer = start_apache_kafka(work)
    try:
        counts = {size: fill(peer, size, megabytes) for size in SIZES}
        for size, label in SIZES.items():
            for what, act in (("count", count), ("to Parquet", parquet)):
                took = {kind: best(rounds, act, spark, kind, peer, size, work) for kind in FORMATS}
                show(f"{label} {what}", {kind: counts[size] / each / 1000 for kind, each in took.items()})
            took = {kind: best(rounds, stream, spark, kind, peer, size, work) for kind in ("kafka", "ottla")}
            rates = {kind: counts[size] / each / 1000 for kind, each in took.items()}
            show(f"{label} stream (availableNow) to Parquet", rates)
    finally:
        peer.stop()


def show(label: str, rates: dict[str, float]) -> None:
    theirs = rates["kafka"]
    cells = [label, f"{theirs:.0f}"]
    for kind in ("ottla", "ottla-log"):
        cells += [f"{rates[kind]:.0f}", f"{rates[kind] / theirs:.1f}"] if kind in rates else ["", ""]
    print(f"| {' | '.join(cells)} |", flush=True)


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


def best(rounds: int, act: Callable[..., None], *given: Any, **options: Any) -> float:
    took = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        act(*given, **options)
        took.append(time.perf_counter() - began)
    return min(took[1:])


# How the cost of a scan grows, and what a filter saves.


def curve(spark: Any, work: Path, sizes: list[int], partitions: list[int], rounds: int, plot: Path) -> None:
    print("\nA scan by `ottla-log` (count, 100-byte records), seconds:\n")
    print("| MB | partitions | seconds | seconds less an empty job's | MB/s |\n|---|---|---|---|---|")
    empty = None
    lines: dict[str, list[tuple[float, float]]] = {}
    by_partitions = [(sizes[-1], each) for each in partitions if each != PARTITIONS]
    for megabytes, spread in [(size, PARTITIONS) for size in sizes] + by_partitions:
        folder = write_directory(work / "curve", megabytes, spread)
        if empty is None:
            empty = best(rounds, nothing, spark, folder)
        took = best(rounds, scan, spark, folder)
        shutil.rmtree(folder)
        alone = max(took - empty, 0.001)
        print(f"| {megabytes} | {spread} | {took:.2f} | {alone:.2f} | {megabytes / alone:.0f} |", flush=True)
        if spread == PARTITIONS:
            lines.setdefault(f"{PARTITIONS} partitions, by size", []).append((megabytes, took))
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(line_chart("A scan by ottla-log", "MB of records of 100 bytes", "seconds", lines))
    print(f"\n![scan cost](images/{plot.name})")


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
    start = best(rounds, nothing, spark, folder)
    full = best(rounds, scan, spark, folder) - start
    option = best(rounds, scan, spark, folder, **between) - start
    pushed = best(rounds, by_filter) - start
    print(f"\n1% by time, from the middle of {megabytes} MB; the job's start ({start:.2f} s) is not counted:\n")
    print("| | seconds | of the full scan |\n|---|---|---|")
    print(f"| full scan | {full:.2f} | 100% |")
    print(f"| startingTimestamp and endingTimestamp | {option:.2f} | {option / full:.1%} |")
    print(f"| a filter on timestamp, pushed down | {pushed:.2f} | {pushed / full:.1%} |", flush=True)
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
