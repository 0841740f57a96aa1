"""A driver process for tests that kill drivers: `python -m tests.spark.sink.exactly_once_driver SPEC`.

It resumes the queries of an earlier driver, runs one batch of new queries without a crash, and then runs these with a
crash that kills this process's JVM.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ottla.spark.session import session
from tests.spark.conftest import SETTINGS
from tests.spark.sink.crashing import register_crashing

ROWS = 30
SECONDS = 1800  # a guard


def start(spark: Any, target: dict[str, str], crash: dict[str, str] | None = None, tasks: int = 2) -> Any:
    """Start a query whose rows have other values and other tasks each time a batch runs."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    rows = source.load().selectExpr("cast(value as string) as key", "uuid() as value").repartition(tasks)
    return (
        rows.writeStream.format("ottla-crashing" if crash else "ottla")
        .options(**(crash or {}))
        .option("kafka.bootstrap.servers", target["bootstrap"])
        .option("topic", target["topic"])
        .option("exactlyOnce", "true")
        .option("checkpointLocation", target["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


def finish(queries: list[Any]) -> None:
    for query in queries:
        assert query.awaitTermination(SECONDS), query.lastProgress


def main(spec: dict[str, Any]) -> None:
    spark = session("exactly-once", master=spec["master"], config={**SETTINGS, **spec.get("config", {})})
    spark.sparkContext.setLogLevel("ERROR")
    register_crashing(spark)
    finish([start(spark, target, tasks=3) for target in spec.get("resume", [])])
    for group in spec.get("crashes", []):
        finish([start(spark, target) for target in group["targets"]])
        pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid() if group["driver"] else 0
        running = []
        for number, target in enumerate(group["targets"]):
            partner = group["targets"][1 - number]["flag"] if group["driver"] and len(group["targets"]) == 2 else ""
            crash = {"crash": group["step"], "crash.flag": target["flag"], "crash.batch": "1", "crash.kill": str(pid)}
            running.append(start(spark, target, crash | ({"crash.partner": partner} if partner else {})))
        finish(running)
    spark.stop()
    print("finished", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
