"""Schemas of any type as column types, and the fields that a newer schema adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.schemas import avro_columns, json_columns, protobuf_columns
from ottla.schemas.avro import AvroSchema
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.protobuf import ProtobufSchema

if TYPE_CHECKING:
    from ottla.schemas.column_types import ColumnType
    from ottla.schemas.schema import Schema


def type_of_schema(schema: Schema, message: str | None = None) -> ColumnType:
    """Return the type of the column that values of a schema become."""
    if isinstance(schema, AvroSchema):
        return avro_columns.column_type(schema)
    if isinstance(schema, JsonSchema):
        return json_columns.column_type(schema)
    assert isinstance(schema, ProtobufSchema)
    return protobuf_columns.column_type(schema, message)


def added_fields(writer: Schema, reader: Schema, message: str | None = None) -> list[str]:
    """Return the fields of a writer's schema that the reader's has not, as paths with dots."""
    if isinstance(writer, AvroSchema) and isinstance(reader, AvroSchema):
        return avro_columns.added_fields(writer, reader)
    if isinstance(writer, JsonSchema) and isinstance(reader, JsonSchema):
        return _added(json_columns.property_names(writer), json_columns.property_names(reader), "")
    if isinstance(writer, ProtobufSchema) and isinstance(reader, ProtobufSchema):
        name = message or reader.message_names()[0]
        if name not in writer.message_names():
            return []
        written = protobuf_columns.message_fields(writer, name)
        return _added(written, protobuf_columns.message_fields(reader, name), "")
    return []


def only_added(value: Any, paths: list[str]) -> dict[str, Any]:
    """Return the parts of a decoded value at paths of added fields."""
    result: dict[str, Any] = {}
    for path in paths:
        part = value
        for name in path.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if part is not None:
            result[path] = part
    return result


def _added(writer: dict[str, Any], reader: dict[str, Any], path: str) -> list[str]:
    added: list[str] = []
    for name, fields in writer.items():
        inside = f"{path}.{name}" if path else name
        if name not in reader:
            added.append(inside)
        else:
            added += _added(fields, reader[name], inside)
    return added
