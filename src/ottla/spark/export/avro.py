"""Avro values: a schema file (.avsc) to columns, and values to JSON. Needs fastavro."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.export.values import SchemaFileError

if TYPE_CHECKING:
    from collections.abc import Callable

# The wire format of schema registries: a zero byte and four bytes of schema id before the value.
_REGISTRY_HEADER: Final = 5
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "fixed": "binary",
    "string": "string",
    "enum": "string",
    "null": "string",
}
_LOGICAL: Final = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "time-millis": "string",
    "time-micros": "string",
    "uuid": "string",
}


def avro_decoder(path: str) -> tuple[Callable[[bytes], Any], str]:
    """Return a function that decodes one value, and the columns as Spark DDL."""
    try:
        import fastavro
    except ImportError:
        raise SchemaFileError("--value avro needs fastavro: pip install 'ottla[avro]'") from None
    try:
        with open(path, encoding="utf-8") as file:
            parsed = fastavro.parse_schema(json.load(file))
    except fastavro.schema.UnknownType as error:
        raise SchemaFileError(f"{path} is no Avro schema: it has no type {error}") from error
    except Exception as error:  # fastavro also raises KeyError and TypeError
        raise SchemaFileError(f"{path} is no Avro schema: {error}") from error
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise SchemaFileError(f"{path} is a schema of {_type(parsed, {})}; it must be a record")

    def decode(value: bytes) -> Any:
        if value[:1] == b"\0" and len(value) > _REGISTRY_HEADER:
            try:
                return _whole(fastavro, value[_REGISTRY_HEADER:], parsed)
            except Exception:  # the zero byte belongs to the value
                return _whole(fastavro, value, parsed)
        return _whole(fastavro, value, parsed)

    return decode, _type(parsed, {})


def _whole(fastavro: Any, value: bytes, parsed: Any) -> Any:
    stream = io.BytesIO(value)
    decoded = fastavro.schemaless_reader(stream, parsed, None)
    if stream.tell() != len(value):
        raise ValueError(f"{len(value) - stream.tell()} bytes are left over")
    return decoded


def _type(schema: Any, named: dict[str, str]) -> str:
    """Return a parsed schema as a Spark type; a recursive record becomes a string of JSON."""
    if isinstance(schema, list):
        real = [branch for branch in schema if branch != "null"]
        return _type(real[0], named) if len(real) == 1 else "string"
    if isinstance(schema, str):
        return _PRIMITIVES.get(schema) or named.get(schema) or "string"
    kind = schema["type"]
    if kind in ("record", "error"):
        fields = [f"`{field['name']}`: {_type(field['type'], named)}" for field in schema["fields"]]
        named[schema["name"]] = struct = f"struct<{', '.join(fields)}>"
        return struct
    if kind == "array":
        return f"array<{_type(schema['items'], named)}>"
    if kind == "map":
        return f"map<string, {_type(schema['values'], named)}>"
    if schema.get("logicalType") == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    return _type(kind, named)
