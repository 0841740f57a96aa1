"""JSON values as columns: the column types of a JSON schema, and the conversion of parsed values to them.

A part of the schema that allows several types, or any, becomes a string column that holds JSON text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ottla.schemas.column_types import STRING, ColumnType, NoColumnsError, list_of, map_of, struct_of

if TYPE_CHECKING:
    from ottla.schemas.json_schema import JsonSchema, Loader, Node

MAX_TYPES: Final = 20_000
_SIMPLE: Final = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean", "null": "null"}


class WrongTypeError(ValueError):
    """A JSON value that is not of its column's type; the message has the field."""


def column_type(schema: JsonSchema) -> ColumnType:
    """Return the type of the column that values of a schema become."""
    return _Types(schema.loader).of(schema.loader.root, ())


def property_names(schema: JsonSchema) -> dict[str, Any]:
    """Return the properties of a schema as a tree of names."""
    return _tree(column_type(schema))


def _tree(type_: ColumnType) -> dict[str, Any]:
    if type_.kind in ("list", "map"):
        return _tree(type_.fields[-1][1])
    return {name: _tree(field) for name, field in type_.fields}


class _Types:
    """Turns nodes of a JSON schema into types of columns, and counts them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._count = 0

    def of(self, node: Node, parents: tuple[int, ...]) -> ColumnType:
        self._count += 1
        if self._count > MAX_TYPES:
            raise NoColumnsError(f"the schema has more than {MAX_TYPES} types")
        target = self._loader.follow(node)
        if target is not node:
            if id(target.json) in parents:
                raise NoColumnsError(
                    f"the schema is recursive: {node.json.get('$ref')} contains itself, and tables have no recursive "
                    "types; give a reader schema without that property"
                )
            parents = (*parents, id(target.json))
        node = target
        match node.kind:
            case "object":
                return self._object(node, parents)
            case "array":
                items = node.json.get("items")
                if isinstance(items, dict):
                    return list_of(self.of(self._loader.node(items, node.base), parents))
                return list_of(STRING)
            case "enum":
                return _type_of_values(node.json["enum"])
            case "const":
                return _type_of_values([node.json["const"]])
            case "combined":
                return self._combined(node, parents)
        return ColumnType(_SIMPLE.get(node.kind, "string"))

    def _object(self, node: Node, parents: tuple[int, ...]) -> ColumnType:
        properties = node.json.get("properties")
        if isinstance(properties, dict) and properties:
            inside = (*parents, id(node.json))
            return struct_of(
                [(name, self.of(self._loader.node(value, node.base), inside)) for name, value in properties.items()]
            )
        additional = node.json.get("additionalProperties")
        if isinstance(additional, dict):
            return map_of(self.of(self._loader.node(additional, node.base), parents))
        return STRING

    def _combined(self, node: Node, parents: tuple[int, ...]) -> ColumnType:
        types = [self.of(part, parents) for part in node.parts if self._loader.follow(part).kind != "null"]
        if len(set(types)) == 1:
            return types[0]
        if {type_.kind for type_ in types} == {"long", "double"}:
            return ColumnType("double")
        if node.criterion == "allOf" and types:
            structs = [type_ for type_ in types if type_.kind == "struct"]
            if structs and all(type_.kind == "struct" or type_ == STRING for type_ in types):
                return struct_of(list({name: field for type_ in structs for name, field in type_.fields}.items()))
        return STRING


def _type_of_values(values: list[Any]) -> ColumnType:
    """Return the type of an enum's values."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {bool}:
        return ColumnType("boolean")
    if kinds == {int}:
        return ColumnType("long")
    if kinds and kinds <= {int, float}:
        return ColumnType("double")
    return STRING


def convert(value: Any, type_: ColumnType, path: str = "") -> Any:
    """Return a parsed JSON value as a value of a column; WrongTypeError if it has another type."""
    if value is None:
        return None
    match type_.kind:
        case "string":
            return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        case "long":
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if type(value) is int and -(2**63) <= value < 2**63:
                return value
        case "double":
            if isinstance(value, int | float) and not isinstance(value, bool):
                return _double(value, path)
        case "boolean":
            if isinstance(value, bool):
                return value
        case "struct":
            if isinstance(value, dict):
                return {
                    name: convert(value.get(name), field, f"{path}.{name}" if path else name)
                    for name, field in type_.fields
                }
        case "list":
            if isinstance(value, list):
                return [convert(entry, type_.fields[0][1], path) for entry in value]
        case "map":
            if isinstance(value, dict):
                return [(name, convert(entry, type_.fields[1][1], path)) for name, entry in value.items()]
    shown = json.dumps(value)
    raise WrongTypeError(
        f"{f'field {path}' if path else 'the value'} is {shown[:60]}{'...' if len(shown) > 60 else ''}, not {type_}"
    )


def _double(value: float, path: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise WrongTypeError(f"{f'field {path}' if path else 'the value'} is out of the range of double") from None
