"""The exactly-once sink in Spark, killed at steps of tasks and of the driver, with plans that are not reproducible.

The tests kill the Python process of a task or of the driver's commit, so that the query fails and restarts from its
checkpoint. tests/interop/test_spark_exactly_once.py kills JVMs and brokers, and has Apache Kafka as the target;
test_sink_crashes.py interrupts every request, without Spark.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import delete_records
from ottla.spark import write_batch
from ottla.spark.options import OptionError
from ottla.spark.sink.bookkeeping import list_queries
from ottla.testing import Cluster
from tests.spark.consume import consume

from .crashing import register_crashing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")
ROWS = 40
PAGE = Path(__file__).parents[3] / "docs" / "exactly-once.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


def rate(spark: SparkSession, tasks: int = 2) -> DataFrame:
    """Return a stream with one more batch of numbers in each run; values and order of rows differ in each attempt."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    frame = source.load().selectExpr("cast(value as string) as key", "uuid() as value")
    return frame if tasks == 2 else frame.repartition(tasks)


def run(frame: DataFrame, cluster: Cluster, topic: str, checkpoint: Path, **crash: str) -> None:
    query = (
        frame.writeStream.format("ottla-crashing" if crash else "ottla")
        .options(**{name.replace("_", "."): value for name, value in crash.items()})
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("topic", topic)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(600)


def keys(cluster: Cluster, topic: str) -> list[int]:
    return sorted(int(seen.key or b"") for seen in consume(cluster.bootstrap, topic))


def batches(checkpoint: Path, log: str) -> list[int]:
    return sorted(int(file.name) for file in (checkpoint / log).iterdir() if file.name.isdigit())


@pytest.mark.parametrize("step", ["after flush", "after decision", "after first end"])
def test_killed_process_writes_each_row_once(spark: SparkSession, cluster: Cluster, tmp_path: Path, step: str) -> None:
    """The batch runs again with three tasks instead of two, and other values."""
    topic = f"died-{step.replace(' ', '-')}"
    cluster.create_topic(topic, 3)
    register_crashing(spark)
    flag, checkpoint = tmp_path / "flag", tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException):
        run(rate(spark), cluster, topic, checkpoint, crash=step, crash_flag=str(flag), crash_batch="0")
    assert flag.exists()
    assert (batches(checkpoint, "offsets"), batches(checkpoint, "commits")) == ([0], [])
    run(rate(spark, 3), cluster, topic, checkpoint)
    done = len(batches(checkpoint, "commits"))
    assert done >= 1
    assert keys(cluster, topic) == list(range(ROWS * done))


@pytest.mark.parametrize(("step", "left"), [("after flush", 20), ("after decision", ROWS)])
def test_input_deleted_before_retry_does_not_stop_query(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, step: str, left: int
) -> None:
    """Half of the input is deleted between a crash and the restart, which also reads it with more tasks."""
    source, topic = f"in-{left}", f"out-{left}"
    cluster.create_topic(source, 2)
    cluster.create_topic(topic, 2)
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        for number in range(ROWS):
            producer.send(source, str(number).encode(), b"v", partition=0)
        producer.flush()
    register_crashing(spark)
    frame = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
    )
    flag, checkpoint = tmp_path / "flag", tmp_path / "checkpoint"
    with pytest.raises(StreamingQueryException):
        run(
            frame.option("minPartitions", "2").load(), cluster, topic, checkpoint,
            crash=step, crash_flag=str(flag), crash_batch="0",
        )  # fmt: skip
    with Client(cluster.bootstrap) as client:
        delete_records(client, source, {0: ROWS - 20})
    run(frame.option("minPartitions", "6").load(), cluster, topic, checkpoint)
    assert keys(cluster, topic) == list(range(ROWS - left, ROWS))


def test_foreach_batch_killed_after_decision_writes_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.spark.sink.commit import BatchCommit

    for topic in ("each", "each-odd"):
        cluster.create_topic(topic, 2)
    options = {"kafka.bootstrap.servers": cluster.bootstrap}
    counts: list[int] = []

    def write(frame: DataFrame, batch: int) -> None:
        counts.append(write_batch(frame, batch, {**options, "topic": "each"}, name="all"))
        write_batch(frame.where("key % 2 = 1"), batch, {**options, "topic": "each-odd"}, name="odd")

    def once(function: Any) -> None:
        query = (
            rate(spark)
            .writeStream.foreachBatch(function)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)

    end = BatchCommit.end

    def fail(self: BatchCommit, client: Any, transactions: Any) -> Any:
        if self.query.endswith("@odd"):
            raise RuntimeError("the driver dies")
        return end(self, client, transactions)

    with monkeypatch.context() as patch:
        patch.setattr(BatchCommit, "end", fail)
        with pytest.raises(StreamingQueryException, match="the driver dies"):
            once(write)
    once(write)
    done = len(batches(tmp_path, "commits"))
    assert counts == [ROWS] * len(counts)
    assert keys(cluster, "each") == list(range(ROWS * done))
    assert keys(cluster, "each-odd") == list(range(1, ROWS * done, 2))
    with Client(cluster.bootstrap) as client:
        queries = [query for query in list_queries(client) if "@" in query]
    assert {query.partition("@")[2] for query in queries} == {"all", "odd"}

    def twice(frame: DataFrame, batch: int) -> None:
        for _ in range(2):
            write_batch(frame, batch, {**options, "topic": "each"})

    with pytest.raises(StreamingQueryException, match="give each frame of a batch its own name="):
        once(twice)


def test_write_batch_outside_a_query_is_refused(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "none"}
    with pytest.raises(OptionError, match="write_batch runs in foreachBatch"):
        write_batch(frame, 0, options)
    with pytest.raises(OptionError, match="name is letters, digits"):
        write_batch(frame, 0, options, name="a/b")


def test_page_snippet_runs(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    for topic in ("orders", "long-orders"):
        cluster.create_topic(topic, 1)
    names = {"spark": spark, "bootstrap": cluster.bootstrap, "folder": str(tmp_path)}
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(snippet, str(PAGE), "exec"), names)
    rows = consume(cluster.bootstrap, "orders")
    assert rows
    assert len(consume(cluster.bootstrap, "long-orders")) == sum(len(row.value or b"") > 5 for row in rows)
