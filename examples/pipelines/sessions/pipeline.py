"""Clicks and orders of a shop, cut into sessions by user: to a topic, exactly once, and to Parquet.

A session ends after ten minutes without a click. Clicks may come late by half an hour of event time; what is later than
that is left out. A session is written when the watermark has passed its end, so it is written once and is final.

Read the folder with Spark: it goes by the folder's own log, and so leaves out the files of a batch that was killed.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

CLICK = "user string, at bigint, page string, order bigint, amount bigint"
GAP = "10 minutes"
LATE = "30 minutes"


def sessions(records: DataFrame) -> DataFrame:
    """One row per session."""
    click = f.from_json(f.col("value").cast("string"), CLICK)
    clicks = records.select(click.alias("click")).select(
        "click.user", f.timestamp_millis("click.at").alias("at"), "click.order", "click.amount"
    )
    return (
        clicks.where("user is not null")
        .withWatermark("at", LATE)
        .groupBy(f.session_window("at", GAP).alias("session"), "user")
        .agg(
            f.count("*").alias("clicks"),
            f.count("order").alias("orders"),
            f.coalesce(f.sum("amount"), f.lit(0)).alias("spent"),
        )
        .select(
            "user",
            f.col("session.start").alias("start"),
            f.col("session.end").alias("end"),
            "clicks",
            "orders",
            "spent",
        )
    )


def as_records(rows: DataFrame) -> DataFrame:
    """Sessions as JSON, by user."""
    value = f.to_json(
        f.struct(
            "user",
            f.unix_millis("start").alias("start"),
            f.unix_millis("end").alias("end"),
            "clicks",
            "orders",
            "spent",
        )
    )
    return rows.select(f.col("user").alias("key"), value.alias("value"))


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    brokers = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP"]}
    output = Path(os.environ.get("OTTLA_OUTPUT", ".ottla/output")).resolve()
    clicks = (
        spark.readStream.format("ottla")
        .options(**brokers)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .option("maxOffsetsPerTrigger", os.environ.get("OTTLA_ROWS_PER_BATCH", "100000"))
        .load()
    )
    (
        as_records(sessions(clicks))
        .writeStream.queryName("sessions-to-topic")
        .format("ottla")
        .options(**brokers)
        .option("topic", "sessions")
        .option("exactlyOnce", "true")
        .start()
    )
    (
        sessions(clicks)
        .writeStream.queryName("sessions-to-parquet")
        .format("parquet")
        .option("path", str(output / "sessions"))
        .start()
    )


if __name__ == "__main__":
    main()
