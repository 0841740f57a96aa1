"""Requests of every API with any number of elements, built from the messages' schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.api import request_class
from ottla.protocol.schema import Struct, Uuid

if TYPE_CHECKING:
    from ottla.protocol.schema import Field

BRANCHES = 5
"""The number of structures in an array that has the elements in nested arrays."""


def struct_of(field: Field) -> type[Struct] | None:
    """Return the structure that an array is of; None for an array of plain values."""
    kind = field.of
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


def array_paths(struct: type[Struct], version: int | None = None) -> list[tuple[str, ...]]:
    """Return the paths of nested arrays in a structure, each to its innermost array."""
    paths: list[tuple[str, ...]] = []
    for field in struct.__schema__.fields:
        if field.kind != "array" or (version is not None and version not in field.versions):
            continue
        inner = struct_of(field)
        nested = array_paths(inner, version) if inner is not None else []
        paths += [(field.name, *path) for path in nested] or [(field.name,)]
    return paths


def fill(key: int, version: int, count: int, path: tuple[str, ...] | None = None) -> Any:
    """Build a request whose array at a path, or its first one, has `count` elements."""
    request = request_class(key)
    chosen = path or array_paths(request, version)[0]
    message = _struct(request, version, chosen, count, 0)
    for name, value in (("timeout_ms", 60_000), ("group_id", "g"), ("member_id", "m"), ("transactional_id", "t")):
        if any(field.name == name and version in field.versions for field in message.__schema__.fields):
            setattr(message, name, value)
    return message


def _struct(struct: type[Struct], version: int, path: tuple[str, ...], count: int, number: int) -> Any:
    made = struct()
    for field in struct.__schema__.fields:
        if version not in field.versions:
            continue
        if path and field.name == path[0]:
            length = count if len(path) == 1 else min(BRANCHES, count)
            inner = struct_of(field)
            elements = [
                _scalar(field.of, number * count + index)
                if inner is None
                else _struct(inner, version, path[1:], count // length, number * length + index)
                for index in range(length)
            ]
            setattr(made, field.name, elements)
        elif path and field.kind == "string" and field.name not in ("group_instance_id", "rack_id"):
            setattr(made, field.name, f"{field.name}-{number}")
        elif path and (field.kind == "uuid" or field.name == "producer_id"):
            setattr(made, field.name, _scalar(field.kind, number + 1))
        elif not path and field.kind in ("string", "int32", "uuid") and field.name.endswith(_IDENTITY):
            setattr(made, field.name, _scalar(field.kind, number))
    return made


_IDENTITY = ("name", "id", "index", "key", "user", "partition", "topic", "group", "member_id")


def _scalar(kind: Any, number: int) -> Any:
    if kind == "string":
        return f"name-{number}"
    if kind == "uuid":
        return Uuid(number.to_bytes(16))
    if kind == "bytes":
        return b"%d" % number
    return number % 100 if kind == "int8" else number
