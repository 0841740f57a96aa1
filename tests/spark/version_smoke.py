"""Smoke test for other pyspark versions: `python -m tests.spark.version_smoke SPEC` prints the results.

Run with that version first on PYTHONPATH; the calling test checks the printed rows and errors.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ottla.spark.export.job import ExportPlan, export
from ottla.spark.reasons import reason
from ottla.spark.session import session
from tests.spark.conftest import SETTINGS

SECONDS = 1800  # a guard
STARTS = 5
SPARKS_LIMIT = "connect back"  # Spark's fixed limit of ten seconds for the start of a stream's Python worker


def stream(spark: Any, spec: dict[str, str], topic: str) -> None:
    """Copy the topic with the exactly-once sink."""
    rows = spark.readStream.format("ottla").option("kafka.bootstrap.servers", spec["bootstrap"])
    rows = rows.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    query = (
        rows.select("key", "value")
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", spec["bootstrap"])
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", f"{spec['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS), query.lastProgress


def streams(spark: Any, spec: dict[str, str], topic: str) -> None:
    """Run `stream`; restart it if Spark times out on a busy machine, which must not duplicate rows."""
    for start in range(1, STARTS + 1):
        try:
            stream(spark, spec, topic)
        except Exception as error:
            if SPARKS_LIMIT not in str(error) or start == STARTS:
                raise
        else:
            break


def main(spec: dict[str, str]) -> None:
    """Read both formats, filter one table twice, write, stream and export."""
    spark = session("versions", master="local[2]", config=SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    results: dict[str, Any] = {"version": spark.version}
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", spec["bootstrap"])
    table = reader.option("subscribe", "orders").load()
    results["network"] = [table.count(), table.filter("offset < 10").count(), table.filter("partition = 1").count()]
    log = spark.read.format("ottla-log").options(subscribe="orders", minPartitions=2).load(spec["log_dir"])
    results["tasks"] = [frame.rdd.getNumPartitions() for frame in (log.filter("partition = 1"), log)]
    results["log"] = log.count()
    sink = table.select("key", "value").write.format("ottla").option("kafka.bootstrap.servers", spec["bootstrap"])
    sink.option("topic", "copied").mode("append").save()
    results["copied"] = reader.option("subscribe", "copied").load().count()
    try:
        streams(spark, spec, "streamed")
        streams(spark, spec, "streamed")
        committed = reader.option("subscribe", "streamed").option("kafka.isolation.level", "read_committed").load()
        results["streamed"] = committed.count()
    except Exception as error:
        results["streamed"] = reason(error)
    plan = ExportPlan("orders", f"{spec['folder']}/parquet", bootstrap=spec["bootstrap"], value="json")
    results["parquet"] = [export(spark, plan).rows, export(spark, plan).rows]
    spark.stop()
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
