"""Hypothesis strategies for any declared message in any version."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from ottla.protocol import record_schemas
from ottla.protocol.api import APIS, request_class, response_class
from ottla.protocol.messages.header import RequestHeader, ResponseHeader
from ottla.protocol.schema import Field, Message, Struct, Uuid

Narrow = Callable[[Field, str], "st.SearchStrategy[Any] | None"]

TEXT = st.text(max_size=6) | st.sampled_from(["", "topic-name", "é" * 70, "x" * 300])
BYTES = st.binary(max_size=6) | st.sampled_from([b"", bytes(127), bytes(20000)])

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "uuid": st.binary(min_size=16, max_size=16).map(Uuid) | st.just(Uuid()),
    "string": TEXT,
    "bytes": BYTES,
    "records": BYTES,
}


def messages() -> Iterator[type[Message]]:
    """Return every declared message: requests, responses, headers, records, files."""
    for api in APIS:
        yield request_class(api.key)
        yield response_class(api.key)
    yield from (RequestHeader, ResponseHeader)
    for module in pkgutil.iter_modules(record_schemas.__path__):
        loaded = importlib.import_module(f"{record_schemas.__name__}.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                yield value


ALL_MESSAGES = list(messages())


def of_field(field: Field, version: int, unknown: bool) -> st.SearchStrategy[Any]:
    value: st.SearchStrategy[Any]
    if field.kind == "array":
        if isinstance(field.of, str):
            value = st.lists(PRIMITIVES[field.of], max_size=3)
        else:
            assert field.of is not None
            value = st.lists(of_struct(field.of, version, unknown), max_size=2)
    elif field.kind == "struct":
        assert field.struct is not None
        value = of_struct(field.struct, version, unknown)
    else:
        value = PRIMITIVES[field.kind]
    if version in field.nullable:
        value = st.none() | value
    return value


@functools.cache
def of_struct(cls: type[Struct], version: int, unknown: bool = False) -> st.SearchStrategy[Any]:
    """Generate instances that a version can encode; with undeclared tagged fields if `unknown`."""
    fields = {
        field.name: of_field(field, version, unknown) for field in cls.__schema__.fields if version in field.versions
    }
    made = st.fixed_dictionaries(fields).map(lambda values: cls(**values))
    if not unknown:
        return made
    tags = st.none() | st.dictionaries(st.integers(1000, 2**31 - 1), BYTES, min_size=1, max_size=2)

    def with_tags(message: Struct, unknown_tags: dict[int, bytes] | None) -> Struct:
        message.unknown_tags = unknown_tags
        return message

    return st.builds(with_tags, made, tags)


def of_message(cls: type[Message], version: int) -> st.SearchStrategy[Any]:
    return of_struct(cls, version, version in cls.__schema__.flexible)
