"""Parsing of JSON schemas: canonical text, references, bad and hostile input."""

from __future__ import annotations

import json

import pytest

from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.schema import MAX_DEPTH, InvalidSchemaError


def test_canonical_text_has_no_white_space_and_keeps_the_order() -> None:
    assert JsonSchema.parse('{ "type": "object",\n "a": 1 }').canonical() == '{"type":"object","a":1}'
    assert JsonSchema.parse('{"b": 1, "a": 2}').normalized().canonical() == '{"a":2,"b":1}'


def test_reference_to_a_registered_schema_is_followed() -> None:
    schema = JsonSchema.parse(
        '{"type":"object","properties":{"c":{"$ref":"customer.json#/definitions/c"}}}',
        {"customer.json": '{"definitions":{"c":{"type":"string"}}}'},
    )
    assert schema.differences(schema) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("[1]", "an object or a boolean"),
        ('{"type": "strin"}', "'strin' is not valid"),
        ('{"type": "object", "required": "a"}', "is not of type 'array'"),
        ('{"$ref": "#/definitions/missing"}', "leads nowhere"),
        ('{"$ref": "http://127.0.0.1:1/schema.json"}', "neither in the schema nor among its references"),
        ('{"$ref": "file:///etc/passwd"}', "neither in the schema nor among its references"),
        ('{"a":' * (MAX_DEPTH + 5) + "1" + "}" * (MAX_DEPTH + 5), "nests deeper"),
        ("[" * 100_000, "nests deeper"),
        ('{"description": "' + "x" * 1_000_001 + '"}', "larger than"),
    ],
)
def test_bad_schema_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        JsonSchema.parse(text)


def test_reference_to_itself_is_refused() -> None:
    schema = JsonSchema.parse(json.dumps({"$ref": "#"}))
    with pytest.raises(InvalidSchemaError, match="leads to itself"):
        schema.differences(schema)
