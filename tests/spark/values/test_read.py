"""Typed columns from a registry in both sources, without a JVM."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.schemas.framing import frame
from ottla.schemas.registry_client import RegistryClient
from ottla.schemas.types import parse_schema
from ottla.schemas.values import Codec
from ottla.spark.log.source import LogSource
from ottla.spark.network.source import NetworkSource
from ottla.spark.options import OptionError
from ottla.spark.values.decode import SchemaEvolvedError, UndecodableRecordError
from ottla.testing import Cluster
from tests.spark.direct import CaseInsensitive, make_source, plan, rows, table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("spark")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOTED = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JSON_ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
PROTO_ORDER = (
    'syntax = "proto3"; package shop; message Order { int64 id = 1; string customer = 2; repeated int32 n = 3; }'
)


class Topic:
    """A topic with a registry, and the options that read it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.registry = RegistryClient(cluster.registry_url)
        cluster.create_topic(name)
        self.options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": name,
            "schemaRegistryUrl": cluster.registry_url,
            "startingOffsets": "earliest",
        }

    def register(self, schema: Any, kind: str = "AVRO", subject: str | None = None) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        registered = self.registry.register(subject or f"{self.name}-value", {"schema": text, "schemaType": kind})
        schema_id: int = registered["id"]
        return schema_id

    def write(self, schema_id: int, *values: Any) -> None:
        """Write values with a registered schema; bytes and None are written as they are."""
        version = self.registry.schema(schema_id)
        codec = Codec(parse_schema(version.get("schemaType") or "AVRO", version["schema"]))
        with Client(self.cluster.bootstrap) as client:
            producer = Producer(client)
            for value in values:
                plain = value is None or isinstance(value, bytes)
                producer.send(self.name, None, value if plain else frame(schema_id, codec.encode(value)))
            producer.flush()

    def rows(self, **options: str) -> list[dict[str, Any]]:
        return rows(NetworkSource, {**self.options, **options})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(registry=True, data_dir=str(tmp_path_factory.mktemp("values"))) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Topic:
    return Topic(cluster, re.sub("[^a-z0-9]+", "-", request.node.name)[:100])


def order(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": number, "customer": f"c{number}", "at": AT, **fields}


def test_avro_value_becomes_struct(topic: Topic) -> None:
    topic.write(topic.register(ORDER), order(1), None, order(2))
    assert [row["value"] for row in topic.rows(valueFormat="avro")] == [order(1), None, order(2)]


def test_record_of_each_version_is_resolved_to_latest(topic: Topic) -> None:
    old, new = topic.register(ORDER), topic.register(NOTED)
    topic.write(old, order(1))
    topic.write(new, order(2, note="fragile"))
    topic.write(old, order(3))
    expected = [order(1, note=None), order(2, note="fragile"), order(3, note=None)]
    assert [row["value"] for row in topic.rows(valueFormat="avro")] == expected
    assert [row["value"] for row in topic.rows(valueFormat="registry")] == expected


@pytest.mark.parametrize("schema", ["1", "id", "given"])
def test_reader_schema_is_version_id_or_given(topic: Topic, schema: str) -> None:
    old, new = topic.register(ORDER), topic.register(NOTED)
    topic.write(new, order(2, note="fragile"))
    chosen = {"1": "1", "id": f"id:{old}", "given": json.dumps({**ORDER, "fields": ORDER["fields"][:1]})}[schema]
    value = {"id": 2} if schema == "given" else order(2)
    assert [row["value"] for row in topic.rows(valueFormat="avro", valueSchema=chosen)] == [value]


def test_log_directory_has_same_columns(topic: Topic) -> None:
    topic.write(topic.register(NOTED), order(1, note="x"), order(2, note=None))
    directory = str(topic.cluster._data_dir)
    options = {"path": directory, **topic.options, "valueFormat": "avro"}
    del options["kafka.bootstrap.servers"]
    assert table(LogSource, options) == table(NetworkSource, {**topic.options, "valueFormat": "avro"})


def test_key_format_decodes_key(topic: Topic) -> None:
    schema_id = topic.register('"string"', subject=f"{topic.name}-key")
    with Client(topic.cluster.bootstrap) as client:
        producer = Producer(client)
        producer.send(topic.name, frame(schema_id, b"\x04ab"), b"plain")
        producer.flush()
    row = topic.rows(keyFormat="avro")[0]
    assert (row["key"], row["value"]) == ("ab", b"plain")


def test_undecodable_value_fails_with_offset_and_reason(topic: Topic) -> None:
    schema_id = topic.register(ORDER)
    topic.write(schema_id, order(1), frame(schema_id, b"\x02\x50abc"))
    with pytest.raises(UndecodableRecordError, match="offset 1 cannot be decoded: field customer: a length is"):
        topic.rows(valueFormat="avro")


def test_undecodable_value_becomes_null_and_is_reported(topic: Topic, capfd: pytest.CaptureFixture[str]) -> None:
    schema_id = topic.register(ORDER)
    topic.write(schema_id, order(1), b"plain text", order(2), frame(9999, b"x"), b"", order(3))
    values = [row["value"] for row in topic.rows(valueFormat="avro", valueErrors="null")]
    assert values == [order(1), None, order(2), None, None, order(3)]
    assert "offset 1 cannot be decoded: the magic byte is 112" in capfd.readouterr().err


def test_undecodable_value_goes_to_column_with_reason(topic: Topic) -> None:
    schema_id = topic.register(ORDER)
    bad = [b"text", frame(9999, b"x"), frame(schema_id, b"\x02"), frame(schema_id, b"\x02\x02a\x00trailing")]
    topic.write(schema_id, order(1), *bad)
    result = topic.rows(valueFormat="avro", valueErrors="column")
    assert [row["value"] for row in result] == [order(1), None, None, None, None]
    errors = [row["valueError"] for row in result]
    assert errors[0] is None
    assert [error["bytes"] for error in errors[1:]] == bad
    reasons = ["4 bytes are too few", "schema id 9999", "field customer: the data is cut off", "8 bytes follow"]
    for error, reason in zip(errors[1:], reasons, strict=True):
        assert reason in error["reason"]


def test_schema_of_other_type_is_undecodable(topic: Topic) -> None:
    schema_id = topic.register(ORDER)
    other = topic.register(JSON_ORDER, "JSON", subject=f"{topic.name}-other")
    topic.write(schema_id, order(1), frame(other, b"{}"))
    assert (
        "is JSON, the column is read as AVRO"
        in topic.rows(valueFormat="avro", valueErrors="column")[1]["valueError"]["reason"]
    )


def test_schema_id_in_header_is_used(topic: Topic) -> None:
    schema_id = topic.register(ORDER)
    data = Codec(parse_schema("AVRO", json.dumps(ORDER))).encode(order(1))
    with Client(topic.cluster.bootstrap) as client:
        producer = Producer(client)
        producer.send(topic.name, None, data, [("__value_schema_id", b"\0" + schema_id.to_bytes(4, "big"))])
        producer.send(topic.name, None, frame(schema_id, data))
        producer.flush()
    values = [row["value"] for row in topic.rows(valueFormat="avro", schemaIdLocation="header")]
    assert values == [order(1), order(1)]


def test_json_values_become_structs(topic: Topic) -> None:
    schema_id = topic.register(JSON_ORDER, "JSON")
    topic.write(schema_id, {"id": 1, "customer": "a", "tags": ["x", "y"]}, {"id": 2, "more": True})
    expected = [{"id": 1, "customer": "a", "tags": ["x", "y"]}, {"id": 2, "customer": None, "tags": None}]
    assert [row["value"] for row in topic.rows(valueFormat="json-schema")] == expected
    bad = [b'{"id": 3} {"id": 4}', b"", b"  ", b'{"id": "x"}', b'{"id": 1.5}', b"{", b"[" * 5000, b'{\n"id": 5.0}']
    topic.write(schema_id, *[frame(schema_id, data) for data in bad])
    result = topic.rows(valueFormat="json-schema", valueErrors="column")
    last = {"id": 5, "customer": None, "tags": None}
    assert [row["value"] for row in result] == [*expected, *[None] * 7, last]
    assert 'field id is "x", not bigint' in result[5]["valueError"]["reason"]


def test_protobuf_values_become_structs(topic: Topic) -> None:
    schema_id = topic.register(PROTO_ORDER, "PROTOBUF")
    topic.write(schema_id, {"id": "1", "customer": "a", "n": [1, 2]}, {})
    assert [row["value"]["id"] for row in topic.rows(valueFormat="protobuf")] == [1, 0]
    topic.write(schema_id, frame(schema_id, b"\0\x12\x01\xff"))
    with pytest.raises(UndecodableRecordError, match="offset 2 cannot be decoded: not a message"):
        topic.rows(valueFormat="protobuf")
    result = topic.rows(valueFormat="protobuf", valueErrors="column")
    assert [row["value"] for row in result] == [
        {"id": 1, "customer": "a", "n": [1, 2]},
        {"id": 0, "customer": "", "n": []},
        None,
    ]
    assert "not a message shop.Order" in result[2]["valueError"]["reason"]


def stream_rows(topic: Topic, schema: StructType, **options: str) -> list[Any]:
    """Read as a stream whose columns were chosen earlier."""
    from ottla.spark.network.stream import NetworkStreamReader

    source = NetworkSource(CaseInsensitive({**topic.options, **options}))
    reader = source.streamReader(schema)
    assert isinstance(reader, NetworkStreamReader)
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    result = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    reader.stop()
    return result


def evolved(topic: Topic, **options: str) -> tuple[StructType, dict[str, str]]:
    """Begin a read with the first version of a schema; then register the second and write a record with it."""
    source_options = {"valueFormat": "avro", **options}
    topic.write(topic.register(ORDER), order(1))
    _, schema = make_source(NetworkSource, {**topic.options, **source_options})
    topic.write(topic.register(NOTED), order(2, note="fragile"))
    return schema, source_options


def test_stream_reports_new_fields_and_reads_on(topic: Topic, capfd: pytest.CaptureFixture[str]) -> None:
    schema, options = evolved(topic)
    assert [row["value"] for row in stream_rows(topic, schema, **options)] == [order(1), order(2)]
    assert "the new fields note, which the columns of schema id" in capfd.readouterr().err


def test_stream_stops_at_new_fields(topic: Topic) -> None:
    schema, options = evolved(topic, schemaEvolution="stop")
    with pytest.raises(SchemaEvolvedError, match=r"new fields note.*start the query again"):
        stream_rows(topic, schema, **options)
    _, schema = make_source(NetworkSource, {**topic.options, **options})
    restarted = [row["value"] for row in stream_rows(topic, schema, **options)]
    assert restarted == [order(1, note=None), order(2, note="fragile")]


def test_stream_widens_by_column_of_added_fields(topic: Topic) -> None:
    schema, options = evolved(topic, schemaEvolution="widen")
    result = stream_rows(topic, schema, **options)
    assert [row["value"] for row in result] == [order(1), order(2)]
    assert [row["valueAdded"] for row in result] == [None, '{"note": "fragile"}']


def test_schema_is_kept_when_latest_changes_before_read(topic: Topic) -> None:
    schema, options = evolved(topic)
    source = NetworkSource(CaseInsensitive({**topic.options, **options}))
    reader = source.reader(schema)
    result = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [row["value"] for row in result] == [order(1), order(2)]


def test_unused_value_is_not_decoded(topic: Topic) -> None:
    topic.write(topic.register(ORDER), b"not decodable")
    source, schema = make_source(NetworkSource, {**topic.options, "valueFormat": "avro"})
    reader = source.reader(StructType([field for field in schema.fields if field.name == "offset"]))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [batch.to_pylist() for batch in batches] == [[{"offset": 0}]]


RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "xml"}, "valueFormat must be one of avro, json-schema, protobuf, registry"),
        ({"valueFormat": "avro", "valueSubject": "none"}, "no schema of subject none"),
        ({"valueFormat": "avro", "valueSchema": "17"}, "no version 17 of subject"),
        ({"valueFormat": "avro", "valueSchema": "id:x"}, "valueSchema must be latest, a version"),
        ({"valueFormat": "avro", "valueSchema": "id:99999"}, "the registry refuses it"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "valueSchema must be latest, a version"),
        ({"valueFormat": "avro", "valueSchema": json.dumps(RECURSIVE)}, "the record Node contains itself"),
        ({"valueFormat": "protobuf"}, "valueFormat is protobuf, and subject .* has a schema of type AVRO"),
        ({}, "schemaRegistryUrl requires a format"),
        ({"valueErrors": "null"}, "valueErrors requires valueFormat"),
        ({"valueFormat": "avro", "keySubject": "x"}, "keySubject requires keyFormat"),
        ({"valueFormat": "avro", "valueSchema": "1", "schemaEvolution": "stop"}, "requires valueSchema=latest"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://127.0.0.1:9"}, "no schema registry answers"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "ftp://x"}, "schemaRegistryUrl: ftp://x"),
        ({"valueFormat": "avro", "schemaRegistryUser": "x"}, "require each other"),
        ({"valueFormat": "avro", "schemaRegistryCa": "/none"}, "schemaRegistryCa"),
    ],
)
def test_wrong_option_is_refused_at_load(topic: Topic, options: dict[str, str], message: str) -> None:
    topic.register(ORDER)
    with pytest.raises(OptionError, match=message):
        make_source(NetworkSource, {**topic.options, **options})


def test_registry_that_is_gone_fails_read(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.schemas.registry_client import RegistryUnreachableError
    from ottla.spark.values import writers

    topic.write(topic.register(ORDER), order(1))
    monkeypatch.setattr(writers, "_schemas", {})
    monkeypatch.setattr(writers, "ATTEMPTS", 1)
    reader, tasks = plan(NetworkSource, {**topic.options, "valueFormat": "avro"})
    monkeypatch.setattr(RegistryClient, "call", _unreachable)
    with pytest.raises(RegistryUnreachableError):
        [batch for task in tasks for batch in reader.read(task)]


def _unreachable(*_: Any) -> None:
    from ottla.schemas.registry_client import RegistryUnreachableError

    raise RegistryUnreachableError("no schema registry answers")
