"""ottla's sources inside a real Spark session: schemas, SQL, streams, and errors as a user sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer

from ottla.client.client import Client
from ottla.client.groups import committed
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

KAFKA = str(Path(__file__).resolve().parents[2] / "fixtures" / "kafka" / "4.3.1" / "data")
START = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    path = str(tmp_path_factory.mktemp("cluster"))
    with Cluster(topics=["orders:2"], data_dir=path, configs={"log.retention.ms": "-1"}) as running:
        produce(running, range(1000))
        yield running, path


def produce(cluster: Cluster, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number in numbers:
        producer.produce(
            "orders",
            key=f"k{number % 7}",
            value=str(number),
            partition=number % 2,
            timestamp=START + number * 1000,
            headers=[("n", b"x")],
        )
    assert producer.flush(60) == 0


def test_directory_is_read_as_table(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    frame = spark.read.format("ottla-log").option("includeHeaders", "true").load(cluster[1])
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    frame.createOrReplaceTempView("orders_log")
    totals = spark.sql(
        "SELECT partition, count(*) AS n, sum(cast(cast(value AS string) AS int)) AS total, max(timestamp) AS latest, "
        "min(headers[0].key) AS header FROM orders_log WHERE topic = 'orders' GROUP BY partition ORDER BY partition"
    ).collect()
    assert [(row.partition, row.n, row.total, row.header) for row in totals] == [
        (0, 500, sum(range(0, 1000, 2)), "n"),
        (1, 500, sum(range(1, 1000, 2)), "n"),
    ]


def test_view_is_created_by_sql(spark: SparkSession) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW kafka_log USING `ottla-log` OPTIONS (path '{KAFKA}', subscribe 'orders')"
    )
    assert spark.sql("SELECT count(*) AS n FROM kafka_log").collect()[0].n == 9


def test_workers_read_through_fsspec(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    pytest.importorskip("fsspec")
    frame = spark.read.format("ottla-log").option("subscribe", "orders").load(f"local://{cluster[1]}")
    assert frame.count() == 1000


def test_batch_reads_over_network(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    frame = (
        spark.read.format("ottla")
        .option("kafka.bootstrap.servers", cluster[0].bootstrap)
        .option("subscribe", "orders")
        .option("minPartitions", 4)
        .load()
    )
    assert frame.rdd.getNumPartitions() == 4
    row = frame.selectExpr("count(*) AS n", "count(DISTINCT key) AS keys", "max(offset) AS last").collect()[0]
    assert (row.n, row.keys, row.last) == (1000, 7, 499)


def test_restarted_stream_reads_rows_once_and_commits_to_group(
    spark: SparkSession, cluster: tuple[Cluster, str], tmp_path: Path
) -> None:
    running = cluster[0]
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", running.bootstrap)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 600)
            .option("groupId", "to-parquet")
            .load()
        )
        query = (
            stream.selectExpr("cast(cast(value AS string) AS int) AS n")
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out)
        )
        assert query.awaitTermination(600)
        assert query.exception() is None

    run()
    assert spark.read.parquet(out).count() == 1000
    with Client(running.bootstrap) as client:
        assert committed(client, "to-parquet") == {("orders", 0): 500, ("orders", 1): 500}
    produce(running, range(1000, 1200))
    run()
    numbers = sorted(row.n for row in spark.read.parquet(out).collect())
    assert numbers == list(range(1200))


def test_invalid_options_fail_at_load_with_valid_values(spark: SparkSession, cluster: tuple[Cluster, str]) -> None:
    with pytest.raises(Exception, match=r"ottla-log has no option startingoffset; did you mean startingOffsets\?"):
        spark.read.format("ottla-log").option("startingOffset", "earliest").load(KAFKA)
    source = spark.read.format("ottla").option("kafka.bootstrap.servers", cluster[0].bootstrap)
    with pytest.raises(Exception, match="there is no topic missing; there are orders"):
        source.option("subscribe", "missing").load()
    with pytest.raises(Exception, match=r"no broker answers at 127\.0\.0\.1:1 \(kafka\.bootstrap\.servers\)"):
        spark.readStream.format("ottla").options(
            **{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
        ).load()
