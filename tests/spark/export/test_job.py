"""`ottla export`: incremental and restartable runs, decoded values, errors of the command."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from ottla.cli import build
from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import delete_records
from ottla.spark.export.files import ExportError, Files, Journal
from ottla.spark.export.job import ExportPlan, export
from ottla.spark.export.protobuf import protobuf_decoder
from ottla.spark.export.values import SchemaError, _merge
from ottla.spark.reasons import reason
from ottla.testing import Cluster
from tests.markers import markers_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    Command = Callable[..., tuple[int, str]]

pytestmark = pytest.mark.xdist_group("spark")
HOUR = 3_600_000
START = 1_700_000_000_000 // HOUR * HOUR
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "open", "type": {"type": "int", "logicalType": "time-millis"}},
        {
            "name": "first",
            "type": {
                "type": "record",
                "name": "Line",
                "fields": [
                    {"name": "sku", "type": "string"},
                    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                ],
            },
        },
        {"name": "rest", "type": {"type": "array", "items": "Line"}},
    ],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    forever = {"retention.ms": "-1"}
    topics = {"orders": {"partitions": 2, "configs": forever}} | {
        name: {"configs": forever} for name in ("typed", "avro", "json")
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
    markers_written(cluster.bootstrap)


def read_back(folder: Path) -> list[dict[str, Any]]:
    """Read the exported files without Spark."""
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(str(folder), format="parquet", partitioning="hive").to_table().to_pylist()
    return rows


def test_run_appends_new_records_and_killed_run_leaves_nothing(
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


@pytest.fixture
def command(spark: SparkSession, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `ottla export` in this process; keep it from stopping the shared session."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    app = build(["export"])

    def run(topic: str, to: Path, *words: str) -> tuple[int, str]:
        arguments = ["export", topic, "--to", str(to), "-b", cluster.bootstrap, *words]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        return done.exit_code, done.stdout + done.stderr

    return run


def send_values(cluster: Cluster, topic: str, *values: bytes | None) -> None:
    with Client(cluster.bootstrap) as client:
        producer = Producer(client)
        for value in values:
            producer.send(topic, None, value, timestamp=START)
        producer.flush()


def as_avro(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), row)
    return written.getvalue()


def test_unwritable_target_fails_with_reason(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cluster.create_topic("unwritable", 1)
    send_values(cluster, "unwritable", b"x")
    code, output = command("unwritable", tmp_path / "file" / "lake")
    assert code == 1
    assert output.startswith(f"ottla: export of unwritable to {tmp_path}/file/lake failed: ")
    assert "An error occurred while calling" not in output
    assert f"{tmp_path}/file" in output.partition("failed: ")[2]


def test_avro_values_are_decoded_with_schema_file(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    path, out = tmp_path / "order.avsc", tmp_path / "out"
    path.write_text(json.dumps(AVRO))
    at, price = datetime(2027, 1, 15, tzinfo=UTC), Decimal("2.50")
    line = {"sku": "tea", "price": price}
    order = {"id": 7, "note": None, "at": at, "open": time(9, 30), "first": line, "rest": [line]}
    plain = as_avro(AVRO, order)
    registered = b"\0\0\0\0\x05" + plain  # with the id of a schema registry before it
    send_values(cluster, "avro", plain, registered, b"\xff", None)
    arguments = ("--value", "avro", "--schema", str(path), "--by", "none", "--json")
    code, output = command("avro", out, *arguments)
    assert code == 0, output
    assert [json.loads(output)[name] for name in ("rows", "corrupt")] == [4, 1]
    row = {**order, "at": datetime(2027, 1, 15), "open": "09:30:00"}  # Spark's Parquet has times without a zone
    rows = read_back(out)
    assert [exported["value"] for exported in rows] == [row, row, None, None]
    assert [exported["corrupt_value"] is None for exported in rows] == [True, True, False, True]

    # Again: nothing, then what came; a schema may grow, and nothing is written under one that contradicts it.
    assert json.loads(command("avro", out, *arguments)[1])["rows"] == 0
    path.write_text(json.dumps({**AVRO, "fields": [*AVRO["fields"], {"name": "gift", "type": "boolean"}]}))
    send_values(cluster, "avro", as_avro(json.loads(path.read_text()), {**order, "gift": True}))
    assert json.loads(command("avro", out, *arguments)[1])["rows"] == 1
    before = sorted(out.rglob("*"))
    path.write_text(json.dumps({**AVRO, "fields": [{"name": "id", "type": "string"}]}))
    send_values(cluster, "avro", b"\x02a")
    code, output = command("avro", out, *arguments)
    assert (code, output) == (
        1,
        "ottla: field id was bigint in earlier runs and is string now: export to a new folder, with a --schema whose "
        "type holds both\n",
    )
    assert sorted(out.rglob("*")) == before


def test_protobuf_values_are_decoded_with_descriptor_set(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    path, out = tmp_path / "shop.desc", tmp_path / "out"
    path.write_bytes(descriptor_set())
    decode, columns = protobuf_decoder(str(path), "shop.Order")
    assert columns == "struct<`id`: bigint, `items`: array<string>, `limit`: bigint, `more`: string>"
    order = b"\x08\x07\x12\x03tea\x1a\x02\x08\x09" + b"\x22\x0a\x0a\x08\x0a\x01a\x12\x03\x1a\x01b"
    assert decode(order) == {"id": 7, "items": ["tea"], "limit": 9, "more": {"a": "b"}}
    send_values(cluster, "typed", order, b"\xff", b"\x08\x08")
    arguments = ("--value", "protobuf", "--schema", str(path), "--message", "shop.Order", "--by", "none")
    code, output = command("typed", out, *arguments)
    assert code == 0, output
    assert output.startswith("3 rows in 1 files (")
    assert "1 could not be decoded (column corrupt_value)" in output
    assert [row["value"] for row in read_back(out)] == [
        {"id": 7, "items": ["tea"], "limit": 9, "more": '{"a":"b"}'},
        None,
        {"id": 8, "items": [], "limit": None, "more": None},
    ]
    assert command("typed", out, *arguments) == (0, "nothing new in typed\n")


@pytest.mark.parametrize(
    ("words", "content", "problem"),
    [
        (("--value", "avro"), None, "--schema {path}: there is no such file"),
        (("--value", "avro"), b"{", "{path} is no Avro schema: Expecting property name"),
        (
            ("--value", "avro"),
            b'{"type": "record", "name": "x", "fields": 7}',
            "{path} is no Avro schema: 'int' object",
        ),
        (("--value", "avro"), b'["null", "Order"]', "{path} is no Avro schema: it has no type Order"),
        (("--value", "avro"), b'"string"', "{path} is a schema of string; it must be a record"),
        (("--value", "protobuf", "--message", "x"), None, "--schema {path}: there is no such file"),
        (("--value", "protobuf", "--message", "x"), b"message X {}", "{path} is no complete descriptor set ("),
        (
            ("--value", "protobuf", "--message", "shop.No"),
            "described",
            "{path} has no message shop.No; it has shop.Order",
        ),
        (("--value", "json"), b"{}", "{path} is no Spark schema, as JSON or such as `id bigint, name string`: "),
        (("--value", "json"), b"id bigint name", "{path} is no Spark schema, as JSON or such as `id bigint, name"),
        (("--value", "json"), b"bigint", "{path} holds the type bigint, not fields"),
    ],
)
def test_invalid_schema_file_exits_2_and_writes_nothing(
    command: Command, tmp_path: Path, words: tuple[str, ...], content: bytes | str | None, problem: str
) -> None:
    path, out = tmp_path / "schema", tmp_path / "out"
    if content is not None:
        path.write_bytes(descriptor_set() if isinstance(content, str) else content)
    code, output = command("orders", out, "--schema", str(path), *words)
    assert code == 2, output
    assert output.startswith("ottla: " + problem.format(path=path))
    assert output.count("\n") == 1, output
    assert not out.exists()


def test_json_type_change_fails_before_write(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    send_values(cluster, "json", b'{"n": 1}', b'{"n": 2.5}')
    assert command("json", out, "--value", "json")[0] == 0
    before = sorted(out.rglob("*"))
    send_values(cluster, "json", b'{"n": {"of": 3}}')
    code, output = command("json", out, "--value", "json")
    assert code == 1
    assert output.startswith("ottla: field n was double in earlier runs and is struct<of:bigint> now: ")
    assert sorted(out.rglob("*")) == before
    nothing = command("json", tmp_path / "none", "--value", "json", "--from", "latest")
    assert nothing == (
        1,
        "ottla: no value is a JSON object, so there is no schema to find: use --value string, or give --schema\n",
    )
    assert not (tmp_path / "none").exists()


def test_deleted_records_fail_export_unless_allowed(command: Command, cluster: Cluster, tmp_path: Path) -> None:
    cluster.create_topic("short")
    send_values(cluster, "short", b"a")
    assert command("short", tmp_path)[0] == 0
    send_values(cluster, "short", b"b", b"c", b"d")
    with Client(cluster.bootstrap) as client:
        delete_records(client, "short", {0: 3})
    assert command("short", tmp_path) == (
        1,
        "ottla: short-0 begins at offset 3 now and the last run ended at 1: records in between were deleted before "
        "they were exported; --skip-lost continues with what is there\n",
    )
    assert command("short", tmp_path, "--skip-lost")[0] == 0
    assert sorted(row["value"] for row in read_back(tmp_path)) == ["a", "d"]


def test_log_directory_export_reads_partitions_added_since(spark: SparkSession, tmp_path: Path) -> None:
    folder, data = tmp_path / "out", str(tmp_path / "data")
    plan = ExportPlan("grown", str(folder), log_dir=data, by="none")
    with Cluster(topics=["grown:1"], data_dir=data) as cluster:
        send_values(cluster, "grown", b"a")
        assert export(spark, plan).rows == 1
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions("grown", 3)])["grown"].result(60)
        with Client(cluster.bootstrap) as client:
            producer = Producer(client)
            producer.send("grown", None, b"b", partition=2)
            producer.flush()
        assert export(spark, plan).rows == 1
    assert sorted(row["value"] for row in read_back(folder)) == ["a", "b"]


def descriptor_set() -> bytes:
    """Return the output of `protoc --include_imports --descriptor_set_out` for a small message."""
    from google.protobuf import descriptor_pb2, struct_pb2, wrappers_pb2

    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="items", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    imported = []
    for number, name, known in ((3, "limit", wrappers_pb2.Int64Value), (4, "more", struct_pb2.Struct)):
        of = f".{known.DESCRIPTOR.full_name}"
        message.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=of)
        file.dependency.append(known.DESCRIPTOR.file.name)
        imported.append(descriptor_pb2.FileDescriptorProto.FromString(known.DESCRIPTOR.file.serialized_pb))
    return descriptor_pb2.FileDescriptorSet(file=[*imported, file]).SerializeToString()


def test_iceberg_without_runtime_for_spark_version_fails(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"Iceberg has no runtime for Spark 4\.[2-9]"):
        export(spark, ExportPlan("orders", str(tmp_path), bootstrap=cluster.bootstrap, format="iceberg"))


@pytest.mark.parametrize("appended", [False, True])
def test_killed_table_append_is_completed_by_next_run(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended: bool
) -> None:
    """The table accepts the append of a run once, as Delta and Iceberg do."""
    table: dict[int, list[str]] = {}
    killed = [True]

    def append(staged: DataFrame, root: str, partitioned: tuple[str, ...], run: int) -> None:
        if appended or not killed[0]:
            table.setdefault(run, sorted(row["value"] for row in staged.collect()))
        if killed[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr("ottla.spark.export.job.append_to_iceberg", append)
    monkeypatch.setattr("ottla.spark.export.job.check_iceberg", lambda _: None)
    topic = f"killed-{appended}"
    cluster.create_topic(topic)
    plan = ExportPlan(topic, str(tmp_path), bootstrap=cluster.bootstrap, format="iceberg", by="none")
    send_values(cluster, topic, b"a", b"b")
    with pytest.raises(KeyboardInterrupt):
        export(spark, plan)
    send_values(cluster, topic, b"c")
    killed[0] = False
    assert export(spark, plan).rows == 3
    assert table == {1: ["a", "b"], 2: ["c"]}
    assert sorted(path.name for path in (tmp_path / "_ottla_export").glob("[!.]*")) == [
        "00000001.json",
        "00000002.json",
    ]
    assert export(spark, plan).rows == 0


def test_schema_may_gain_columns_but_not_change_types() -> None:
    known = StructType().add("n", "long").add("price", "double").add("tags", "string")
    grown = _merge(known, StructType().add("n", "long").add("price", "long").add("new", "string"), "")
    assert grown.simpleString() == "struct<n:bigint,price:double,tags:string,new:string>"
    with pytest.raises(SchemaError, match="field n was bigint in earlier runs and is string now"):
        _merge(known, StructType().add("n", "string"), "")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"bootstrap": None}, "use one of them"),
        ({"format": "csv"}, "--format must be one of parquet, delta, iceberg, not csv"),
        ({"by": "week"}, "--by must be one of none, date, hour, not week"),
        ({"value": "xml"}, "--value must be one of string, json, binary, avro, protobuf, registry, not xml"),
        ({"value": "avro"}, "--value avro needs --schema"),
        ({"value": "protobuf", "schema_file": __file__}, "needs --message"),
        ({"value": "avro", "schema_file": "x.avsc"}, r"--schema x\.avsc: there is no such file"),
        ({"schema_file": __file__}, "--schema is for values of json, avro or protobuf files, and --value is string"),
        ({"target_bytes": 5}, "--target-size must be at least 64k"),
    ],
)
def test_contradicting_options_fail_before_spark_starts(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(ExportError, match=problem):
        ExportPlan(**{"topic": "t", "target": "d", "bootstrap": "b", **wrong}).check()


def test_error_reason_is_one_sentence() -> None:
    wrapped = RuntimeError(
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n  File x\n"
        "ottla.spark.options.OptionError: no broker answers at a:1\n SQLSTATE: 38000"
    )
    assert reason(wrapped) == "no broker answers at a:1"


def _fields(plan: ExportPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in ExportPlan.__slots__}
