"""A Spark job that uses Spark's Kafka connector and ottla's format on the given clusters.

    python spark_connector.py JARS FOLDER NAME=BOOTSTRAP=LOGDIR ...

Prints what it found as one line of JSON. A process of its own, because a JVM takes its jars when it starts.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ottla.spark import session

SECONDS = 1200  # a guard


def main() -> None:
    jars, folder, *clusters = sys.argv[1:]
    settings = {"spark.jars": jars, "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    settings["spark.driver.extraJavaOptions"] = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    spark = session("connector", master="local[2]", config=settings)
    spark.sparkContext.setLogLevel("ERROR")
    result = {}
    for cluster in clusters:
        name, bootstrap, log_dir = cluster.split("=", 2)
        result[name] = exercise(spark, bootstrap, log_dir, f"{folder}/{name}")
    spark.stop()
    print("FOUND " + json.dumps(result))


def exercise(spark: Any, bootstrap: str, log_dir: str, folder: str) -> dict[str, Any]:
    def read(kind: str, topic: str, **options: str) -> Any:
        reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        return reader.options(**options).load()

    theirs, ours = (read(kind, "spark-plain", includeHeaders="true") for kind in ("kafka", "ottla"))
    result: dict[str, Any] = {"schemas": {"kafka": theirs.schema.simpleString(), "ottla": ours.schema.simpleString()}}
    result["rows"] = theirs.count()
    files = spark.read.format("ottla-log").options(subscribe="spark-plain", includeHeaders="true").load(log_dir)
    for name, other in (("ottla", ours), ("ottla-log", files)):
        missing, extra = theirs.exceptAll(other), other.exceptAll(theirs)
        result[f"{name} differs"] = [str(row) for row in missing.limit(2).collect() + extra.limit(2).collect()]
    committed = {"kafka.isolation.level": "read_committed"}
    result["committed"] = {
        kind: sorted(
            row.value.decode() for row in read(kind, "spark-transactions", **committed).select("value").collect()
        )
        for kind in ("kafka", "ottla")
    }
    result["uncommitted"] = {kind: read(kind, "spark-transactions").count() for kind in ("kafka", "ottla")}
    result["streamed"] = stream(spark, bootstrap, folder)
    result["written"] = write(spark, bootstrap, read)
    return result


def stream(spark: Any, bootstrap: str, folder: str) -> dict[str, int]:
    """The topic through the connector's stream, twice with one checkpoint, into the connector's sink."""
    for _ in range(2):
        source = (
            spark.readStream.format("kafka")
            .options(
                **{"kafka.bootstrap.servers": bootstrap, "subscribe": "spark-plain", "startingOffsets": "earliest"}
            )
            .option("maxOffsetsPerTrigger", 300)
            .load()
        )
        query = (
            source.select("key", "value")
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": bootstrap, "topic": "spark-streamed", "checkpointLocation": folder})
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(SECONDS):
            raise TimeoutError(f"the stream has not ended after {SECONDS} s: {query.lastProgress}")
    read = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "spark-streamed")
        .load()
    )
    return {"rows": read.count(), "distinct": read.select("value").distinct().count()}


def write(spark: Any, bootstrap: str, read: Any) -> int:
    """The connector's batch sink, read back by ottla's format."""
    frame = spark.range(200).selectExpr("cast(id AS string) AS key", "concat('written ', id) AS value")
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "topic": "spark-written"}).save()
    return int(read("ottla", "spark-written").selectExpr("count(DISTINCT key, value) AS n").collect()[0].n)


if __name__ == "__main__":
    main()
