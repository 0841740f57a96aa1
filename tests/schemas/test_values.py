"""Values under schemas: what Confluent's serializers write is read, and the other way round; bad bytes are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from ottla.schemas.framing import FramingError, frame, read_indexes, unframe, write_indexes
from ottla.schemas.registry_client import RegistryClient
from ottla.schemas.types import parse_schema
from ottla.schemas.values import Codec, Decoder, Encoder, ValueMismatchError
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTEXT = SerializationContext("orders", MessageField.VALUE)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "string"}, {"name": "lines", "type": {"type": "array", "items": "int"}}],
    }
)
JSON = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "string"}}, "required": ["id"]})
PROTO = """syntax = "proto3";
message Other { int32 x = 1; }
message Order { string id = 1; repeated int32 lines = 2; message Inner { bool yes = 1; } map<string, int32> m = 3; }
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Cluster(registry=True) as cluster:
        yield cluster.registry_url


def test_avro_of_confluents_serializer_is_read_and_written(url: str) -> None:
    confluent, value = SchemaRegistryClient({"url": url}), {"id": "o-1", "lines": [1, 2]}
    data = AvroSerializer(confluent, AVRO)(value, CONTEXT)
    assert Decoder(RegistryClient(url)).decode(data) == value
    assert Encoder(RegistryClient(url), "orders-value").encode(value) == data
    assert AvroDeserializer(confluent)(data, CONTEXT) == value


def test_json_of_confluents_serializer_is_read_and_written(url: str) -> None:
    confluent, value = SchemaRegistryClient({"url": url}), {"id": "o-1"}
    serializer = JSONSerializer(JSON, confluent, conf={"subject.name.strategy": lambda *_: "orders-json"})
    assert Decoder(RegistryClient(url)).decode(serializer(value, CONTEXT)) == value
    data = Encoder(RegistryClient(url), "orders-json").encode(value)
    assert JSONDeserializer(JSON, schema_registry_client=confluent)(data, CONTEXT) == value


def test_protobuf_of_confluents_serializer_is_read(url: str) -> None:
    confluent = SchemaRegistryClient({"url": url})
    conf = {"use.deprecated.format": False, "subject.name.strategy": lambda *_: "times", "skip.known.types": True}
    data = ProtobufSerializer(Timestamp, confluent, conf=conf)(Timestamp(seconds=5), CONTEXT)
    assert Decoder(RegistryClient(url)).decode(data) == "1970-01-01T00:00:05Z"


def test_protobuf_message_is_found_by_its_indexes() -> None:
    codec = Codec(parse_schema("PROTOBUF", PROTO))
    assert codec.decode(write_indexes((0,)) + b"\x08\x05") == {"x": 5}
    assert codec.decode(write_indexes((1,)) + b"\x0a\x01a\x12\x02\x01\x02") == {"id": "a", "lines": [1, 2]}
    assert codec.decode(write_indexes((1, 0)) + b"\x08\x01") == {"yes": True}
    assert codec.decode(codec.encode({"x": 7})) == {"x": 7}
    with pytest.raises(FramingError, match="no message with the indexes"):
        codec.decode(write_indexes((7,)))


@pytest.mark.parametrize(
    ("type_", "schema", "data"),
    [
        ("AVRO", AVRO, b""),
        ("AVRO", AVRO, b"\xff\xff\xff"),
        ("AVRO", AVRO, b"\x02a\x00rest"),
        ("JSON", JSON, b"{"),
        ("JSON", JSON, b"\xff"),
        ("JSON", JSON, b"[" * 100_000),
        ("PROTOBUF", PROTO, b"\0\xff"),
        ("PROTOBUF", PROTO, b""),
        ("PROTOBUF", PROTO, b"\xff\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_bytes_of_another_schema_are_refused(type_: str, schema: str, data: bytes) -> None:
    with pytest.raises((ValueMismatchError, FramingError)):
        Codec(parse_schema(type_, schema)).decode(data)


@pytest.mark.parametrize(
    ("type_", "schema", "value"),
    [
        ("AVRO", AVRO, {"id": 5, "lines": []}),
        ("AVRO", AVRO, {"id": "a"}),
        ("JSON", JSON, {}),
        ("JSON", JSON, 5),
        ("PROTOBUF", PROTO, {"x": "word"}),
        ("PROTOBUF", PROTO, {"y": 1}),
    ],
)
def test_value_of_another_schema_is_refused(type_: str, schema: str, value: Any) -> None:
    with pytest.raises(ValueMismatchError, match="the schema does not describe the value"):
        Codec(parse_schema(type_, schema)).encode(value)


@given(st.binary(max_size=60))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for type_, schema in (("AVRO", AVRO), ("JSON", JSON), ("PROTOBUF", PROTO)):
        codec = Codec(parse_schema(type_, schema))
        try:
            codec.decode(data)
            unframe(data)
        except (ValueMismatchError, FramingError):
            continue


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5).map(tuple))
def test_message_indexes_survive_a_round_trip(indexes: tuple[int, ...]) -> None:
    assert read_indexes(write_indexes(indexes) + b"rest") == (indexes, b"rest")


def test_schema_is_found_in_prefix_or_header() -> None:
    guid = "50c499a9-68e5-d6b0-c9d8-f2492c8bf3ae"
    header = b"\1" + bytes.fromhex(guid.replace("-", ""))
    assert unframe(frame(7, b"x")) == (7, None, b"x")
    assert unframe(b"x", {"__value_schema_id": header}) == (None, guid, b"x")
    assert unframe(b"x", {"__key_schema_id": b"\0\0\0\0\7"}, is_key=True) == (7, None, b"x")
    for data, headers in ((b"abc", None), (b"{}      ", None), (b"x", {"__value_schema_id": b"?"})):
        with pytest.raises(FramingError):
            unframe(data, headers)
