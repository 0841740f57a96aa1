"""Differences between JSON schemas, with the verdicts of Confluent Schema Registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.json_changes import LENIENT, STRICT
from ottla.schemas.json_difference import compare
from ottla.schemas.json_schema import JsonSchema

S, I, N = {"type": "string"}, {"type": "integer"}, {"type": "number"}  # noqa: E741


def obj(properties: dict[str, Any] | None = None, **keywords: Any) -> dict[str, Any]:
    return {"type": "object", **({"properties": properties} if properties is not None else {}), **keywords}


def closed(properties: dict[str, Any], **keywords: Any) -> dict[str, Any]:
    return obj(properties, additionalProperties=False, **keywords)


PAIRS: list[tuple[Any, Any, list[str]]] = [
    (S, S, []),
    (S, N, ["TYPE_CHANGED #/"]),
    (S, True, []),
    (False, S, []),
    (I, N, ["TYPE_EXTENDED #/"]),
    (N, I, ["TYPE_NARROWED #/"]),
    ({**S, "title": "a"}, {**S, "title": "b", "description": "c"}, ["DESCRIPTION_CHANGED #/", "TITLE_CHANGED #/"]),
    ({**S, "maxLength": 3}, {**S, "maxLength": 5}, ["MAX_LENGTH_INCREASED #/maxLength"]),
    ({**S, "maxLength": 3}, {**S, "maxLength": 2}, ["MAX_LENGTH_DECREASED #/maxLength"]),
    (S, {**S, "maxLength": 2}, ["MAX_LENGTH_ADDED #/maxLength"]),
    ({**S, "minLength": 3}, {**S, "minLength": 5}, ["MIN_LENGTH_INCREASED #/minLength"]),
    ({**S, "minLength": 3}, S, ["MIN_LENGTH_REMOVED #/minLength"]),
    ({**S, "pattern": "a"}, {**S, "pattern": "b"}, ["PATTERN_CHANGED #/pattern"]),
    (S, {**S, "pattern": "b"}, ["PATTERN_ADDED #/pattern"]),
    ({**N, "maximum": 1}, {**N, "maximum": 2.5}, ["MAXIMUM_INCREASED #/maximum"]),
    ({**N, "minimum": 1}, {**N, "minimum": 2}, ["MINIMUM_INCREASED #/minimum"]),
    ({**N, "exclusiveMinimum": 1}, N, ["EXCLUSIVE_MINIMUM_REMOVED #/exclusiveMinimum"]),
    ({**N, "multipleOf": 6}, {**N, "multipleOf": 3}, ["MULTIPLE_OF_REDUCED #/multipleOf"]),
    ({**N, "multipleOf": 3}, {**N, "multipleOf": 6}, ["MULTIPLE_OF_EXPANDED #/multipleOf"]),
    ({**N, "multipleOf": 3}, {**N, "multipleOf": 4}, ["MULTIPLE_OF_CHANGED #/multipleOf"]),
    ({**N, "multipleOf": 0.5}, {**N, "multipleOf": 0.50}, []),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, ["ENUM_ARRAY_EXTENDED #/enum"]),
    ({"enum": ["a", "b"]}, {"enum": ["b"]}, ["ENUM_ARRAY_NARROWED #/enum"]),
    ({"enum": ["a", "b"]}, {"enum": ["b", "c"]}, ["ENUM_ARRAY_CHANGED #/enum"]),
    ({"const": 1}, {"const": 2}, ["ENUM_ARRAY_CHANGED #/const"]),
    (closed({"a": S}), closed({"a": S, "b": S}), ["OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"]),
    (
        closed({"a": S}),
        closed({"a": S, "b": S}, required=["b"]),
        ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        closed({"a": S}),
        closed({"a": S, "b": {**S, "default": ""}}, required=["b"]),
        ["REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (closed({"a": S}), closed({}), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/a"]),
    (closed({"a": False}), closed({}), ["PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/a"]),
    (obj({"a": S}), obj({}), ["PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/a"]),
    (obj({}), obj({"a": S}), ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a"]),
    (obj({}), obj({"a": {}}), ["PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a"]),
    (obj({}), obj({"a": S}, required=["a"]), ["REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/a"]),
    (
        obj({}, additionalProperties=S),
        obj({"a": S}, additionalProperties=S),
        [
            "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
            "PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a",
        ],
    ),
    (
        obj({}, patternProperties={"^a": N}),
        obj({"a": S}, patternProperties={"^a": N}),
        [
            "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/a",
            "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/a",
            "TYPE_CHANGED #/properties/a",
        ],
    ),
    (obj({"a": S}), obj({"a": S}, required=["a"]), ["REQUIRED_ATTRIBUTE_ADDED #/required/a"]),
    (obj({"a": S}, required=["a"]), obj({"a": S}), ["REQUIRED_ATTRIBUTE_REMOVED #/required/a"]),
    (obj(additionalProperties=False), obj(), ["ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"]),
    (obj(), obj(additionalProperties=False), ["ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"]),
    (obj(), obj(additionalProperties=S), ["ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties"]),
    (obj(additionalProperties=S), obj(), ["ADDITIONAL_PROPERTIES_EXTENDED #/additionalProperties"]),
    (obj(maxProperties=1), obj(maxProperties=2), ["MAX_PROPERTIES_INCREASED #/maxProperties"]),
    (obj(dependencies={"a": ["b"]}), obj(), ["DEPENDENCY_ARRAY_REMOVED #/dependencies/a"]),
    (
        obj(dependencies={"a": ["b"]}),
        obj(dependencies={"a": ["b", "c"]}),
        ["DEPENDENCY_ARRAY_EXTENDED #/dependencies/a"],
    ),
    (obj(), obj(dependencies={"a": S}), ["DEPENDENCY_SCHEMA_ADDED #/dependencies/a"]),
    ({"type": "array", "items": I}, {"type": "array", "items": N}, ["TYPE_EXTENDED #/items"]),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["UNIQUE_ITEMS_ADDED #/uniqueItems"]),
    ({"type": "array", "maxItems": 1}, {"type": "array", "maxItems": 2}, ["MAX_ITEMS_INCREASED #/maxItems"]),
    (
        {"type": "array", "items": [S]},
        {"type": "array", "items": [S, S]},
        ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL #/items/1"],
    ),
    (
        {"type": "array", "items": [S], "additionalItems": False},
        {"type": "array", "items": [S, S], "additionalItems": False},
        ["ITEM_ADDED_TO_CLOSED_CONTENT_MODEL #/items/1"],
    ),
    ({"oneOf": [S]}, {"oneOf": [S, N]}, ["SUM_TYPE_EXTENDED #/"]),
    ({"oneOf": [S, N]}, {"oneOf": [S]}, ["SUM_TYPE_NARROWED #/"]),
    ({"allOf": [S]}, {"allOf": [S, {"minLength": 1}]}, ["PRODUCT_TYPE_EXTENDED #/"]),
    ({"oneOf": [S, N]}, {"anyOf": [S, N]}, ["COMBINED_TYPE_EXTENDED #/"]),
    ({"anyOf": [S, N]}, {"oneOf": [S, N]}, ["COMBINED_TYPE_CHANGED #/"]),
    (S, {"oneOf": [N, S]}, ["SUM_TYPE_EXTENDED #/"]),
    ({"type": ["string", "null"]}, S, ["TYPE_CHANGED #/"]),
    ({"oneOf": [S, N]}, {"oneOf": [S, {"type": "boolean"}]}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED #/"]),
    ({"not": N}, {"not": I}, ["NOT_TYPE_NARROWED #/not"]),
    ({"not": I}, {"not": N}, ["NOT_TYPE_EXTENDED #/not"]),
]


NEW_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"$id": "a"}, {"$id": "b"}, []),
        ({"properties": {}, "maxProperties": 1}, {"properties": {}}, []),
        ({"properties": {}, "minProperties": 1}, {"properties": {}}, []),
        ({"properties": {}, "additionalProperties": False}, {"properties": {}}, []),
        ({"type": "array", "contains": N, "minContains": 1}, {"type": "array", "contains": N}, []),
        (
            {"type": "array", "contains": N},
            {"type": "array", "contains": N, "minContains": 2},
            ["MIN_CONTAINS_INCREASED"],
        ),
        ({"maxProperties": 2}, {"maxProperties": 1}, ["MAX_PROPERTIES_DECREASED"]),
        ({"type": "array", "prefixItems": [S]}, {"type": "array", "prefixItems": [N]}, ["TYPE_CHANGED"]),
        (obj({"a": S}, dependentRequired={"a": ["b"]}), obj({"a": S}), ["DEPENDENCY_ARRAY_REMOVED"]),
    ],
)
def test_differences_in_draft_2020_12(old: Any, new: Any, expected: list[str]) -> None:
    first, second = (JsonSchema.parse(json.dumps({**NEW_DRAFT, **value})) for value in (old, new))
    assert [difference.type for difference in compare(first.loader, second.loader)] == expected


@pytest.mark.parametrize(("old", "new", "expected"), PAIRS, ids=[f"{n:02}" for n in range(len(PAIRS))])
def test_differences_of_two_schemas(old: Any, new: Any, expected: list[str]) -> None:
    first, second = (JsonSchema.parse(json.dumps(value)) for value in (old, new))
    assert sorted(map(str, compare(first.loader, second.loader))) == expected


def test_every_incompatible_difference_has_a_message() -> None:
    for old, new, expected in PAIRS:
        first, second = (JsonSchema.parse(json.dumps(value)) for value in (old, new))
        messages = second.differences(first)
        assert bool(messages) == any(difference.split()[0] not in STRICT for difference in expected)
        assert all(message.count("%s") == 2 for message in messages)


def test_lenient_policy_accepts_properties_added_to_open_models() -> None:
    assert "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL" in LENIENT - STRICT


def test_recursive_schemas_are_compared() -> None:
    tree = {"$defs": {"node": obj({"next": {"$ref": "#/$defs/node"}, "value": I})}, "$ref": "#/$defs/node"}
    other = {"$defs": {"node": obj({"next": {"$ref": "#/$defs/node"}, "value": S})}, "$ref": "#/$defs/node"}
    first, second = JsonSchema.parse(json.dumps(tree)), JsonSchema.parse(json.dumps(other))
    assert compare(first.loader, first.loader) == []
    assert "TYPE_CHANGED #/properties/value" in map(str, compare(first.loader, second.loader))


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07"])
def test_items_are_compared_in_old_drafts(draft: str) -> None:
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "type": "array", "items": I}
    first = JsonSchema.parse(json.dumps(schema))
    second = JsonSchema.parse(json.dumps({**schema, "items": S}))
    assert list(map(str, compare(first.loader, second.loader))) == ["TYPE_CHANGED #/items"]


def test_prefix_items_of_2020_12_are_compared_like_items() -> None:
    base = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "prefixItems": [S]}
    first = JsonSchema.parse(json.dumps({**base, "items": False}))
    second = JsonSchema.parse(json.dumps(base))
    assert list(map(str, compare(first.loader, second.loader))) == ["ADDITIONAL_ITEMS_ADDED #/additionalItems"]
