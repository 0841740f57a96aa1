"""Template `python`: a stream of orders with expectations, dead letters and totals of windows."""

from typing import Final

_PIPELINE: Final = '''"""Orders in, spending per customer and minute out; invalid orders go to a dead-letter topic."""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark import Expectations

ORDER = "customer string, amount double, at timestamp"
VALID_ORDERS = (
    Expectations("orders")
    .expect("is not from the future", "order.at < current_timestamp() + interval 1 day")
    .expect_or_dead_letter("has customer and time", "order.customer is not null and order.at is not null")
    .expect_or_dead_letter("has an amount", "order.amount > 0")
)


def spending(records: DataFrame) -> DataFrame:
    """Return what each customer spent in each minute, and dead letters; orders may come up to ten minutes late."""
    parsed = records.withColumn("order", f.from_json(f.col("value").cast("string"), ORDER))
    checked = VALID_ORDERS.check(parsed, dead_letters="orders-dead")
    orders = checked.rows.select("order.*")
    minutes = orders.withWatermark("at", "10 minutes").groupBy(f.window("at", "1 minute"), "customer")
    totals = minutes.agg(f.sum("amount").alias("spent"), f.count("*").alias("orders"))
    value = f.to_json(f.struct("customer", f.col("window.start").alias("minute"), "spent", "orders"))
    return checked.with_dead_letters(totals.select(f.col("customer").alias("key"), value.alias("value")), "spending")


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}
    orders = (
        spark.readStream.format("ottla")
        .options(**brokers)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    (
        spending(orders)
        .writeStream.queryName("spending")
        .outputMode("append")
        .format("ottla")
        .options(**brokers)
        .option("exactlyOnce", "true")
        .start()
    )


if __name__ == "__main__":
    main()
'''

_TEST: Final = '''"""Run with `ottla pipeline test`: each test has a Spark session and an empty broker."""

import json

from pipeline import spending


def test_orders_of_a_minute_are_added_up(spark_kafka):
    spark_kafka.create_topic("orders", partitions=2)
    for second in range(3):
        order = {"customer": "ada", "amount": 2.5, "at": f"2026-01-15T10:00:0{second}Z"}
        spark_kafka.produce("orders", key="ada", value=json.dumps(order))
    (row,) = spending(spark_kafka.read("orders")).collect()
    assert row["topic"] == "spending"
    assert bytes(row["key"]) == b"ada"
    assert json.loads(bytes(row["value"]))["spent"] == 7.5


def test_wrong_order_becomes_a_dead_letter(spark_kafka):
    spark_kafka.create_topic("orders")
    spark_kafka.produce("orders", value="not JSON")
    (row,) = spending(spark_kafka.read("orders")).collect()
    assert (row["topic"], bytes(row["value"])) == ("orders-dead", b"not JSON")
    headers = {header["key"]: bytes(header["value"]).decode() for header in row["headers"]}
    assert headers["__connect.errors.offset"] == "0"
    assert "has an amount" in headers["__connect.errors.exception.message"]
'''

_TOPICS: Final = """orders:3
spending:3
orders-dead:1
"""

FILES: Final = {"pipeline.py": _PIPELINE, "test_pipeline.py": _TEST, "topics.txt": _TOPICS}
