"""`ottla export`: incremental, restartable, decoded; the functions here, the command once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.spark.export import ExportPlan, export
from ottla.spark.export_files import ExportError, Files, Journal
from ottla.spark.export_values import SchemaError, _merge
from ottla.spark.reasons import reason
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
HOUR = 3_600_000
START = 1_700_000_000_000 // HOUR * HOUR


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    forever = {"retention.ms": "-1"}
    topics = {"orders": {"partitions": 2, "configs": forever}} | {
        each: {"configs": forever} for each in ("typed", "avro")
    }
    with Cluster(topics=topics) as running:
        yield running


def send(cluster: Cluster, topic: str, numbers: Iterable[int], *, commit: bool = True, bad: bool = False) -> None:
    with Client(cluster.bootstrap) as client:
        producer = Producer(client, transactional_id="shop")
        producer.initialize()
        for number in numbers:
            value = b"not json" if bad else json.dumps({"n": number, "name": f"order {number}"}).encode()
            producer.send(topic, b"%d" % number, value, timestamp=START + number % 3 * HOUR)
        producer.flush()
        producer.commit() if commit else producer.abort()


def read_back(folder: Path) -> list[dict[str, Any]]:
    """What a reader sees that knows nothing of Spark."""
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(str(folder), format="parquet", partitioning="hive").to_table().to_pylist()
    return rows


def test_each_run_adds_what_is_new_and_a_killed_run_leaves_nothing(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    plan = ExportPlan("orders", str(tmp_path), bootstrap=cluster.bootstrap, value="json", by="hour")
    send(cluster, "orders", range(60))
    send(cluster, "orders", range(1000, 1020), commit=False)
    first = export(spark, plan)
    assert (first.rows, first.corrupt) == (60, 0)
    assert sorted(row["value"]["n"] for row in read_back(tmp_path)) == list(range(60))
    assert {row["hour"] for row in read_back(tmp_path)} == {0, 1, 2} or len(
        {row["hour"] for row in read_back(tmp_path)}
    ) == 3

    send(cluster, "orders", range(60, 90))
    send(cluster, "orders", [90], bad=True)
    # A run that died after moving its files and before its entry in the journal.
    some = next(tmp_path.glob("date=*/hour=*/export-00000001-*.parquet"))
    (some.parent / "export-00000002-00000.parquet").write_bytes(some.read_bytes())
    (tmp_path / "_ottla_export" / "staging-00000002").mkdir()
    second = export(spark, plan)
    assert (second.run, second.rows, second.corrupt) == (2, 31, 1)
    rows = read_back(tmp_path)
    assert sorted(int(row["key"]) for row in rows) == list(range(91))
    (corrupt,) = [row for row in rows if row["corrupt_value"] is not None]
    assert (corrupt["key"], corrupt["value"], corrupt["corrupt_value"]) == ("90", None, "not json")
    assert not (tmp_path / "_ottla_export" / "staging-00000002").exists()

    third = export(spark, ExportPlan(**{**_fields(plan), "compact": True}))
    assert (third.rows, third.run) == (0, 3)
    assert third.compacted > 0
    assert sorted(int(row["key"]) for row in read_back(tmp_path)) == list(range(91))
    last = Journal(Files(spark, str(tmp_path))).last()
    assert last is not None
    assert last.kind == "compact"

    with pytest.raises(ExportError, match="was begun with --by hour, not date"):
        export(spark, ExportPlan(**{**_fields(plan), "by": "date"}))
    with pytest.raises(ExportError, match="holds an export of topic orders"):
        export(spark, ExportPlan(**{**_fields(plan), "topic": "typed"}))


def test_protobuf_values_by_descriptor_set(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    from ottla.spark.export_protobuf import protobuf_decoder

    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="items", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    described = tmp_path / "shop.desc"
    described.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    decode, schema = protobuf_decoder(str(described), "shop.Order")
    assert schema.simpleString() == "struct<id:bigint,items:array<string>>"
    assert decode(b"\x08\x07\x12\x03tea") == {"id": 7, "items": ["tea"]}
    with pytest.raises(SchemaError, match=r"has no message shop\.Nothing; it has shop\.Order"):
        protobuf_decoder(str(described), "shop.Nothing")

    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        producer.send("typed", None, b"\x08\x07\x12\x03tea", timestamp=START)
        producer.send("typed", None, b"\xff", timestamp=START)
        producer.flush()
    plan = ExportPlan(
        "typed",
        str(tmp_path / "out"),
        bootstrap=cluster.bootstrap,
        value="protobuf",
        by="none",
        schema_file=str(described),
        message="shop.Order",
    )
    result = export(spark, plan)
    assert (result.rows, result.corrupt) == (2, 1)
    assert [row["value"] for row in read_back(tmp_path / "out")] == [{"id": 7, "items": ["tea"]}, None]


def test_avro_values_by_schema_file(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    import io

    from ottla.spark.export_avro import avro_decoder

    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
        ],
    }
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(schema))
    decode, columns = avro_decoder(str(path))
    assert columns.simpleString() == "struct<id:bigint,note:string,at:timestamp,lines:array<map<string,int>>>"
    written = io.BytesIO()
    from datetime import UTC, datetime

    order = {"id": 7, "note": None, "at": datetime(2027, 1, 15, tzinfo=UTC), "lines": [{"tea": 2}]}
    fastavro.schemaless_writer(written, schema, order)
    assert decode(written.getvalue()) == order
    registered = b"\0\0\0\0\x05" + written.getvalue()
    assert decode(registered) == order
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        for value in (written.getvalue(), registered, b"\xff", None):
            producer.send("avro", None, value, timestamp=START)
        producer.flush()
    plan = ExportPlan(
        "avro", str(tmp_path / "out"), bootstrap=cluster.bootstrap, value="avro", by="none", schema_file=str(path)
    )
    result = export(spark, plan)
    assert (result.rows, result.corrupt) == (4, 1)
    values = [row["value"] for row in read_back(tmp_path / "out")]
    row = {**order, "at": datetime(2027, 1, 15), "lines": [[("tea", 2)]]}  # Spark's Parquet has times without a zone
    assert values == [row, row, None, None]
    path.write_text("{")
    with pytest.raises(SchemaError, match="is no Avro schema"):
        avro_decoder(str(path))


def test_iceberg_without_a_runtime_for_this_spark_is_refused_in_one_sentence(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=r"Iceberg has no runtime for Spark 4\.[2-9]"):
        export(spark, ExportPlan("orders", str(tmp_path), bootstrap=cluster.bootstrap, format="iceberg"))


def test_a_schema_may_grow_and_not_change() -> None:
    known = StructType().add("n", "long").add("price", "double").add("tags", "string")
    grown = _merge(known, StructType().add("n", "long").add("price", "long").add("new", "string"), "")
    assert grown.simpleString() == "struct<n:bigint,price:double,tags:string,new:string>"
    with pytest.raises(SchemaError, match="field n was bigint in earlier runs and is string now"):
        _merge(known, StructType().add("n", "string"), "")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"bootstrap": None}, "give one of them"),
        ({"format": "csv"}, "--format is one of parquet, delta, iceberg, not csv"),
        ({"by": "week"}, "--by is one of none, date, hour, not week"),
        ({"value": "xml"}, "--value is one of string, json, binary, avro, protobuf, not xml"),
        ({"value": "avro"}, "--value avro needs --schema"),
        ({"value": "protobuf", "schema_file": __file__}, "needs --message"),
        ({"value": "avro", "schema_file": "x.avsc"}, r"--schema x\.avsc: there is no such file"),
        ({"schema_file": __file__}, "--schema is for values of json, avro or protobuf, and --value is string"),
        ({"target_bytes": 5}, "--target-size is at least 64k"),
    ],
)
def test_what_contradicts_itself_is_said_before_spark_starts(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ExportError, match=problem):
        ExportPlan(**{"topic": "t", "target": "d", "bootstrap": "b", **wrong}).check()


def test_a_reason_is_one_sentence() -> None:
    wrapped = RuntimeError(
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n  File x\n"
        "ottla.spark.options.OptionError: no broker answers at a:1\n SQLSTATE: 38000"
    )
    assert reason(wrapped) == "no broker answers at a:1"


def _fields(plan: ExportPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in ExportPlan.__slots__}
