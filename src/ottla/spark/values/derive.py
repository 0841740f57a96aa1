"""Schemas for columns: Avro, JSON Schema and Protobuf that describe a type of Spark, to be registered by a sink."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_AVRO: Final[dict[str, Any]] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: Final[dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "tinyint": {"type": "integer"},
    "smallint": {"type": "integer"},
    "int": {"type": "integer"},
    "bigint": {"type": "integer"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
    "timestamp_ntz": {"type": "string"},
}
_PROTOBUF: Final = {
    "boolean": "bool",
    "tinyint": "int32",
    "smallint": "int32",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": "string",
    "timestamp": "google.protobuf.Timestamp",
    "timestamp_ntz": "string",
}


def derive_schema(type_: DataType, schema_type: str, name: str) -> str:
    """Return the text of a schema for a column; `name` becomes the name of its record or message.

    OptionError if the type has no equivalent.
    """
    record = re.sub("[^A-Za-z0-9]+", "_", name).strip("_") or "Value"
    record = f"_{record}" if record[0].isdigit() else record
    if schema_type == "AVRO":
        return json.dumps(_avro(type_, record))
    if schema_type == "JSON":
        return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **_json(type_, record)})
    return _protobuf(type_, record)


def _kind(type_: DataType) -> str:
    return str(type_.simpleString()).partition("(")[0].partition("<")[0]


def _avro(type_: Any, path: str) -> Any:
    match _kind(type_):
        case "struct":
            fields = []
            for field in type_.fields:
                inside = _avro(field.dataType, f"{path}_{_checked(field.name, path)}")
                if field.nullable:
                    fields.append({"name": field.name, "type": ["null", inside], "default": None})
                else:
                    fields.append({"name": field.name, "type": inside})
            return {"type": "record", "name": path, "fields": fields}
        case "array":
            return {"type": "array", "items": _nullable(_avro(type_.elementType, path), type_.containsNull)}
        case "map":
            _check_key(type_, path)
            return {"type": "map", "values": _nullable(_avro(type_.valueType, path), type_.valueContainsNull)}
        case "decimal":
            return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    return _known(_AVRO, type_, path)


def _nullable(inside: Any, nullable: bool) -> Any:
    return ["null", inside] if nullable else inside


def _json(type_: Any, path: str) -> dict[str, Any]:
    match _kind(type_):
        case "struct":
            properties = {field.name: _json(field.dataType, f"{path}.{field.name}") for field in type_.fields}
            required = [field.name for field in type_.fields if not field.nullable]
            tree: dict[str, Any] = {"type": "object", "properties": properties}
            return tree | {"required": required} if required else tree
        case "array":
            return {"type": "array", "items": _json(type_.elementType, path)}
        case "map":
            _check_key(type_, path)
            return {"type": "object", "additionalProperties": _json(type_.valueType, path)}
        case "decimal":
            return {"type": "string"}
    known: dict[str, Any] = _known(_JSON, type_, path)
    return known


def _protobuf(type_: Any, name: str) -> str:
    if _kind(type_) != "struct":
        raise OptionError(f"a column of {type_.simpleString()} is no Protobuf message: only a struct is")
    body = _message(type_, name, 0)
    timestamp = 'import "google/protobuf/timestamp.proto";\n' if "google.protobuf.Timestamp" in body else ""
    return f'syntax = "proto3";\n{timestamp}{body}'


def _message(type_: StructType, name: str, depth: int) -> str:
    indent = "  " * depth
    lines = [f"{indent}message {name} {{"]
    for number, field in enumerate(type_.fields, 1):
        inner: Any = field.dataType
        label = "optional "
        if _kind(inner) == "array":
            inner, label = inner.elementType, "repeated "
        elif _kind(inner) == "map":
            _check_key(inner, name)
            inner, label = inner.valueType, ""
        if _kind(inner) in ("array", "map"):
            raise OptionError(f"{name}.{field.name} is a list or map of lists or maps, which Protobuf has not")
        if _kind(inner) == "struct":
            kind = f"{_checked(field.name, name)}_type"
            lines.append(_message(inner, kind, depth + 1).rstrip("\n"))
        else:
            kind = "string" if _kind(inner) == "decimal" else _known(_PROTOBUF, inner, f"{name}.{field.name}")
        if _kind(field.dataType) == "map":
            kind = f"map<string, {kind}>"
        lines.append(f"{indent}  {label}{kind} {_checked(field.name, name)} = {number};")
    return "\n".join([*lines, f"{indent}}}"]) + "\n"


def _checked(name: str, path: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise OptionError(f"{path}: the column {name!r} is no name of a field: use letters, digits and underscores")
    return name


def _check_key(type_: Any, path: str) -> None:
    if _kind(type_.keyType) != "string":
        raise OptionError(f"{path} is {type_.simpleString()}: only maps from strings can be encoded")


def _known(types: dict[str, Any], type_: Any, path: str) -> Any:
    kind = _kind(type_)
    if kind not in types:
        raise OptionError(f"{path} is {type_.simpleString()}, which the format has not: cast it, for example to string")
    return types[kind]
