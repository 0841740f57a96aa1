"""The sink of format "ottla": columns, options, errors; batch and streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType, _parse_datatype_string

from ottla.client.partitioner import partition_for_key
from ottla.spark.options import OptionError
from ottla.spark.sink.writer import make_writer
from ottla.testing import Cluster
from tests.spark.consume import consume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["left:2", "right:3", "many:3", "stream:2"]) as running:
        yield running


def write(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    writer = frame.write.format("ottla").option("kafka.bootstrap.servers", cluster.bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.mode("append").save()


def test_columns_set_topic_partition_key_and_headers(spark: SparkSession, cluster: Cluster) -> None:
    rows: list[Any] = [
        ("left", 1, "k", "v1", [("h", b"1"), ("h", None)]),
        ("right", 2, None, "v2", None),
        ("right", None, "some key", None, []),
    ]
    schema = "topic string, partition int, key string, value string, headers array<struct<key:string,value:binary>>"
    write(spark.createDataFrame(rows, schema).repartition(2), cluster, kafka__compression__type="zstd")
    (left,) = consume(cluster.bootstrap, "left")
    assert (left.partition, left.key, left.value) == (1, b"k", b"v1")
    assert left.headers == [("h", b"1"), ("h", None)]
    right = {seen.key: seen for seen in consume(cluster.bootstrap, "right")}
    assert (right[None].partition, right[None].value) == (2, b"v2")
    keyed = right[b"some key"]
    assert (keyed.partition, keyed.value) == (partition_for_key(b"some key", 3), None)


def test_rows_of_many_tasks_are_written_once(spark: SparkSession, cluster: Cluster) -> None:
    frame = spark.range(20_000, numPartitions=4).selectExpr("cast(id as string) as value", "id as ignored")
    write(frame, cluster, topic="many")
    assert sorted(int(seen.value or b"") for seen in consume(cluster.bootstrap, "many")) == list(range(20_000))
    assert all(cluster.records("many", index) for index in range(3))
    assert all(record.producer_id >= 0 for record in cluster.records("many"))


def test_stream_appends_batches(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).option("numPartitions", 2).load()
    for _ in range(2):
        query = (
            source.selectExpr("cast(value as string) as key", "cast(value as string) as value")
            .writeStream.format("ottla")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", "stream")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)
    keys = sorted(int(seen.key or b"") for seen in consume(cluster.bootstrap, "stream"))
    assert keys == list(range(len(keys)))
    assert len(keys) >= 100


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        ("value bigint", {"topic": "left"}, "column value is bigint, a sink takes string or binary"),
        ("key string", {"topic": "left"}, "needs the column value .string or binary.; there are key"),
        ("value string", {}, "no target"),
        ("value string", {"topic": "nowhere"}, "topic nowhere is not on 127.*create it first"),
        ("value string", {"topic": "left", "topc": "left"}, "ottla has no option topc; did you mean topic"),
        ("value string", {"topic": "left", "kafka.acks": "2"}, "kafka.acks must be one of all, -1, 0, 1, not '2'"),
        ("value string", {"topic": "left", "exactlyOnce": "true"}, "exactlyOnce is for writeStream"),
        ("value string", {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "left"}, "no broker answers at 127.*:1 "),
        ("value string", {"kafka.bootstrap.servers": "nonsense:port", "topic": "left"}, "kafka.bootstrap.servers"),
    ],
)
def test_invalid_sink_options_fail_before_first_row(
    spark: SparkSession, cluster: Cluster, schema: str, options: dict[str, str], problem: str
) -> None:
    columns = _parse_datatype_string(schema)
    assert isinstance(columns, StructType)
    with pytest.raises(OptionError, match=problem):
        make_writer({"kafka.bootstrap.servers": cluster.bootstrap, **options}, columns, False)


def test_overwrite_mode_is_refused(cluster: Cluster) -> None:
    columns = StructType().add("value", "string")
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "left"}
    with pytest.raises(OptionError, match="cannot be overwritten"):
        make_writer(options, columns, True)


def test_unsendable_row_fails_job_with_reason(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(Exception, match="left has partitions 0 to 1, not 9"):
        write(spark.range(1).selectExpr("'x' as value", "9 as partition"), cluster, topic="left")
