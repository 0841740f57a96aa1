"""What grows with bytes, with tasks and with partitions: the figures that docs/scaling.md computes with.

    python bench/scaling.py [driver] [tasks] [shipping]

All figures are processor seconds, which other work on the machine changes little. `driver` runs without Spark: it calls
the readers as Spark does, and counts the time of the calling thread only. `tasks` has a Spark session on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.spark.direct import make_source, plan

from bench.spark import rows, write_directory
from bench.spark_compare import Meter
from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.spark import session
from ottla.spark.log.source import LogSource
from ottla.spark.network.source import NetworkSource
from ottla.spark.shipping import ARROW, OWN, pack
from ottla.testing.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("driver", "tasks", "shipping")
ROUNDS = 5
EMPTY_TASKS = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all unless given")
    parser.add_argument("--partitions", default="10,100,1000,10000", help="driver: partitions of the topic")
    parser.add_argument("--megabytes", default="64,128,256,512", help="tasks: sizes of the scans")
    parser.add_argument("--splits", default="4,16,64", help="tasks: into how many tasks the largest scan is split")
    args = parser.parse_args()
    chosen = args.parts or PARTS
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        if "driver" in chosen:
            driver([int(word) for word in args.partitions.split(",")], Path(folder))
        if "tasks" in chosen:
            sizes = [int(word) for word in args.megabytes.split(",")]
            tasks(Path(folder), sizes, [int(word) for word in args.splits.split(",")])
        if "shipping" in chosen:
            shipping(Path(folder))


def thread_seconds(act: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Return the least processor time that the calling thread needs."""
    least = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        act()
        least = min(least, time.thread_time() - began)
    return least


def driver(counts: list[int], work: Path) -> None:
    print(
        "Driver, by partitions (processor milliseconds of the planning process): a batch read of a topic and of a log "
        "directory, an idle trigger of a stream, and the offsets that a checkpoint holds for each batch.\n\n"
        "| partitions | plan, network | tasks | plan, directory | tasks | idle trigger | checkpoint KB |\n"
        "|---|---|---|---|---|---|---|"
    )
    for count in counts:
        with Cluster() as cluster:
            cluster.create_topic("wide", count)
            with Client(cluster.bootstrap, timeout=300) as client:
                producer = Producer(client)
                for partition in range(count):
                    producer.send("wide", None, b"x" * 100, partition=partition)
                producer.flush()
            options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "wide"}
            over_network = thread_seconds(lambda: plan(NetworkSource, options), 3)  # noqa: B023
            network_tasks = len(plan(NetworkSource, options)[1])
            source, schema = make_source(NetworkSource, {**options, "startingOffsets": "earliest"})
            stream = source.streamReader(schema)
            end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
            idle = thread_seconds(lambda: stream.latestOffset(end, stream.getDefaultReadLimit()))  # noqa: B023
            stream.stop()
        folder = write_directory(work / "wide", 1, count)
        directory = {"path": str(folder)}
        in_directory = thread_seconds(lambda: plan(LogSource, directory), 3)  # noqa: B023
        directory_tasks = len(plan(LogSource, directory)[1])
        print(
            f"| {count:,} | {over_network * 1000:.1f} | {network_tasks} | {in_directory * 1000:.1f} | "
            f"{directory_tasks} | {idle * 1000:.2f} | {len(json.dumps(end)) / 1000:.1f} |",
            flush=True,
        )


def tasks(work: Path, sizes: list[int], splits: list[int]) -> None:
    config = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    spark = session("bench", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    print(
        f"\nScans by `ottla-log` on two cores with a load of {os.getloadavg()[0]:.0f} (all columns, records of 1 KiB, "
        "to Spark's noop sink; processor seconds of JVM and Python together). The tasks of a row have nearly the same "
        "size; their run times are Spark's, and the spread is that of a machine with other work.\n\n"
        "| MB | tasks | processor s | processor s/GB | task run time: mean s | standard deviation |\n"
        "|---|---|---|---|---|---|"
    )
    scan(spark, write_directory(work / "scan", 64, 4, 1024), 4)
    points = []
    for size, split in [*((size, 4) for size in sizes), *((sizes[-1], split) for split in splits if split != 4)]:
        folder = write_directory(work / "scan", size, 4, 1024)
        cost, times = scan(spark, folder, split)
        points.append((size, len(times), cost))
        spread = statistics.pstdev(times)
        print(
            f"| {size} | {len(times)} | {cost:.2f} | {cost / size * 1000:.2f} | {statistics.mean(times):.2f} | "
            f"{spread:.2f} |",
            flush=True,
        )
    job, per_gb, per_task = fit(points)
    print(f"\nLeast squares: {job:.2f} s a job, {per_gb:.2f} s a GB, {per_task * 1000:.0f} ms a task.")
    spark.range(0, 1000, 1, 1000).count()
    with Meter(0) as meter:
        spark.range(0, EMPTY_TASKS, 1, EMPTY_TASKS).count()
    each = meter.cost.processor / EMPTY_TASKS * 1000
    print(f"A task without Python and without data: {each:.1f} ms in driver and executor ({EMPTY_TASKS:,} tasks).")
    spark.stop()


def scan(spark: Any, folder: Path, split: int) -> tuple[float, list[float]]:
    """Return the processor seconds of a scan and the run time of each task."""
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup(f"scan-{time.time_ns()}", "")
    group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    with Meter(0) as meter:
        rows(spark.read.format("ottla-log").option("minPartitions", split).load(str(folder)))
    times: list[float] = []
    store = spark.sparkContext._jsc.sc().statusStore()
    for job in tracker.getJobIdsForGroup(group):
        for stage in tracker.getJobInfo(job).stageIds:
            listed = store.taskList(stage, 0, 1_000_000)
            for index in range(listed.size()):
                metrics = listed.apply(index).taskMetrics()
                if metrics.isDefined():
                    times.append(metrics.get().executorRunTime() / 1000)
    return meter.cost.processor, times


def fit(points: list[tuple[int, int, float]]) -> tuple[float, float, float]:
    """Return the cost of a job, of a GB and of a task that fit the points best."""
    import numpy as np

    known = np.array([[1.0, size / 1000, count] for size, count, _ in points])
    job, per_gb, per_task = np.linalg.lstsq(known, np.array([cost for _, _, cost in points]), rcond=None)[0]
    return float(job), float(per_gb), float(per_task)


def shipping(work: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    print(
        "\nShipping to executors: what is sent, and what packing on the driver (once) and unpacking (on each executor) "
        "cost.\n\n| archive | MB | unpacked MB | pack: processor s | unpack: processor s |\n|---|---|---|---|---|"
    )
    for name, distributions, own in (("ottla", OWN, True), ("pyarrow", ARROW, False)):
        began = time.process_time()
        archive = pack(name, distributions, own_package=own)
        packed = time.process_time() - began
        began = time.process_time()
        with zipfile.ZipFile(archive.path) as zipped:
            zipped.extractall(work / name)
            size = sum(entry.file_size for entry in zipped.infolist())
        unpacked = time.process_time() - began
        print(f"| {name} | {archive.size / 1e6:.1f} | {size / 1e6:.0f} | {packed:.1f} | {unpacked:.1f} |", flush=True)


if __name__ == "__main__":
    main()
