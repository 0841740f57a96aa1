"""Columns encoded in front of the sink, without a JVM: what was written is read back as the same columns."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ottla.schemas.registry_client import RegistryClient
from ottla.spark.network.source import NetworkSource
from ottla.spark.options import OptionError
from ottla.spark.values.encode import EncodingError
from ottla.testing import Cluster
from tests.spark.direct import CaseInsensitive, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("spark")


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


ROW = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("attributes", pa.map_(pa.string(), pa.int32())),
        ("address", struct(city=pa.string(), zip=pa.int32())),
    ]
)
LONG = struct(id=pa.int64())
VALUE: dict[str, Any] = {
    "id": 7,
    "customer": "ada",
    "amount": 1.5,
    "flag": True,
    "raw": b"\x00\xff",
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "price": Decimal("12.30"),
    "tags": ["a", "b"],
    "attributes": {"x": 1},
    "address": {"city": "Oslo", "zip": 150},
}
EMPTY = dict.fromkeys(VALUE) | {"id": 8}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True) as running:
        yield running


@pytest.fixture
def options(cluster: Cluster, request: pytest.FixtureRequest) -> dict[str, str]:
    topic = re.sub("[^a-z0-9]+", "-", request.node.name)[:100]
    cluster.create_topic(topic)
    return {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": topic,
        "schemaRegistryUrl": cluster.registry_url,
    }


def write(options: dict[str, str], type_: pa.DataType, *values: Any, stream: bool = False) -> None:
    """Write rows of a column value, or of a struct with the columns key and value."""
    fields = list(type_) if "value" in [field.name for field in type_] else [pa.field("value", type_)]
    schema = from_arrow_schema(pa.schema(fields))
    source = NetworkSource(CaseInsensitive(options))
    writer: Any = source.streamWriter(schema, False) if stream else source.writer(schema, False)
    arrow = to_arrow_schema(schema, timezone="UTC")
    names = schema.names
    data = [value if len(names) > 1 else {names[0]: value} for value in values]
    message = writer.write(iter([pa.RecordBatch.from_pylist(data, schema=arrow)]))
    writer.commit([message], 0) if stream else writer.commit([message])


def read(options: dict[str, str], **more: str) -> list[Any]:
    reading = {name: value for name, value in options.items() if name != "topic" and name != "registerSchemas"}
    return [row["value"] for row in rows(NetworkSource, {**reading, "subscribe": options["topic"], **more})]


def with_maps(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: dict(part) if name == "attributes" and part is not None else part for name, part in value.items()}
    return value


@pytest.mark.parametrize("stream", [False, True])
def test_struct_is_registered_and_read_back_as_avro(options: dict[str, str], stream: bool) -> None:
    options |= {"valueFormat": "avro", "registerSchemas": "true"}
    write(options, ROW, VALUE, None, EMPTY, stream=stream)
    assert [with_maps(value) for value in read(options)] == [VALUE, None, EMPTY]


def test_struct_is_registered_and_read_back_as_json(options: dict[str, str]) -> None:
    options |= {"valueFormat": "json-schema", "registerSchemas": "true"}
    write(options, ROW, VALUE, EMPTY)
    text = {"raw": "AP8=", "day": "2026-01-02", "at": "2026-01-02T03:04:05.678000Z", "price": "12.30"}
    assert [with_maps(value) for value in read(options)] == [VALUE | text, EMPTY]


def test_struct_is_registered_and_read_back_as_protobuf(options: dict[str, str]) -> None:
    options |= {"valueFormat": "protobuf", "registerSchemas": "true"}
    write(options, ROW, VALUE, EMPTY)
    text = {"day": "2026-01-02", "price": "12.30"}
    empty = {"tags": [], "attributes": {}}
    assert [with_maps(value) for value in read(options)] == [VALUE | text, EMPTY | empty]


def test_key_and_value_have_own_formats(options: dict[str, str]) -> None:
    options |= {"valueFormat": "avro", "keyFormat": "avro", "registerSchemas": "true"}
    write(
        options,
        pa.struct([pa.field("key", pa.string(), nullable=False), ("value", LONG)]),
        {"key": "k", "value": {"id": 1}},
    )
    reading = {name: value for name, value in options.items() if name not in ("topic", "registerSchemas")}
    row = rows(NetworkSource, {**reading, "subscribe": options["topic"]})[0]
    assert (row["key"], row["value"]) == ("k", {"id": 1})


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": "string", "default": "none"},
        {"name": "ref", "type": ["null", "long", "string"], "default": None},
    ],
}


def test_latest_schema_of_subject_is_used(options: dict[str, str], cluster: Cluster) -> None:
    options |= {"valueFormat": "avro"}
    RegistryClient(cluster.registry_url).register(f"{options['topic']}-value", {"schema": json.dumps(ORDER)})
    write(options, LONG, {"id": 1})
    type_ = struct(id=pa.int64(), ref=struct(member0=pa.int64(), member1=pa.string()))
    write(options, type_, {"id": 2, "ref": {"member1": "x"}})
    assert read(options) == [
        {"id": 1, "note": "none", "ref": None},
        {"id": 2, "note": "none", "ref": {"member0": None, "member1": "x"}},
    ]
    with pytest.raises(OptionError, match="has no field colour"):
        write(options, struct(id=pa.int64(), colour=pa.string()), {"id": 1, "colour": "red"})
    with pytest.raises(EncodingError, match="a row's value cannot be encoded with schema id"):
        write(options, LONG, {"id": None})


@pytest.mark.parametrize(
    ("more", "type_", "message"),
    [
        ({}, LONG, "registerSchemas=true register one"),
        ({"valueSchema": json.dumps(ORDER)}, LONG, "does not have this schema"),
        ({"registerSchemas": "true"}, struct(m=pa.map_(pa.int32(), pa.int32())), "only maps from strings"),
        ({"registerSchemas": "true"}, struct(**{"a b": pa.int32()}), "is no name of a field"),
        ({"registerSchemas": "true"}, struct(a=pa.duration("us")), "cast it"),
        ({"registerSchemas": "true", "keyFormat": "avro"}, LONG, "no column key"),
        ({"schemaRegistryUrl": "http://127.0.0.1:9"}, LONG, "no schema registry"),
    ],
)  # fmt: skip
def test_wrong_encoding_is_refused(
    options: dict[str, str], more: dict[str, str], type_: pa.DataType, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        write({**options, "valueFormat": "avro", **more}, type_)


def test_incompatible_column_is_refused(options: dict[str, str]) -> None:
    options |= {"valueFormat": "avro", "registerSchemas": "true"}
    write(options, LONG, {"id": 1})
    with pytest.raises(OptionError, match=r"the registry refuses the schema for subject .*409"):
        write(options, struct(id=pa.string()), {"id": "x"})
