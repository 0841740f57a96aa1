"""Template `join`: two streams, joined by key and time."""

from typing import Final

_PIPELINE: Final = '''"""Orders with their payments: a streaming join. A payment counts within an hour of its order."""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ORDER = "order string, customer string, amount double, at timestamp"
PAYMENT = "order string, method string, at timestamp"
WITHIN = "1 hour"


def parse(records: DataFrame, schema: str) -> DataFrame:
    """Return the columns of JSON values; rows that are no JSON are left out."""
    row = f.from_json(f.col("value").cast("string"), schema)
    return records.select(row.alias("row")).where("row.order is not null and row.at is not null").select("row.*")


def paid_orders(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Return each order with its payment. State of both sides is kept for the hour and the lateness, then dropped."""
    ordered = parse(orders, ORDER).withColumnRenamed("at", "ordered").withWatermark("ordered", WITHIN)
    paid = parse(payments, PAYMENT).select(
        f.col("order").alias("paid_order"), "method", f.col("at").alias("paid")
    ).withWatermark("paid", WITHIN)
    match = f.expr(f"order = paid_order and paid >= ordered and paid <= ordered + interval {WITHIN}")
    value = f.to_json(f.struct("order", "customer", "amount", "method"))
    return ordered.join(paid, match).select(f.col("order").alias("key"), value.alias("value"))


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}

    def stream(topic: str) -> DataFrame:
        reader = spark.readStream.format("ottla").options(**brokers).option("subscribe", topic)
        return reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed").load()

    writer = paid_orders(stream("orders"), stream("payments")).writeStream.queryName("paid-orders").format("ottla")
    writer.options(**brokers).option("topic", "paid-orders").option("exactlyOnce", "true").start()


if __name__ == "__main__":
    main()
'''

_TEST: Final = '''"""Run with `ottla pipeline test`: each test has a Spark session and an empty broker."""

import json

from pipeline import paid_orders


def test_payment_within_the_hour_is_joined_and_a_late_one_is_not(spark_kafka):
    spark_kafka.create_topic("orders")
    spark_kafka.create_topic("payments")
    for order, minute in (("o1", 30), ("o2", 75)):
        at = {"order": order, "customer": "ada", "amount": 2.5, "at": "2026-01-15T10:00:00Z"}
        spark_kafka.produce("orders", key=order, value=json.dumps(at))
        paid = {"order": order, "method": "card", "at": f"2026-01-15T{10 + minute // 60}:{minute % 60}:00Z"}
        spark_kafka.produce("payments", key=order, value=json.dumps(paid))
    (row,) = paid_orders(spark_kafka.read("orders"), spark_kafka.read("payments")).collect()
    assert json.loads(row["value"]) == {"order": "o1", "customer": "ada", "amount": 2.5, "method": "card"}
'''

_TOPICS: Final = """orders:3
payments:3
paid-orders:3
"""

FILES: Final = {"pipeline.py": _PIPELINE, "test_pipeline.py": _TEST, "topics.txt": _TOPICS}
