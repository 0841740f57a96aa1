"""Orders in Avro, written with a schema registry: typed columns in, typed columns out; undecodable records kept apart.

The registry's URL is in the environment variable OTTLA_REGISTRY. Records of every version of the schema are read as
its latest one; when a newer one adds fields, the query stops, and its next run has them.
"""

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

READING = {"valueFormat": "avro", "valueErrors": "column", "schemaEvolution": "stop"}
WRITING = {"valueFormat": "avro", "registerSchemas": "true"}


def receipts(orders: DataFrame) -> DataFrame:
    """Each order as a receipt: its number, what it costs, and the customer."""
    lines = f.aggregate("value.lines", f.lit(0).cast("bigint"), lambda total, line: total + line.quantity * line.price)
    value = f.struct(f.col("value.id").alias("id"), f.col("value.customer").alias("customer"), lines.alias("total"))
    return orders.where("value is not null").select(f.col("value.id").cast("string").alias("key"), value.alias("value"))


def damaged(orders: DataFrame) -> DataFrame:
    """Records that no schema describes, as they came, with the reason in a header."""
    reason = f.struct(f.lit("reason").alias("key"), f.col("valueError.reason").cast("binary").alias("value"))
    return orders.where("valueError is not null").select(
        f.col("valueError.bytes").alias("value"), f.array(reason).alias("headers")
    )


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}
    registry = {"schemaRegistryUrl": os.environ["OTTLA_REGISTRY"]}
    reader = spark.readStream.format("ottla").options(**brokers, **registry, **READING)
    orders = reader.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    sink = brokers | {"exactlyOnce": "true"}
    written = receipts(orders).writeStream.queryName("receipts").format("ottla").options(**sink, **registry, **WRITING)
    written.option("topic", "receipts").start()
    damaged(orders).writeStream.queryName("damaged").format("ottla").options(**sink).option(
        "topic", "orders-damaged"
    ).start()


if __name__ == "__main__":
    main()
