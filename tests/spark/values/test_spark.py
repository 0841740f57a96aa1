"""Typed columns in Spark itself: queries, streams over an evolving schema, the sink, and exports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.schemas.framing import frame
from ottla.schemas.registry_client import RegistryClient
from ottla.schemas.types import parse_schema
from ottla.schemas.values import Codec
from ottla.spark.export.job import ExportPlan, export
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

FIELDS = [{"name": "id", "type": "long"}, {"name": "amount", "type": "double"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
NOTED = {**ORDER, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    topics = ["orders", "evolving", "copies", "exported"]
    with Cluster(registry=True, topics=topics) as running:
        yield running


def send(cluster: Cluster, topic: str, schema: dict[str, Any], *values: Any) -> None:
    """Register a schema and write values with it; bytes are written as they are."""
    registry = RegistryClient(cluster.registry_url)
    schema_id = registry.register(f"{topic}-value", {"schema": json.dumps(schema)})["id"]
    codec = Codec(parse_schema("AVRO", json.dumps(schema)))
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        for value in values:
            producer.send(topic, None, value if isinstance(value, bytes) else frame(schema_id, codec.encode(value)))
        producer.flush()


def orders(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "amount": number / 2, **more} for number in numbers]


def options(cluster: Cluster, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": topic,
        "valueFormat": "avro",
        "schemaRegistryUrl": cluster.registry_url,
        **more,
    }


def test_query_reads_fields_and_skips_unused_value(spark: SparkSession, cluster: Cluster) -> None:
    send(cluster, "orders", ORDER, *orders(1, 2, 3))
    send(cluster, "orders", NOTED, *orders(4, note="last"))
    frame = spark.read.format("ottla").options(**options(cluster, "orders")).load()
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,amount:double,note:string>"
    rows = frame.where("offset > 0 and value.amount > 1").select("value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(3, 1.5, None), (4, 2.0, "last")]
    send(cluster, "orders", NOTED, b"not decodable")
    assert frame.count() == 5
    with pytest.raises(Exception, match="offset 4 cannot be decoded"):
        frame.select("value.id").collect()


def start(frame: DataFrame, folder: Path) -> None:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.option("path", str(folder / "rows")).trigger(availableNow=True).start()
    query.awaitTermination()


def test_stream_stops_at_new_field_and_restart_widens(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    reading = options(cluster, "evolving", schemaEvolution="stop", startingOffsets="earliest")

    def stream() -> DataFrame:
        return spark.readStream.format("ottla").options(**reading).load().select("value.*")

    send(cluster, "evolving", ORDER, *orders(1, 2))
    start(stream(), tmp_path)
    before = stream()
    send(cluster, "evolving", NOTED, *orders(3, note="new"))
    with pytest.raises(Exception, match="new fields note"):
        start(before, tmp_path)
    start(stream(), tmp_path)
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "rows")).orderBy("id").collect()
    assert [(row["id"], row["note"]) for row in rows] == [(1, None), (2, None), (3, "new")]


def test_sink_writes_struct_that_reader_returns(spark: SparkSession, cluster: Cluster) -> None:
    rows = spark.range(3).selectExpr("struct(id, id / 2 as amount, array('a') as tags) as value")
    writing = {"topic": "copies", "registerSchemas": "true"}
    given = options(cluster, "copies")
    del given["subscribe"]
    rows.write.format("ottla").options(**given, **writing).mode("append").save()
    frame = spark.read.format("ottla").options(**options(cluster, "copies")).load()
    copied = [(row.id, row.amount, row.tags) for row in frame.select("value.*").orderBy("id").collect()]
    assert copied == [(0, 0.0, ["a"]), (1, 0.5, ["a"]), (2, 1.0, ["a"])]


def test_export_decodes_by_registry_and_follows_evolution(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    plan = ExportPlan(
        "exported",
        str(tmp_path),
        bootstrap=cluster.bootstrap,
        by="none",
        value="registry",
        registry=cluster.registry_url,
    )
    send(cluster, "exported", ORDER, *orders(1), b"damaged")
    first = export(spark, plan)
    assert (first.rows, first.corrupt) == (2, 1)
    send(cluster, "exported", NOTED, *orders(2, note="x"))
    assert export(spark, plan).rows == 1
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path)).orderBy("offset").collect()
    assert [None if row.value is None else (row.value.id, row.value.note) for row in rows] == [
        (1, None),
        None,
        (2, "x"),
    ]
    assert json.loads(rows[1].corrupt_value)["reason"].startswith("the magic byte is 100")
