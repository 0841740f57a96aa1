"""Avro schemas: Java's canonical text, schema resolution with Confluent's messages, bad and hostile input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.avro import AvroSchema
from ottla.schemas.schema import InvalidSchemaError


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def parse(value: Any) -> AvroSchema:
    return AvroSchema.parse(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("string", '"string"'),
        ('{"type": "string"}', '"string"'),
        ('{"type": {"type": "int"}}', '"int"'),
        ('{"logicalType": "date", "type": "int"}', '{"type":"int","logicalType":"date"}'),
        ('{"items": "int", "type": "array"}', '{"type":"array","items":"int"}'),
        (
            '{"fields": [{"type": "int", "name": "a", "order": "ascending"}], "name": "x.y.R", "type": "record"}',
            '{"type":"record","name":"R","namespace":"x.y","fields":[{"name":"a","type":"int"}]}',
        ),
        (
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"enum","name":"E",'
            '"symbols":["A"]}},{"name":"b","type":"n.E"},{"name":"c","type":["null","R"],"default":null}]}',
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"enum","name":"E",'
            '"symbols":["A"]}},{"name":"b","type":"E"},{"name":"c","type":["null","R"],"default":null}]}',
        ),
        (
            '{"type":"fixed","name":"F","size":2,"aliases":["G"],"x":1,"doc":"d"}',
            '{"type":"fixed","name":"F","doc":"d","size":2,"x":1,"aliases":["G"]}',
        ),
    ],
)
def test_canonical_text_is_that_of_avros_java_library(text: str, canonical: str) -> None:
    assert AvroSchema.parse(text).canonical() == canonical
    assert AvroSchema.parse(canonical).canonical() == canonical


def test_referenced_types_are_written_by_name() -> None:
    item = json.dumps(record(field("sku"), name="Item", namespace="shop"))
    order = json.dumps(record(field("item", "shop.Item"), name="Order", namespace="shop"))
    schema = AvroSchema.parse(order, {"shop.Item": item})
    expected = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"item","type":"Item"}]}'
    assert schema.canonical() == expected
    assert '"sku"' in schema.resolved()
    with pytest.raises(InvalidSchemaError, match=r'"shop\.Item" is not a defined name'):
        AvroSchema.parse(order)


def test_normalized_schema_sorts_properties() -> None:
    first = AvroSchema.parse('{"type":"int","b":1,"a":2}').normalized()
    assert first.canonical() == '{"type":"int","a":2,"b":1}'


PAIRS: list[tuple[Any, Any, list[str]]] = [
    ("int", "int", []),
    ("int", "long", []),
    ("long", "int", ["TYPE_MISMATCH /"]),
    ("string", "bytes", []),
    ("float", "double", []),
    ("int", ["null", "int"], []),
    (["null", "int"], "int", ["TYPE_MISMATCH /"]),
    (["null", "int"], ["null", "long"], []),
    (["null", "string"], ["null", "int"], ["MISSING_UNION_BRANCH /1"]),
    ("string", ["null", "int"], ["MISSING_UNION_BRANCH /"]),
    ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, ["TYPE_MISMATCH /items"]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, []),
    (record(field("a")), record(field("a"), field("b")), ["READER_FIELD_MISSING_DEFAULT_VALUE /fields/1"]),
    (record(field("a")), record(field("a"), field("b", default=0)), []),
    (record(field("a"), field("b")), record(field("a")), []),
    (record(field("a")), record(field("b", aliases=["a"])), []),
    (record(field("a")), record(field("a"), name="S"), ["NAME_MISMATCH /name"]),
    (record(field("a")), record(field("a"), name="S", aliases=["R"]), []),
    (record(field("a")), record(field("a", "string")), ["TYPE_MISMATCH /fields/0/type"]),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        ["MISSING_ENUM_SYMBOLS /symbols"],
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
        [],
    ),
    (
        {"type": "fixed", "name": "F", "size": 1},
        {"type": "fixed", "name": "F", "size": 2},
        ["FIXED_SIZE_MISMATCH /size"],
    ),
    (
        record(field("next", ["null", "R"]), field("v", "long")),
        record(field("next", ["null", "R"]), field("v", "int")),
        ["TYPE_MISMATCH /fields/1/type"],
    ),
]


@pytest.mark.parametrize(("writer", "reader", "expected"), PAIRS, ids=[f"{n:02}" for n in range(len(PAIRS))])
def test_reader_resolves_writer(writer: Any, reader: Any, expected: list[str]) -> None:
    messages = parse(reader).differences(parse(writer))
    assert len(messages) == len(expected)
    for message, difference in zip(messages, expected, strict=True):
        kind, path = difference.split()
        assert message.startswith(f"{{errorType:'{kind}'")
        assert f"'{path}'" in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("5", "Schema not yet supported"),
        ("{}", "No type"),
        ('"strin"', "is not a defined name"),
        ('{"type":"record","fields":[]}', "No name in schema"),
        ('{"type":"record","name":"R"}', "Record has no fields"),
        ('{"type":"record","name":"1R","fields":[]}', "Illegal initial character"),
        (json.dumps(record(field("a"), field("a"))), "Duplicate field a"),
        (json.dumps(record(field("a", default="x"))), "Invalid default for field a"),
        (json.dumps(record(field("a", "R"), field("b", record(name="R")))), "Can't redefine: R"),
        ('["int","int"]', "Duplicate in union"),
        ('[["int"]]', "Nested union"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "Duplicate enum symbol"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "not in the enum symbol set"),
        ('{"type":"fixed","name":"F","size":-1}', "Invalid or no size"),
        ('{"type":"array"}', "Array has no items type"),
        ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, "nests deeper"),
        ("[" * 200_000, "nests deeper"),
    ],
)
def test_bad_schema_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        AvroSchema.parse(text)
