"""The files that `ottla pipeline init` writes: a pipeline that runs, and a test of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.spark.pipeline.folder import PLAIN, SPECS, PipelineError

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN: Final = '''"""Orders in, spending per customer and minute out."""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ORDER = "customer string, amount double, at timestamp"


def spending(records: DataFrame) -> DataFrame:
    """What each customer spent in each minute; orders may come up to ten minutes late."""
    orders = records.select(f.from_json(f.col("value").cast("string"), ORDER).alias("order")).select("order.*")
    minutes = orders.withWatermark("at", "10 minutes").groupBy(f.window("at", "1 minute"), "customer")
    totals = minutes.agg(f.sum("amount").alias("spent"), f.count("*").alias("orders"))
    value = f.to_json(f.struct("customer", f.col("window.start").alias("minute"), "spent", "orders"))
    return totals.select(f.col("customer").alias("key"), value.alias("value"))


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}
    orders = (
        spark.readStream.format("ottla")
        .options(**brokers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    (
        spending(orders)
        .writeStream.queryName("spending")
        .outputMode("append")
        .format("ottla")
        .options(**brokers)
        .option("topic", "spending")
        .option("exactlyOnce", "true")
        .start()
    )


if __name__ == "__main__":
    main()
'''

_PLAIN_TEST: Final = '''"""Run with `ottla pipeline test`: each test has a Spark session and an empty broker."""

import json

from pipeline import spending


def test_orders_of_a_minute_are_added_up(spark_kafka):
    spark_kafka.create_topic("orders", partitions=2)
    for second in range(3):
        order = {"customer": "ada", "amount": 2.5, "at": f"2027-01-15T10:00:0{second}Z"}
        spark_kafka.produce("orders", key="ada", value=json.dumps(order))
    (row,) = spending(spark_kafka.read("orders")).collect()
    assert row["key"] == "ada"
    assert json.loads(row["value"])["spent"] == 7.5
'''

_SPEC: Final = """# A Spark Declarative Pipeline; `ottla pipeline run` registers the formats `ottla` and `ottla-log`.
name: {name}
storage: file://{storage}
database: default
libraries:
  - glob:
      include: transformations/**
"""

_TRANSFORMATIONS: Final = '''"""Orders as a streaming table, and what each customer spent as a materialized view."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Every committed order, once."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", os.environ["OTTLA_BOOTSTRAP"])
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    order = f.from_json(f.col("value").cast("string"), "customer string, amount double")
    return records.select("partition", "offset", order.alias("order")).select("partition", "offset", "order.*")


@dp.materialized_view
def spending() -> DataFrame:
    """What each customer spent."""
    return spark.read.table("orders").groupBy("customer").agg(f.sum("amount").alias("spent"), f.count("*").alias("n"))
'''

_TOPICS: Final = "orders:3\nspending:3\n"


def make_pipeline(folder: Path, *, declarative: bool) -> list[Path]:
    """Write a new pipeline and return its files."""
    if folder.exists() and any(folder.iterdir()):
        raise PipelineError(f"{folder} is not empty; give a new name")
    files = {"topics.txt": _TOPICS}
    if declarative:
        storage = (folder / ".ottla" / "storage").resolve()
        files[SPECS[0]] = _SPEC.format(name=folder.name, storage=storage)
        files["transformations/orders.py"] = _TRANSFORMATIONS
    else:
        files[PLAIN] = _PLAIN
        files["test_pipeline.py"] = _PLAIN_TEST
    made = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        made.append(path)
    return made
