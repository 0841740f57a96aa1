"""Kill and pause a Spark query with an exactly-once sink at its steps, again and again, while its input changes.

`python -m tests.interop.sink_kills --kills 100 --seed N [--target ottla|kafka|both]` runs it by hand. One session runs
a query per target; in every round a process of the query is killed or paused at a step (the Python process of a task or
of the driver's commit) or the target's broker is killed; the input is compacted or deleted, the number of read tasks
changes, and the query restarts. JVMs are killed by test_spark_exactly_once.py.

Each output row has the position of its input record as key. No key may occur twice, and every input record that still
exists must be there.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader
from ottla.client.topics import create_topic, delete_records
from ottla.spark.session import session
from ottla.testing import Cluster
from tests.interop.apache_kafka import ApacheKafka
from tests.ottla_node import OttlaNode
from tests.spark.conftest import SETTINGS
from tests.spark.consume import consume
from tests.spark.sink.crashing import DRIVER_STEPS, TASK_STEPS, register_crashing

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITIONS = 3
SECONDS = 900  # a guard
TIMEOUT_MS = 5_000
COMPACTED = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1048576",
}


@dataclass
class Target:
    """A broker with the output topic, and what the query to it has done."""

    name: str
    broker: OttlaNode | ApacheKafka
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    flag: int = 0


class Kills:
    """One source cluster, whose topics change, and one query per target and kind of source."""

    def __init__(self, spark: Any, source: Cluster, targets: Sequence[Target], seed: int, kinds: Sequence[str]) -> None:
        self.spark = spark
        self.source = source
        self.targets = targets
        self.chance = random.Random(seed)
        self.kinds = kinds
        self.produced = 0
        for kind in kinds:
            source.create_topic(f"in-{kind}", PARTITIONS, configs=COMPACTED)
            for target in targets:
                with Client(target.broker.bootstrap, timeout=300) as client:
                    create_topic(client, f"out-{kind}", partitions=2, replication_factor=1)

    def produce(self, kind: str) -> None:
        """Add records whose keys repeat, so that compaction has something to remove."""
        with Client(self.source.bootstrap) as client:
            producer = Producer(client)
            for _ in range(self.chance.randint(30, 120)):
                self.produced += 1
                key = b"%d" % self.chance.randrange(40)
                producer.send(f"in-{kind}", key, b"%d" % self.produced, partition=self.produced % PARTITIONS)
            producer.flush()

    def start(self, kind: str, target: Target, crash: dict[str, str]) -> Any:
        source = (
            self.spark.readStream.format("kafka" if kind == "connector" else "ottla")
            .option("kafka.bootstrap.servers", self.source.bootstrap)
            .option("subscribe", f"in-{kind}")
            .option("startingOffsets", "earliest")
            .option("failOnDataLoss", "false")
            .option("minPartitions", str(self.chance.choice((1, 2, 3, 6))))
        )
        rows = source.load().selectExpr("concat(partition, '/', offset) as key", "uuid() as value")
        if self.chance.random() < 0.3:
            rows = rows.repartition(self.chance.randint(1, 4))
        return (
            rows.writeStream.format("ottla-crashing" if crash else "ottla")
            .options(**crash)
            .option("kafka.bootstrap.servers", target.broker.bootstrap)
            .option("kafka.transaction.timeout.ms", str(TIMEOUT_MS))
            .option("kafka.request.timeout.ms", "120000")
            .option("topic", f"out-{kind}")
            .option("exactlyOnce", "true")
            .option("checkpointLocation", str(target.folder / f"checkpoint-{kind}"))
            .trigger(availableNow=True)
            .start()
        )

    def round(self, kind: str, target: Target) -> None:
        """One accident, one change of the input, one restart; a second accident may hit the restart."""
        self.produce(kind)
        for _ in range(1 if self.chance.random() < 0.5 else 3):
            self.accident(kind, target)
            self.change_input(kind)
        self.finish(self.start(kind, target, {}))

    def accident(self, kind: str, target: Target) -> None:
        target.flag += 1
        flag = target.folder / f"flag-{kind}-{target.flag}"
        step = self.chance.choice((*TASK_STEPS, *DRIVER_STEPS, *DRIVER_STEPS[3:]))
        crash = {"crash": step, "crash.flag": str(flag), "crash.batch": "-1"}
        what = self.chance.choices(("kill", "pause", "broker", "wake"), (12, 2, 2, 1))[0]
        if what == "pause":  # longer than the transaction timeout and the interval in which brokers look for timeouts
            crash["crash.pause"] = str(TIMEOUT_MS / 1000 + 3)
        elif what in ("broker", "wake"):
            crash["crash.pause"] = "3"
        query = self.start(kind, target, crash)
        if what == "broker" and self.wait_for(flag, query):
            target.broker.kill()
            target.broker.start()
        if what == "wake" and self.wait_for(flag, query):
            query.stop()  # interrupts the driver while its Python process goes on as a zombie
        try:
            query.awaitTermination(SECONDS)
        except Exception as error:
            target.counts["query failed"] += 1
            if "Crash" not in str(error) and "worker" not in str(error) and "EOF" not in str(error):
                print(f"{target.name} {kind} {step} {what}: {str(error).splitlines()[-1][:300]}", flush=True)
        if flag.exists():
            target.counts[f"{what} {step}"] += 1
            target.counts["accidents"] += 1

    def wait_for(self, flag: Path, query: Any) -> bool:
        deadline = time.monotonic() + SECONDS
        while not flag.exists() and query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        return flag.exists()

    def change_input(self, kind: str) -> None:
        change = self.chance.choice(("none", "compact", "delete", "produce"))
        topic = f"in-{kind}"
        if change == "compact":
            self.source.roll_segments(topic)
            self.source.compact(topic)
        elif change == "delete":
            with Client(self.source.bootstrap) as client:
                partition = self.chance.randrange(PARTITIONS)
                (end, _) = client.list_offsets(topic, [partition], -1)[partition]
                delete_records(client, topic, {partition: max(end - self.chance.randint(0, 40), 0)})
        elif change == "produce":
            self.produce(kind)

    def finish(self, query: Any) -> None:
        assert query.awaitTermination(SECONDS), query.lastProgress

    def check(self, kind: str, target: Target) -> int:
        """Compare what is visible with what the source still has."""
        keys = Counter((seen.key or b"").decode() for seen in consume(target.broker.bootstrap, f"out-{kind}"))
        twice = {key: count for key, count in keys.items() if count > 1}
        assert not twice, f"{target.name} {kind}: twice {twice}"
        topic = f"in-{kind}"
        with Client(self.source.bootstrap) as client:
            starts = {p: at for p, (at, _) in client.list_offsets(topic, range(PARTITIONS), -2).items()}
            ends = {p: at for p, (at, _) in client.list_offsets(topic, range(PARTITIONS), -1).items()}
            reader = RecordReader(client, topic, starts, until=ends)
            existing = {f"{read.partition}/{read.record.offset}" for read in reader}
        missing = existing - set(keys)
        assert not missing, f"{target.name} {kind}: {len(missing)} rows are missing: {sorted(missing)[:10]}"
        return len(keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="end after this time, with fewer kills")
    parser.add_argument("--target", choices=("ottla", "kafka", "both"), default="both")
    parser.add_argument("--no-connector", action="store_true", help="do not use Spark's own connector as a source")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sink-kills-"))
    config = {**SETTINGS, "spark.task.maxFailures": "2"}
    kinds = ["ottla"]
    if not given.no_connector:
        from tests.interop.spark_jars import connector_jars

        config["spark.jars"] = connector_jars()
        kinds.append("connector")
    with ExitStack() as stack:
        source = stack.enter_context(Cluster())
        targets = []
        if given.target in ("ottla", "both"):
            node = stack.enter_context(OttlaNode(folder / "ottla"))
            targets.append(Target("ottla", node, folder / "for-ottla"))
        if given.target in ("kafka", "both"):
            settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
            kafka = stack.enter_context(ApacheKafka(folder / "kafka", settings=settings))
            targets.append(Target("kafka", kafka, folder / "for-kafka"))
        for target in targets:
            target.folder.mkdir()
        spark = session("sink-kills", master="local[2,2]", config=config)
        spark.sparkContext.setLogLevel("OFF")
        register_crashing(spark)
        kills = Kills(spark, source, targets, given.seed, kinds)
        rounds = 0
        deadline = time.monotonic() + given.minutes * 60
        while (
            time.monotonic() < deadline
            and min(target.counts["accidents"] for target in targets) * len(targets) < given.kills
        ):
            for target in targets:
                kind = kinds[rounds // 2 % len(kinds)]
                kills.round(kind, target)
                rounds += 1
            if rounds % 6 == 0:
                print(f"{rounds} rounds, {[target.counts['accidents'] for target in targets]} accidents", flush=True)
        for target in targets:
            for kind in kinds:
                kills.finish(kills.start(kind, target, {}))
                rows = kills.check(kind, target)
                print(f"{target.name} {kind}: {rows} rows, none twice, none missing")
            print(target.name, dict(target.counts.most_common()))
        spark.stop()


if __name__ == "__main__":
    main()
