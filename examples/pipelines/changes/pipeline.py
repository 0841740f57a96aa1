"""Change capture: a compacted topic of customers as a table of their current state.

Each batch makes a new version of the table out of the one before it and the batch's last change of each key; a null
value deletes. A version is named by its batch, so a batch that runs again makes the same version again. Readers take
the newest whole version: `current(spark, table)`.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

COLUMNS = "key string, value string, offset bigint"


def versions(table: str) -> list[int]:
    """The versions that are whole, oldest first."""
    root = Path(table)
    versions = [
        int(match[1]) for path in root.glob("version=*/_SUCCESS") if (match := re.search(r"version=(\d+)", str(path)))
    ]
    return sorted(versions)


def current(spark: SparkSession, table: str, before: int | None = None) -> DataFrame:
    """The table as it is, or as it was before a batch."""
    known = [number for number in versions(table) if before is None or number < before]
    if not known:
        return spark.createDataFrame([], COLUMNS)
    return spark.read.schema(COLUMNS).parquet(f"{table}/version={known[-1]}")


def apply_to(table: str) -> Callable[[DataFrame, int], None]:
    """What to do with each batch."""

    def apply(records: DataFrame, batch: int) -> None:
        changes = records.groupBy(f.col("key").cast("string").alias("key")).agg(
            f.max_by(f.col("value").cast("string"), "offset").alias("value"), f.max("offset").alias("offset")
        )
        kept = current(records.sparkSession, table, before=batch).join(changes, "key", "left_anti")
        merged = kept.unionByName(changes.where("value is not null"))
        merged.coalesce(1).write.mode("overwrite").parquet(f"{table}/version={batch}")

    return apply


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    output = Path(os.environ.get("OTTLA_OUTPUT", ".ottla/output")).resolve()
    changes = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", os.environ["OTTLA_BOOTSTRAP"])
        .option("subscribe", "customers")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", os.environ.get("OTTLA_ROWS_PER_BATCH", "100000"))
        .load()
    )
    changes.writeStream.queryName("changes").foreachBatch(apply_to(str(output / "customers"))).start()


if __name__ == "__main__":
    main()
