"""A backfill reads a range of its topics as a batch and writes complete results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.spark import Expectations
from ottla.spark.pipeline.backfill import BackfillRange, RangeReader, RangeWriter
from ottla.spark.pipeline.folder import PipelineError
from ottla.testing.spark import spark_kafka, spark_kafka_session

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.testing.spark import SparkKafka

__all__ = ["spark_kafka", "spark_kafka_session"]
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("spark")]
MINUTE = 60_000


def reader(kafka: SparkKafka, chosen: BackfillRange) -> RangeReader:
    return RangeReader(kafka.spark, chosen).format("ottla").options(**kafka.options)


def write(frame: Any, chosen: BackfillRange, **options: Any) -> tuple[RangeWriter, dict[str, Any]]:
    status: dict[str, Any] = {"queries": []}
    return RangeWriter(frame, chosen, status, []).queryName("spending").options(**options), status


def test_range_is_read_by_timestamp_and_windows_are_complete(spark_kafka: SparkKafka, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    spark_kafka.create_topic("orders")
    spark_kafka.create_topic("minutes")
    for second in range(0, 600, 20):
        spark_kafka.produce("orders", value="x", timestamp=1_700_000_040_000 + second * 1000)
    chosen = BackfillRange(1_700_000_040_000 + 2 * MINUTE, 1_700_000_040_000 + 5 * MINUTE, files_to=str(tmp_path))
    source = reader(spark_kafka, chosen).option("subscribe", "orders").option("startingOffsets", "latest")
    records = source.option("maxOffsetsPerTrigger", 5).load()
    counts = records.withWatermark("timestamp", "1 hour").groupBy(f.window("timestamp", "1 minute")).count()
    values = counts.select(f.col("count").cast("string").alias("value"))
    writer, status = write(values, chosen, topic="minutes", exactlyOnce="true", **spark_kafka.options)
    query = writer.outputMode("append").trigger(availableNow=True).format("ottla").start()
    assert query.awaitTermination(1) is True
    assert [row["value"] for row in spark_kafka.read("minutes").collect()] == [b"3", b"3", b"3"]
    assert [(entry["name"], entry["total_rows"]) for entry in status["queries"]] == [("spending", 3)]
    files, _ = write(values, chosen)
    files.format("parquet").start(str(tmp_path / "stream"))
    assert spark_kafka.spark.read.parquet(str(tmp_path / "spending")).count() == 3
    batches: list[int] = []
    function, _ = write(values, chosen)
    function.foreachBatch(lambda frame, batch: batches.append(frame.count())).start()
    assert batches == [3]


def test_sources_and_sinks_without_times_are_refused(spark_kafka: SparkKafka) -> None:
    chosen = BackfillRange(0, 1)
    with pytest.raises(PipelineError, match="reads topics by time, and rate has none"):
        RangeReader(spark_kafka.spark, chosen).format("rate").load()
    writer, _ = write(spark_kafka.spark.range(1), chosen)
    with pytest.raises(PipelineError, match=r"query spending writes files, .* --files-to"):
        writer.format("parquet").start("/tmp/never")


def test_only_chosen_queries_are_written(spark_kafka: SparkKafka) -> None:
    writer, status = write(spark_kafka.spark.range(1), BackfillRange(0, 1, queries=["another"]))
    writer.format("memory").start()
    assert status["queries"] == []


def test_expectations_of_a_batch_are_counted(spark_kafka: SparkKafka) -> None:
    checked = Expectations("numbers").expect_or_drop("is even", "id % 2 = 0").check(spark_kafka.spark.range(5))
    assert checked.rows.count() == 3
    assert checked.counts() == {"rows": 5, "is even": 2}
