"""The OpenAPI description of the control API, derived from the table of operations and their result types."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any

from ottla import __version__
from ottla.testing.http.operations import OPERATIONS, PATH_TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.testing.http.operation import Field, Operation

PATH_VALUES = {"kind": ["group", "transaction"]}
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def openapi(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """Return the OpenAPI description of these operations."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schemas)
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "ottla control API", "version": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": {**schemas, "Problem": {"description": "Why the request failed.", **error}}},
    }


def _describe(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    description: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in names),
            *(
                {"name": name, "in": "query", "description": field.meaning, "schema": {"type": field.type}}
                for name, field in operation.query.items()
            ),
        ],
        "responses": {
            "200": {"description": "success", "content": _json(_schema(operation.returns, schemas))},
            "default": {
                "description": "failure",
                "content": _json({"$ref": "#/components/schemas/Problem"}),
            },
        },
    }
    if operation.body:
        required = [name for name, field in operation.body.items() if field.required]
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: _field_schema(field) for name, field in operation.body.items()},
            **({"required": required} if required else {}),
        }
        description["requestBody"] = {"required": bool(required), "content": _json(schema)}
    return description


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _path_schema(name: str) -> dict[str, Any]:
    return {
        "type": PATH_TYPES.get(name, "string"),
        **({"enum": PATH_VALUES[name]} if name in PATH_VALUES else {}),
    }


def _field_schema(field: Field) -> dict[str, Any]:
    return {
        "type": field.type,
        "description": field.meaning,
        **({"items": {"type": field.items}} if field.items is not None else {}),
        **({"enum": list(field.values)} if field.values else {}),
    }


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what `json_messages.to_json` returns for a value of this type."""
    if kind is None:
        return {"type": "null"}
    if kind is Any:
        return {}
    if kind is bytes:
        return {"type": "string", "contentEncoding": "base64"}
    if kind in SIMPLE:
        return {"type": SIMPLE[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument, schemas) for argument in arguments]}
    if origin is tuple and Ellipsis not in arguments:
        return {"type": "array", "prefixItems": [_schema(argument, schemas) for argument in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(arguments[0], schemas)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    name = kind.__name__
    if name not in schemas:
        schemas[name] = {}
        hints = typing.get_type_hints(kind, localns={"Mapping": collections.abc.Mapping})
        if dataclasses.is_dataclass(kind):
            hints = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
        schemas[name] = {
            "type": "object",
            "description": (kind.__doc__ or "").split("\n")[0],
            "properties": {key: _schema(hint, schemas) for key, hint in hints.items()},
            "required": list(hints),
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _operation_id(operation: Operation) -> str:
    words = [part.strip("{}") for part in operation.path.replace("-", "/").split("/") if part]
    return operation.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)
