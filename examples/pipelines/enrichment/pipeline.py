"""Orders with their payments (stream and stream) and customers (stream and table); bad rows to a dead-letter topic.

One query writes both topics, so both are exactly once. A row that is no order keeps its bytes and gets headers that say
why it is dead and where it came from.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

ORDER = "order string, customer string, amount bigint, at bigint"
PAYMENT = "order string, method string, at bigint"
WITHIN = "1 hour"


def parse(records: DataFrame, schema: str) -> DataFrame:
    """Values as columns of `row`, null where a value is none of them; the record stays beside it."""
    return records.withColumn("row", f.from_json(f.col("value").cast("string"), schema))


def is_order() -> "f.Column":
    """What a row needs to be an order."""
    return f.expr("row.order is not null and row.customer is not null and row.at is not null and row.amount > 0")


def paid_orders(orders: DataFrame, payments: DataFrame, customers: DataFrame) -> DataFrame:
    """Orders with a payment within the hour, and the customer's name where there is one."""
    order = orders.where(is_order()).select(
        f.col("row.order").alias("order"),
        f.col("row.customer").alias("customer"),
        f.col("row.amount").alias("amount"),
        f.timestamp_millis("row.at").alias("ordered"),
    )
    payment = payments.where("row.order is not null and row.at is not null").select(
        f.col("row.order").alias("paid_order"),
        f.col("row.method").alias("method"),
        f.timestamp_millis("row.at").alias("paid"),
    )
    same = f.expr(f"order = paid_order and paid >= ordered and paid <= ordered + interval {WITHIN}")
    joined = order.withWatermark("ordered", WITHIN).join(payment.withWatermark("paid", WITHIN), same)
    named = joined.join(f.broadcast(customers), "customer", "left")
    value = f.to_json(f.struct("order", "customer", "name", "amount", "method"))
    return named.select(
        f.lit("orders-paid").alias("topic"),
        f.col("order").cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        f.lit(None).cast(HEADERS).alias("headers"),
    )


HEADERS = "array<struct<key:string,value:binary>>"


def dead_orders(orders: DataFrame) -> DataFrame:
    """Rows that are no orders, as they came, with the reason."""
    reason = f.when(f.col("row.order").isNull(), "not JSON, or without an order").otherwise(
        "customer, amount or time is wrong"
    )
    position = f.concat_ws("-", "topic", "partition", "offset")
    headers = f.array(
        f.struct(f.lit("reason").alias("key"), reason.cast("binary").alias("value")),
        f.struct(f.lit("source").alias("key"), position.cast("binary").alias("value")),
    )
    return orders.where(~f.coalesce(is_order(), f.lit(False))).select(
        f.lit("orders-dead").alias("topic"), "key", "value", headers.cast(HEADERS).alias("headers")
    )


def current_customers(records: DataFrame) -> DataFrame:
    """The customers' topic as a table: the last record of each key."""
    last = records.groupBy(f.col("key").cast("string").alias("customer")).agg(
        f.max_by("value", "offset").alias("value")
    )
    name = f.from_json(f.col("value").cast("string"), "name string").getField("name")
    return last.where("value is not null").select("customer", name.alias("name"))


def enriched(orders: DataFrame, payments: DataFrame, customers: DataFrame) -> DataFrame:
    """All that is written, each row with its topic."""
    orders = parse(orders, ORDER)
    good = paid_orders(orders, parse(payments, PAYMENT), current_customers(customers))
    return good.unionByName(dead_orders(orders))


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}

    def stream(topic: str) -> DataFrame:
        reader = spark.readStream.format("ottla").options(**brokers).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
        return reader.option("maxOffsetsPerTrigger", os.environ.get("OTTLA_ROWS_PER_BATCH", "100000")).load()

    customers = spark.read.format("ottla").options(**brokers).option("subscribe", "customers").load()
    (
        enriched(stream("orders"), stream("payments"), customers)
        .writeStream.queryName("enrichment")
        .format("ottla")
        .options(**brokers)
        .option("exactlyOnce", "true")
        .start()
    )


if __name__ == "__main__":
    main()
