"""The exactly-once sink, killed at each step: after a restart read_committed shows every row once.

The tests kill the Python worker of a task, so that the query fails and restarts from its checkpoint, and delete a file
of Spark's commit log, as if the driver died between its commit and that log. tests/interop/test_spark_exactly_once.py
kills whole drivers and executors, and has Apache Kafka as the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

from ottla.testing import Cluster
from tests.spark.consume import consume

from .crashing import PARTLY, register_crashing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")
ROWS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def rate(spark: SparkSession) -> DataFrame:
    """Return a stream with one more batch of numbers in each run, in two tasks."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    return source.load().selectExpr("cast(value as string) as key", "concat('v', value) as value")


def start(frame: DataFrame, cluster: Cluster, topic: str, checkpoint: Path, **crash: str) -> StreamingQuery:
    return (
        frame.writeStream.format("ottla-crashing" if crash else "ottla")
        .options(**{name.replace("_", "."): value for name, value in crash.items()})
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def run(frame: DataFrame, cluster: Cluster, topic: str, checkpoint: Path, **crash: str) -> None:
    assert start(frame, cluster, topic, checkpoint, **crash).awaitTermination(600)


def keys(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(seen.key or b"") for seen in consume(cluster.bootstrap, topic))


def batches(checkpoint: Path, log: str) -> list[int]:
    return sorted(int(file.name) for file in (checkpoint / log).iterdir() if file.name.isdigit())


@pytest.mark.parametrize("step", ["after first row", "after record", PARTLY])
def test_killed_task_writes_each_row_once(spark: SparkSession, cluster: Cluster, tmp_path: Path, step: str) -> None:
    topic = f"died-{step.replace(' ', '-')}"
    cluster.create_topic(topic, 3)
    register_crashing(spark)
    flag, checkpoint = tmp_path / "flag", tmp_path / "checkpoint"
    crash = {"crash": step, "crash_flag": str(flag), "crash_batch": "0"}
    with pytest.raises(StreamingQueryException):
        run(rate(spark), cluster, topic, checkpoint, **crash)
    assert flag.exists()
    assert (batches(checkpoint, "offsets"), batches(checkpoint, "commits")) == ([0], [])
    run(rate(spark), cluster, topic, checkpoint)
    done = len(batches(checkpoint, "commits"))
    assert done >= 1
    assert keys(cluster, topic) == list(range(ROWS * done))


def test_driver_killed_before_commit_log_writes_each_row_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic("driver", 2)
    checkpoint = tmp_path / "checkpoint"
    run(rate(spark), cluster, "driver", checkpoint)
    last = batches(checkpoint, "commits")[-1]
    for file in (checkpoint / "commits").glob(f"*{last}*"):
        file.unlink()
    run(rate(spark), cluster, "driver", checkpoint)
    done = len(batches(checkpoint, "offsets"))
    assert keys(cluster, "driver") == list(range(ROWS * done))


def test_file_batch_retry_with_other_parallelism_is_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic("files", 2)
    register_crashing(spark)
    source, flag, checkpoint = tmp_path / "source", tmp_path / "flag", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(8):
        (source / f"{number}.txt").write_text("".join(f"{5 * number + line}\n" for line in range(5)))
    frame = spark.readStream.text(str(source)).selectExpr("value as key", "value")
    with pytest.raises(StreamingQueryException):
        run(frame, cluster, "files", checkpoint, crash=PARTLY, crash_flag=str(flag), crash_batch="0")
    assert flag.exists()  # one task has committed; its rows may stand behind the open transaction of the other one
    part = keys(cluster, "files")
    assert len(part) < ROWS
    setting = "spark.sql.leafNodeDefaultParallelism"
    spark.conf.set(setting, "8")
    try:
        with pytest.raises(ValueError, match=f"batch 0 .* for a parallelism of 2, which is 8 now: set {setting} to 2"):
            run(frame, cluster, "files", checkpoint)
        assert keys(cluster, "files") == part
    finally:
        spark.conf.unset(setting)
    run(frame, cluster, "files", checkpoint)
    assert keys(cluster, "files") == list(range(ROWS))


def test_rows_that_change_on_retry_stop_query(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("changed", 1)
    checkpoint = tmp_path / "checkpoint"
    run(rate(spark), cluster, "changed", checkpoint)
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    with pytest.raises(StreamingQueryException, match=r"task \d has 18 rows .* where 20 .* are committed"):
        run(rate(spark).where("key % 20 != 3"), cluster, "changed", checkpoint)
    assert keys(cluster, "changed") == list(range(ROWS))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("uuid() as key", r"uuid\(.*\) is not deterministic"),
        ("cast(rand() as string) as key", r"rand\(.*\) is not deterministic"),
        ("cast(spark_partition_id() as string) as key", "is not deterministic"),
    ],
)
def test_nondeterministic_plan_is_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, expression: str, reason: str
) -> None:
    cluster.create_topic("refused", 1) if "refused" not in cluster.topics() else None
    frame = rate(spark).selectExpr(expression, "value")
    with pytest.raises(ValueError, match=f"exactlyOnce is refused.*{reason}"):
        start(frame, cluster, "refused", tmp_path)
    assert keys(cluster, "refused") == []


def test_limits_samples_and_unrepeatable_sources_are_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    for frame, reason in [
        (rate(spark).limit(3), "Limit: which rows"),
        (rate(spark).sample(0.5), "Sample: which rows"),
        (socket, "the source socket cannot"),
    ]:
        with pytest.raises(ValueError, match=f"exactlyOnce is refused.*{reason}"):
            start(frame, cluster, "refused", tmp_path)


def test_aggregation_is_accepted(spark: SparkSession) -> None:
    from ottla.spark.sink.exactly_once_plan import check_plan

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    check_plan(source.groupBy("value").agg({"timestamp": "first"}).repartition(3))
