"""Convert messages to kio's entities, field by field: kio is an independent oracle for every byte."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import re
import types
import typing
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.index import schema_name_map
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.protocol.schema import ZERO_UUID, Field, Message, Struct, Uuid

from .strategies import ALL_MESSAGES, PRIMITIVES, of_field

if typing.TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ERROR_CODES = st.sampled_from([code.value for code in KioErrorCode])
MOMENTS = st.integers(0, 4_000_000_000_000)
DURATIONS = st.integers(-(2**31), 2**31 - 1)

NARROWED = {
    "error_code": ERROR_CODES,
    "datetime_i64": MOMENTS,
    "timedelta_i32": DURATIONS,
    "timedelta_i64": DURATIONS,
}


def pairs() -> Iterator[tuple[type[Message], dict[int, type]]]:
    """Return every message that kio has, with kio's class for each common version."""
    for cls in ALL_MESSAGES:
        schema = cls.__schema__
        base = (
            re.sub(r"(Request|Response)$", "", schema.name) if schema.kind in ("request", "response") else schema.name
        )
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", base).lower()
        kind = getattr(EntityType, schema.kind, None)
        known = schema_name_map.get(name, {})
        versions = {v: resolve_name(known[v][kind]) for v in schema.versions if v in known and kind in known[v]}
        if versions:
            yield cls, versions


def kio_fields(cls: type[Struct], entity: type, version: int) -> list[tuple[Field, Any]]:
    ours = [field for field in cls.__schema__.fields if version in field.versions]
    theirs = dataclasses.fields(entity)
    assert len(ours) == len(theirs), f"{cls.__name__} v{version}: {ours} against {[f.name for f in theirs]}"
    return list(zip(ours, theirs, strict=True))


def inner_entity(annotation: Any) -> Any:
    """Return the dataclass in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    if typing.get_origin(annotation) is tuple:
        annotation = typing.get_args(annotation)[0]
    return annotation


def is_nullable(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def all_fields(cls: type[Struct], entity: type, version: int) -> Iterator[tuple[str, Field, Any]]:
    """Yield each field of a message and of its nested structures, with kio's."""
    for field, theirs in kio_fields(cls, entity, version):
        yield f"{cls.__name__}.{field.name}", field, theirs
        if field.struct is not None:
            yield from all_fields(field.struct, inner_entity(theirs.type), version)


@functools.cache
def for_kio(cls: type[Struct], entity: type, version: int) -> st.SearchStrategy[Any]:
    """Generate messages within the range of kio's types: its error codes, timestamps and durations."""
    fields = {}
    for field, theirs in kio_fields(cls, entity, version):
        narrowed = NARROWED.get(theirs.metadata.get("kafka_type", ""))
        value: st.SearchStrategy[Any]
        if field.struct is not None:
            value = for_kio(field.struct, inner_entity(theirs.type), version)
            if field.kind == "array":
                value = st.lists(value, max_size=2)
        elif narrowed is not None:
            value = st.lists(narrowed, max_size=2) if field.kind == "array" else narrowed
        else:
            value = PRIMITIVES[field.kind] if field.kind != "array" else of_field_without_null(field, version)
        if version in field.nullable and (field.tag is None or (field.default is None and field.factory is None)):
            value = st.none() | value
        fields[field.name] = value
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


def of_field_without_null(field: Field, version: int) -> st.SearchStrategy[Any]:
    return of_field(field, version, False).filter(lambda value: value is not None)


def to_kio(message: Struct, entity: type, version: int) -> Any:
    return entity(
        **{
            theirs.name: value_to_kio(getattr(message, field.name), field, theirs, version)
            for field, theirs in kio_fields(type(message), entity, version)
        }
    )


def value_to_kio(value: Any, field: Field, theirs: Any, version: int) -> Any:
    if value is None:
        return None
    kind = theirs.metadata.get("kafka_type", "")
    if isinstance(value, list):
        if field.struct is not None:
            inner = inner_entity(theirs.type)
            return tuple(to_kio(item, inner, version) for item in value)
        return tuple(primitive_to_kio(item, kind, None) for item in value)
    if field.struct is not None:
        return to_kio(value, inner_entity(theirs.type), version)
    return primitive_to_kio(value, kind, theirs.default if "tag" in theirs.metadata else None)


def primitive_to_kio(value: Any, kind: str, zero_uuid: Any) -> Any:
    if kind == "error_code":
        return KioErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return EPOCH + datetime.timedelta(milliseconds=value)
    if isinstance(value, Uuid):
        if value == ZERO_UUID:
            return zero_uuid
        return UUID(bytes=bytes(value))
    return value


def kio_encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_decode(entity: type, data: bytes) -> Any:
    value, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    return value
