"""Topics as Spark tables: Spark's own Kafka connector, `ottla` over the network and `ottla-log` on the files.

    python bench/spark.py [compare] [latency] [many] [curve] [partitions] [filter]

One session for all, which a run without arguments takes in this order. `compare`, `latency` and `many` have one Apache
Kafka and the same topics for all formats (`spark_compare`). The others scan directories made for the purpose, which are
real files: to 10 GB and 1,000 partitions, for which there must be 11 GB of room in TMPDIR and half an hour;
`--curve 64,128 --partitions 1,10 --spread 64 --filter 128` is over in a minute. Their session is warm, so that one
round will do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import crc32c
from pyspark.sql import Observation, functions
from tests.interop.spark_jars import connector_jars

from bench.peers import start_apache_kafka
from bench.plot import line_chart
from bench.spark_compare import PARTITIONS, Cost, best, compare, latency, many
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.spark import session

SEGMENT = 256 << 20
START = 1_700_000_000_000
PLOT = Path(__file__).resolve().parent.parent / "docs" / "images" / "spark-scan.svg"


PARTS = ("compare", "latency", "many", "curve", "partitions", "filter")
WITH_KAFKA = ("compare", "latency", "many")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--megabytes", type=int, default=200, help="compare: data of each size")
    parser.add_argument("--rounds", type=int, default=3, help="compare: rounds after the first")
    parser.add_argument("--records", type=int, default=100, help="latency: records for each source")
    parser.add_argument("--many", type=int, default=1000, help="many: partitions of the topic")
    parser.add_argument("--curve", default="1024,2560,5120,10240", help="curve: megabytes of the scans")
    parser.add_argument("--partitions", default="1,10,100,1000", help="partitions: over how many data is spread")
    parser.add_argument("--spread", type=int, default=2560, help="partitions: megabytes that are spread")
    parser.add_argument("--filter", type=int, default=10240, help="filter: megabytes of the topic of which 1%% is read")
    parser.add_argument("--plot", type=Path, default=PLOT, help="the plot of the curve; that of partitions goes beside")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    wanted = args.parts or PARTS
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        work = Path(folder)
        settings = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
        if set(WITH_KAFKA) & set(wanted):
            settings["spark.jars"] = connector_jars()
        load = os.getloadavg()[0]
        spark = session("bench", master="local[2]", config=settings)
        spark.sparkContext.setLogLevel("ERROR")
        print(
            f"On {os.cpu_count()} cores with a load of {load:.1f} before the start. Processor time is that of driver, "
            "JVM and Python workers together: compare it where others use the machine too."
        )
        if set(WITH_KAFKA) & set(wanted):
            peer = start_apache_kafka(work)
            try:
                if "compare" in wanted:
                    compare(spark, work, peer, args.megabytes, args.rounds)
                if "latency" in wanted:
                    latency(spark, work, peer, args.records)
                if "many" in wanted:
                    many(spark, work, peer, args.many)
            finally:
                peer.stop()
        if "curve" in wanted:
            curve(spark, work, [int(each) for each in args.curve.split(",")], args.plot)
        if "partitions" in wanted:
            spread(spark, work, args.spread, [int(each) for each in args.partitions.split(",")], args.plot)
        if "filter" in wanted:
            filtered(spark, work, args.filter)
        spark.stop()


# How the cost of a scan grows, and what a filter saves.


CURVE = "| MB | partitions | seconds | processor seconds | processor seconds a GB |\n|---|---|---|---|---|"


def curve(spark: Any, work: Path, sizes: list[int], plot: Path) -> None:
    print(
        f"\n`curve --curve {','.join(map(str, sizes))}`: a scan by `ottla-log` (all columns of 100-byte records, to "
        f"Spark's noop sink), less what a job costs that reads nothing:\n\n{CURVE}"
    )
    best(2, scan, spark, write_directory(work / "curve", 64, PARTITIONS))  # compiled by now, whatever was run before
    points = [(size, measured(spark, work, size, PARTITIONS)) for size in sizes]
    draw(plot, "A scan by ottla-log", "MB of records of 100 bytes, 4 partitions", points)


def spread(spark: Any, work: Path, megabytes: int, partitions: list[int], plot: Path) -> None:
    print(
        f"\n`partitions --partitions {','.join(map(str, partitions))} --spread {megabytes}`: the same for {megabytes} "
        f"MB over more and more partitions:\n\n{CURVE}"
    )
    points = [(each, measured(spark, work, megabytes, each)) for each in partitions]
    draw(plot.with_stem(f"{plot.stem}-partitions"), f"A scan of {megabytes} MB by ottla-log", "partitions", points)


def measured(spark: Any, work: Path, megabytes: int, partitions: int) -> Cost:
    folder = write_directory(work / "curve", megabytes, partitions)
    empty = best(3, nothing, spark, folder)
    cost = best(1, scan, spark, folder, warm_up=False).less(empty)
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


def rows(frame: Any) -> int:
    """How many rows there are, every column of which is read: a count alone would need none of them."""
    seen = Observation()
    frame.observe(seen, functions.count(functions.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def scan(spark: Any, folder: Path, **options: str) -> int:
    found = rows(spark.read.format("ottla-log").options(**options).load(str(folder)))
    assert found > 0
    return found


def nothing(spark: Any, folder: Path) -> None:
    """A job that has nothing to read: what starting one costs."""
    late = {"startingTimestamp": str(2**52), "startingOffsetsByTimestampStrategy": "latest"}
    assert rows(spark.read.format("ottla-log").options(**late).load(str(folder))) == 0


def scan_filtered(spark: Any, folder: Path, low: int, high: int) -> int:
    frame = spark.read.format("ottla-log").load(str(folder))
    found = rows(frame.filter(f"timestamp >= timestamp_millis({low}) AND timestamp < timestamp_millis({high})"))
    assert found > 0
    return found


def filtered(spark: Any, work: Path, megabytes: int) -> None:
    folder = write_directory(work / "filter", megabytes, PARTITIONS)
    last = last_timestamp(folder)
    middle, width = START + (last - START) // 2, (last - START) // 100
    between = {"startingTimestamp": str(middle), "endingTimestamp": str(middle + width)}
    start = best(3, nothing, spark, folder)
    print(
        f"\n`filter --filter {megabytes}`: 1% by time, from the middle of {megabytes} MB; the job's start "
        f"({start.wall:.2f} s) is not counted:\n\n"
        "| | rows | seconds | of the full scan | processor seconds | of the full scan |\n|---|---|---|---|---|---|"
    )
    full = None
    for name, rounds, act, given, options in (
        ("full scan", 1, scan, (), {}),
        ("startingTimestamp and endingTimestamp", 3, scan, (), between),
        ("a filter on timestamp, pushed down", 3, scan_filtered, (middle, middle + width), {}),
    ):
        cost = best(rounds, act, spark, folder, *given, warm_up=rounds > 1, **options).less(start)
        full = full or cost
        shares = f"{cost.wall:.2f} | {cost.wall / full.wall:.1%} | {cost.processor:.2f} | "
        print(f"| {name} | {cost.rows:,} | {shares}{cost.processor / full.processor:.1%} |", flush=True)
    print(
        "\nA filter on `timestamp` costs more than the options, because it must be exact: it walks over the records of "
        "every later batch, since a producer may have written an earlier time behind them; the options go by offset, "
        "as Kafka's own do."
    )
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
