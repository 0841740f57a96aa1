"""A Spark job that runs seeded reads and one checkpoint with Spark's Kafka connector and with ottla's formats.

    python spark_differential.py JARS FOLDER BOOTSTRAP LOGDIR FIRST_SEED COUNT

Prints one line of JSON per case. A process of its own, because a JVM takes its jars when it starts.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from ottla.spark import session
from ottla.spark.reasons import reason

TOPICS = {"orders": 3, "orders-eu": 2, "payments": 1, "Audit_1": 1, "empty.one": 2}
RECORDS = 60  # of each partition, but of empty.one
START = 1_700_000_000_000
DELETED = {("orders", 1): 25, ("payments", 0): 40}  # log start offsets, each within a batch
PATTERNS = (
    "orders|payments",
    "^orders$",
    "(?i)AUDIT",
    "orders(?!-eu)",
    "^[a-z&&[^p]]++$",
    r"(.)\1",
    r"\.one|_\d",
    "e{2}|no such topic",
    "[",
    "a**",
)
SECONDS = 600  # a guard


def main() -> None:
    """Run all cases and print what both formats return."""
    jars, folder, bootstrap, log_dir, first, count = sys.argv[1:]
    settings = {"spark.jars": jars, "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    settings["spark.driver.extraJavaOptions"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = session("differential", master="local[2]", config=settings)
    spark.sparkContext.setLogLevel("OFF")
    jvm: Any = spark._jvm
    names: set[str] = set()
    for kind in ("consumer.Consumer", "producer.Producer", "admin.AdminClient"):
        package, _, name = kind.partition(".")
        configs = getattr(getattr(jvm.org.apache.kafka.clients, package), f"{name}Config")
        names |= set(configs.configNames())
    say({"names": sorted(names)})
    for seed in range(int(first), int(first) + int(count)):
        options = case(random.Random(seed))
        formats = {"kafka": read(spark, "kafka", bootstrap, options), "ottla": read(spark, "ottla", bootstrap, options)}
        if "subscribePattern" not in options or "Audit" not in options["subscribePattern"]:
            formats["ottla-log"] = read(spark, "ottla-log", log_dir, options)
        say({"seed": seed, "options": options, "formats": formats})
    say({"moved": move_checkpoint(spark, bootstrap, folder)})
    spark.stop()


def say(response: dict[str, Any]) -> None:
    """Print one line of JSON."""
    print("CASE " + json.dumps(response), flush=True)


def case(choice: random.Random) -> dict[str, str]:
    """Return the options of a seeded batch read."""
    options = {"failOnDataLoss": choice.choice(["true", "false", "false"])}
    kind = choice.choice(["subscribe", "assign", "subscribePattern"])
    topics = choice.sample(sorted(TOPICS), choice.choice([1, 1, 2]))
    partitions = {topic: list(range(TOPICS[topic])) for topic in topics}
    if kind == "subscribe":
        options["subscribe"] = ",".join(topics)
    elif kind == "assign":
        partitions = {topic: numbers[: choice.randint(1, len(numbers))] for topic, numbers in partitions.items()}
        options["assign"] = json.dumps(partitions)
    else:
        options["subscribePattern"] = choice.choice(PATTERNS)
    for side, word, wrong in (("starting", "earliest", "latest"), ("ending", "latest", "earliest")):
        given = choice.choice(["none", "word", "offsets", "offsets", "timestamp", "by timestamp", "two"])
        if given == "word":
            options[f"{side}Offsets"] = choice.choice([word, word, word, wrong])
        if given in ("offsets", "two"):
            last = -2 if side == "starting" else -1
            bounds = {
                topic: {str(n): choice.choice([last, *range(0, RECORDS + 8, 3)]) for n in numbers}
                for topic, numbers in partitions.items()
            }
            if choice.random() < 0.1:
                bounds.popitem()
            options[f"{side}Offsets"] = json.dumps(bounds)
        if given in ("timestamp", "two"):
            options[f"{side}Timestamp"] = str(START + choice.randrange(-5, RECORDS + 10))
        if given == "by timestamp":
            times = {
                topic: {str(n): START + choice.randrange(-5, RECORDS + 5) for n in numbers}
                for topic, numbers in partitions.items()
            }
            options[f"{side}OffsetsByTimestamp"] = json.dumps(times)
    if choice.random() < 0.5:
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if choice.random() < 0.3:
        options["minPartitions"] = str(choice.randint(1, 9))
    return options


def read(spark: Any, kind: str, where: str, options: dict[str, str]) -> dict[str, Any]:
    """Return the rows of a read, or why it fails."""
    reader = spark.read.format(kind).options(**options)
    try:
        if kind == "ottla-log":
            frame = reader.load(where)
        else:
            # The connector waits so long for records behind the end of a log.
            waits = {"kafka.bootstrap.servers": where, "kafkaConsumer.pollTimeoutMs": "1500"}
            frame = reader.options(**waits).load()
        rows = frame.select("topic", "partition", "offset").collect()
    except Exception as error:
        return {"error": reason(error)[:300]}
    return {"rows": sorted([row.topic, row.partition, row.offset] for row in rows)}


def move_checkpoint(spark: Any, bootstrap: str, folder: str) -> dict[str, Any]:
    """Continue one checkpoint with both formats in turn; return how many batches and rows there are."""
    batches = []
    for number, kind in enumerate(("kafka", "ottla", "kafka", "ottla", "kafka")):
        spark.read.format("ottla")  # the formats exist in this session
        more = spark.range(30).selectExpr(
            "'moving' AS topic", f"concat('{number}/', id) AS value", "int(id % 2) AS partition"
        )
        more.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).save()
        query = (
            spark.readStream.format(kind)
            .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": "moving", "startingOffsets": "earliest"})
            .option("maxOffsetsPerTrigger", 16)
            .load()
            .selectExpr("cast(value AS string) AS value")
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/moved")
        )
        if not query.awaitTermination(SECONDS):
            raise TimeoutError(f"the stream has not ended after {SECONDS} s: {query.lastProgress}")
        batches.append(len(query.recentProgress))
    moved = [row.value for row in spark.read.parquet(f"{folder}/moved").collect()]
    return {"batches": batches, "rows": len(moved), "distinct": len(set(moved))}


if __name__ == "__main__":
    main()
