"""Spark's own Kafka connector, as it is and tuned, next to `ottla` and `ottla-log`: scans, streams, latency.

Values are random and distinct, so that neither Parquet's dictionaries nor compression favour any source.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers import Peer

PARTITIONS = 4
SIZES = {100: "100 B", 1024: "1 KiB"}
# The best of the settings tried for the connector: large fetches, large polls, the system's socket buffers.
TUNED = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.poll.records": "20000",
    "kafka.receive.buffer.bytes": "-1",
}
SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "connector": ("kafka", {}),
    "connector, tuned": ("kafka", TUNED),
    "ottla": ("ottla", {}),
    "ottla-log": ("ottla-log", {}),
}
STREAMS = tuple(SOURCES)[:3]
SETTLED = 10  # batches of the latency query before records are counted


def compare(spark: Any, work: Path, peer: Peer, megabytes: int, rounds: int) -> None:
    """Scan the same topics with each source and print a table."""
    print(
        f"\n`compare --megabytes {megabytes} --rounds {rounds}`: {PARTITIONS} partitions, local[2], {megabytes} MB of "
        "each size with random distinct values, Apache Kafka serving; each figure is the least of the rounds after one "
        "that warms up. Tuned: " + ", ".join(f"`{name}={value}`" for name, value in TUNED.items()) + ".\n"
    )
    print(f"| | | {' | '.join(SOURCES)} | ottla to tuned | ottla-log to tuned |")
    print("|---" * (len(SOURCES) + 4) + "|")
    counts = {size: fill(peer, size, megabytes) for size in SIZES}
    for size, label in SIZES.items():
        for name, act, sources in (
            ("count", count, tuple(SOURCES)),
            ("to Parquet", parquet, tuple(SOURCES)),
            ("stream (availableNow) to Parquet", stream, STREAMS),
        ):
            costs = {kind: best(rounds, act, spark, kind, peer, size, work, peer=peer) for kind in sources}
            show(f"{label} {name}, {counts[size]:,} records", costs)
    starts = {kind: best(rounds, stream, spark, kind, peer, 100, work, "latest", peer=peer) for kind in STREAMS}
    show("stream with nothing to read", starts)


def show(label: str, costs: dict[str, Cost]) -> None:
    """Print the rows of one job."""
    for name, field in (("seconds", 0), ("processor seconds", 1), ("broker's processor seconds", 3)):
        cells = [f"{costs[kind][field]:.2f}" if kind in costs else "" for kind in SOURCES]
        tuned = costs["connector, tuned"][field]
        cells += [
            f"{tuned / max(costs[kind][field], 0.01):.1f}" if kind in costs else "" for kind in ("ottla", "ottla-log")
        ]
        print(f"| {label if field == 0 else ''} | {name} | {' | '.join(cells)} |", flush=True)


def fill(peer: Peer, size: int, megabytes: int) -> int:
    """Produce a topic of distinct values; return how many records it has."""
    topic, records = f"bench-{size}", megabytes * 1_000_000 // size
    create(peer, topic, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 200_000, "log_level": 0}
    )
    values = random.Random(size)
    for number in range(records):
        value = values.randbytes(size)
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


def create(peer: Peer, topic: str, partitions: int) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def table(spark: Any, kind: str, peer: Peer, topic: str, work: Path, **more: str) -> Any:
    """Return the DataFrame of a topic."""
    form, options = SOURCES[kind]
    reader = spark.read.format(form).option("subscribe", topic).options(**options, **more)
    if form == "ottla-log":
        return reader.load(str(work / "kafka"))
    return reader.option("kafka.bootstrap.servers", peer.bootstrap).load()


def count(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> None:
    """Count the records."""
    assert table(spark, kind, peer, f"bench-{size}", work).count() > 0


def parquet(spark: Any, kind: str, peer: Peer, size: int, work: Path) -> None:
    """Write all columns to Parquet."""
    table(spark, kind, peer, f"bench-{size}", work).write.mode("overwrite").parquet(str(work / "out"))


def stream(spark: Any, kind: str, peer: Peer, size: int, work: Path, start: str = "earliest") -> None:
    """Stream all that is there to Parquet."""
    for name in ("stream", "checkpoint"):
        shutil.rmtree(work / name, ignore_errors=True)
    form, options = SOURCES[kind]
    query = (
        spark.readStream.format(form)
        .options(**options)
        .options(**{"kafka.bootstrap.servers": peer.bootstrap, "subscribe": f"bench-{size}", "startingOffsets": start})
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / "stream"))
    )
    query.awaitTermination()
    assert query.exception() is None


# From a record's creation to its micro-batch.


def latency(spark: Any, work: Path, peer: Peer, records: int) -> None:
    """Send single records to a running query and print how long they take to reach foreachBatch."""
    print(
        f"\n`latency --records {records}`: single records, one at a time at random intervals of 0.2 to 0.5 s, from "
        "their creation to the end of a foreachBatch that collects them; a query without a trigger interval:\n\n"
        "| | p50 ms | p90 ms | processor seconds | broker's processor seconds |\n|---|---|---|---|---|"
    )
    waits = {
        "connector": ("kafka", {}),
        "connector, fetch.max.wait.ms=10": ("kafka", TUNED | {"kafka.fetch.max.wait.ms": "10"}),
        "ottla": ("ottla", {}),
        "ottla, fetch.max.wait.ms=10": ("ottla", {"kafka.fetch.max.wait.ms": "10"}),
    }
    for number, (name, (form, options)) in enumerate(waits.items()):
        times, cost = _latencies(spark, work, peer, form, options, f"latency-{number}", records)
        cuts = statistics.quantiles(times, n=10)
        print(
            f"| {name} | {cuts[4] * 1000:.0f} | {cuts[8] * 1000:.0f} | {cost.processor:.2f} | {cost.broker:.2f} |",
            flush=True,
        )


def _latencies(
    spark: Any, work: Path, peer: Peer, form: str, options: dict[str, str], topic: str, records: int
) -> tuple[list[float], Cost]:
    create(peer, topic, PARTITIONS)
    arrived: dict[bytes, float] = {}

    def collect(batch: Any, _: int) -> None:
        values = [bytes(row.value) for row in batch.select("value").collect()]
        now = time.perf_counter()
        arrived.update(dict.fromkeys(values, now))

    query = (
        spark.readStream.format(form)
        .options(**{"kafka.bootstrap.servers": peer.bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
        .options(**options)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(work / f"checkpoint-{topic}"))
        .start()
    )
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 0, "log_level": 0})
    pauses = random.Random(5)
    sent: dict[bytes, float] = {}
    before = peer.cpu_seconds()
    with Meter(peer.pid) as meter:
        for number in range(SETTLED + records):
            value = f"{topic} {number}".encode()
            sent[value] = time.perf_counter()
            producer.produce(topic, value, partition=number % PARTITIONS)
            producer.flush(60)
            while value not in arrived:
                if query.exception() is not None:
                    raise RuntimeError(query.exception())
                time.sleep(0.002)
            time.sleep(pauses.uniform(0.2, 0.5))
    query.stop()
    times = [arrived[value] - moment for value, moment in list(sent.items())[SETTLED:]]
    return times, meter.cost._replace(broker=peer.cpu_seconds() - before)


# Many partitions.


def many(spark: Any, work: Path, peer: Peer, partitions: int) -> None:
    """Count 20 records in each of many partitions."""
    create(peer, "bench-many", partitions)
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 50, "log_level": 0})
    for number in range(20 * partitions):
        producer.produce("bench-many", str(number), partition=number % partitions)
        producer.poll(0)
    assert producer.flush(300) == 0
    print(
        f"\n`many --many {partitions}`: all columns of {20 * partitions:,} records in {partitions:,} partitions, 20 in "
        f"each, to Spark's noop sink:\n\n| | | {' | '.join(SOURCES)} | ottla to tuned | ottla-log to tuned |"
    )
    print("|---" * (len(SOURCES) + 4) + "|")

    def scan(kind: str) -> None:
        table(spark, kind, peer, "bench-many", work).write.format("noop").mode("overwrite").save()

    show("scan", {kind: best(1, scan, kind, peer=peer) for kind in SOURCES})


# What a job costs.


class Cost(NamedTuple):
    """What a job took, in seconds, the broker's processor time, and how many rows it read if it returns that."""

    wall: float
    processor: float
    rows: int = 0
    broker: float = 0.0

    def less(self, other: Cost) -> Cost:
        """Return the cost without that of another job."""
        return Cost(max(self.wall - other.wall, 0.001), max(self.processor - other.processor, 0.001), self.rows)


def best(
    rounds: int,
    act: Callable[..., int | None],
    *given: Any,
    peer: Peer | None = None,
    warm_up: bool = True,
    **options: Any,
) -> Cost:
    """Return the least of each, of some rounds after one that warms up."""
    if warm_up:
        act(*given, **options)
    costs = []
    rows = None
    for _ in range(rounds):
        before = peer.cpu_seconds() if peer else 0.0
        with Meter(peer.pid if peer else 0) as meter:
            rows = act(*given, **options)
        costs.append(meter.cost._replace(broker=(peer.cpu_seconds() if peer else 0.0) - before))
    least = [min(cost[field] for cost in costs) for field in (0, 1, 3)]
    return Cost(least[0], least[1], rows or 0, least[2])


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
