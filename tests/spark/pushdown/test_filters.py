"""Filters limit the rows read, and a DataFrame reused in another query still returns all its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from pyspark.sql import functions

from ottla.spark.pushdown import rule as pushdown_rule
from ottla.spark.session import register
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

START = 1_700_000_000_000
ROWS = 1000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    path = str(tmp_path_factory.mktemp("cluster"))
    with Cluster(topics=["orders:2", "other:1"], data_dir=path, configs={"log.retention.ms": "-1"}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap, "linger.ms": 5})
        for number in range(ROWS):
            producer.produce("orders", str(number), partition=number % 2, timestamp=START + number * 1000)
        producer.produce("other", "x", partition=0, timestamp=START)
        assert producer.flush(60) == 0
        yield running, path


@pytest.fixture(params=["ottla", "ottla-log"])
def frame(request: pytest.FixtureRequest, spark: SparkSession, cluster: tuple[Cluster, str]) -> DataFrame:
    return load(spark, cluster, request.param)


def load(spark: SparkSession, cluster: tuple[Cluster, str], format_name: str, **options: str) -> DataFrame:
    reader = spark.read.format(format_name).option("subscribe", "orders,other").options(**options)
    if format_name == "ottla":
        return reader.option("kafka.bootstrap.servers", cluster[0].bootstrap).load()
    return reader.option("minPartitions", 3).load(cluster[1])


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def tasks(frame: DataFrame) -> int:
    return int(frame.rdd.getNumPartitions())


def fetched(cluster: Cluster, frame: DataFrame) -> int:
    """Read a frame and return the number of partitions that it fetched."""
    before = len(cluster.requests("Fetch"))
    frame.collect()
    partitions = {
        (topic.topic_id, topic.topic, partition.partition)
        for received in cluster.requests("Fetch")[before:]
        for topic in received.request.topics
        for partition in topic.partitions
    }
    return len(partitions)


def test_pushed_filters_limit_partitions_fetched(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    frame = load(spark, cluster, "ottla")
    assert tasks(frame) == 1, "small partitions share a task"
    assert fetched(cluster[0], frame) == 3
    assert fetched(cluster[0], frame.filter("partition = 1")) == 1
    assert fetched(cluster[0], frame.filter("topic IN ('orders')")) == 2
    assert fetched(cluster[0], frame.filter("topic = 'other' AND offset > 0")) <= 1


def test_pushed_filters_limit_tasks(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    frame = load(spark, cluster, "ottla-log")
    assert tasks(frame) == 3
    assert tasks(frame.filter("partition = 1")) == 1
    assert tasks(frame.filter("topic IN ('orders')")) == 2
    assert tasks(frame.filter("topic = 'other' AND offset > 0")) == 1, "a task with nothing to read"


def test_pushed_filters_limit_rows_read(spark: SparkSession, frame: DataFrame) -> None:
    moment = f"timestamp >= timestamp_millis({START + 990_000})"
    assert numbers(frame.filter(f"{moment} AND topic = 'orders'")) == list(range(990, ROWS))
    frame.createOrReplaceTempView("pushed")
    assert tasks(spark.sql("SELECT offset FROM pushed WHERE partition = 1 AND length(value) > 2")) == 1


def scanned(frame: DataFrame) -> list[set[str]]:
    """Return the columns that each scan of a query reads."""
    leaves = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    outputs = [leaves.apply(at).output() for at in range(leaves.size())]
    return [{output.apply(at).name() for at in range(output.size())} for output in outputs]


def test_only_used_columns_are_read(spark: SparkSession, frame: DataFrame) -> None:
    assert scanned(frame) == [set(frame.columns)]
    assert scanned(frame.groupBy().count()) == [{"partition"}], "one that tells of rows"
    assert scanned(frame.select("value")) == [{"value"}]
    assert scanned(frame.filter("partition = 1 AND length(value) > 1").select("offset")) == [
        {"partition", "value", "offset"}
    ]
    assert scanned(frame.filter("partition = 1")) == [set(frame.columns)]
    assert scanned(frame.filter("length(value) > 1").groupBy("topic").count()) == [{"value", "topic"}]
    left, right = frame.select("offset", "value"), frame.filter("partition = 1").select("offset", "key")
    assert scanned(left.join(right, "offset")) == [{"offset", "value"}, {"offset", "key", "partition"}]


def test_queries_on_some_columns_are_correct(spark: SparkSession, frame: DataFrame) -> None:
    assert frame.count() == ROWS + 1
    assert frame.filter("length(value) = 3").count() == ROWS - 100
    ends = functions.min("offset").alias("least"), functions.max("offset").alias("most")
    by_topic = {row.topic: (row.least, row.most) for row in frame.groupBy("topic").agg(*ends).collect()}
    assert by_topic == {"orders": (0, ROWS // 2 - 1), "other": (0, 0)}
    assert [row.value for row in frame.filter("topic = 'other'").select("value", "key").collect()] == [b"x"]
    assert frame.selectExpr("timestampType AS kind", "upper(topic) AS name").distinct().count() == 2
    assert len(frame.limit(5).select("offset").collect()) == 5
    assert frame.sample(1.0, seed=1).select("key").count() == ROWS + 1
    assert len(frame.collect()) == ROWS + 1, "all columns, after others were asked for"
    frame.createOrReplaceTempView("narrow")
    matching = spark.sql(
        """
        SELECT n.offset FROM narrow n WHERE n.topic = 'orders' AND n.partition = 0
        AND EXISTS (SELECT 1 FROM narrow o WHERE o.topic = 'other' AND o.offset = n.offset)
        """
    ).collect()
    assert [row.offset for row in matching] == [0]


def test_frame_filtered_twice_returns_all_rows(spark: SparkSession, frame: DataFrame) -> None:
    even, odd = frame.filter("topic = 'orders' AND partition = 0"), frame.filter("partition = 1")
    assert numbers(even) == list(range(0, ROWS, 2))
    assert numbers(odd) == list(range(1, ROWS, 2))
    assert frame.count() == ROWS + 1
    assert numbers(even) == list(range(0, ROWS, 2))
    assert numbers(even.union(odd)) == list(range(ROWS))
    assert even.alias("a").join(odd.alias("b"), "offset").count() == ROWS // 2
    assert odd.filter("offset < 3").alias("a").join(frame.alias("b"), "offset").count() == 3 * 2 + 1
    assert numbers(even.filter("offset < 2 OR offset >= 499")) == [0, 2, 998]
    frame.createOrReplaceTempView("reused")
    counts = spark.sql(
        """
        WITH late AS (SELECT * FROM reused WHERE offset >= 495)
        SELECT (SELECT count(*) FROM reused) AS everything, (SELECT count(*) FROM late) AS late,
               (SELECT count(*) FROM late WHERE partition = 1) AS odd,
               (SELECT count(*) FROM reused WHERE offset IN (SELECT offset FROM reused WHERE topic = 'other')) AS zero
        """
    ).collect()[0]
    assert (counts.everything, counts.late, counts.odd, counts.zero) == (ROWS + 1, 10, 5, 3)


def test_cached_frame_keeps_its_rows(frame: DataFrame) -> None:
    odd = frame.filter("partition = 1").cache()
    try:
        assert odd.count() == ROWS // 2
        assert odd.filter("offset < 10").count() == 10
        assert odd.count() == ROWS // 2
        assert frame.filter("offset < 10 AND topic = 'orders'").count() == 20
    finally:
        odd.unpersist()


def test_stream_static_join_reads_all_table_rows_in_every_batch(
    spark: SparkSession, frame: DataFrame, cluster: tuple[Cluster, str], tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", cluster[0].bootstrap)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 600)
        .load()
        .select("value")
    )
    assert frame.filter("partition = 0 AND offset < 5").count() == 6
    query = (
        stream.join(frame.filter("partition = 1").select("value", "offset"), "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(600)
    assert len(query.recentProgress) == 2
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(1, ROWS, 2))


def test_push_down_can_be_disabled(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    whole = load(spark, cluster, "ottla", filterPushdown="false").filter("partition = 1")
    assert fetched(cluster[0], whole) == 3
    assert whole.count() == ROWS // 2


def test_rows_are_correct_when_spark_pushes_filters(spark: SparkSession, frame: DataFrame) -> None:
    spark.conf.set(pushdown_rule.SETTING, "true")
    try:
        assert frame.filter("partition = 1 AND offset < 7").count() == 7
        assert frame.count() == ROWS + 1
    finally:
        spark.conf.unset(pushdown_rule.SETTING)


def test_unsupported_filter_is_not_pushed(frame: DataFrame) -> None:
    """Python's datetime covers years 1 to 9999; Spark's timestamps exceed both."""
    assert frame.filter("timestamp < timestamp'+20000-01-01 00:00:00' AND partition = 1").count() == ROWS // 2
    assert frame.filter("timestamp < timestamp'-0100-01-01 00:00:00'").count() == 0


@pytest.mark.parametrize("source", [None, "public class NarrowScans { public int wrong() { return } }"])
def test_rows_are_correct_without_optimizer_rule(
    spark: SparkSession,
    cluster: tuple[Cluster, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str | None,
) -> None:
    path = tmp_path / "NarrowScans.java"
    if source is not None:
        path.write_text(source)
    monkeypatch.setattr(pushdown_rule, "_SOURCE", path)
    methods = spark._jsparkSession.experimental()
    rules = methods.extraOptimizations()
    replace = methods.__getattr__("extraOptimizations_$eq")
    replace(rules.take(0))
    try:
        register(spark)
        odd = load(spark, cluster, "ottla").filter("partition = 1")
        assert fetched(cluster[0], odd) == 3
        assert odd.count() == ROWS // 2
    finally:
        replace(rules)


def test_optimizer_rule_is_registered_once_per_session(spark: SparkSession) -> None:
    assert pushdown_rule.install(spark)
    rules = spark._jsparkSession.experimental().extraOptimizations()
    assert rules.size() == 1
    fresh = spark.newSession()
    assert fresh._jsparkSession.experimental().extraOptimizations().size() == 0
    assert pushdown_rule.install(fresh)
