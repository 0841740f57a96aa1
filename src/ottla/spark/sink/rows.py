"""Rows of a DataFrame as records: the columns that a sink accepts, their types, and their encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.spark.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

_TYPES: Final = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class OutgoingRecord(NamedTuple):
    """One row, ready to be sent."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str | bytes, bytes | None]]
    partition: int | None


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of the sink's columns in a DataFrame."""

    key: int | None
    value: int
    topic: int | None
    partition: int | None
    headers: int | None


def read_layout(schema: StructType, *, topic_given: bool) -> Layout:
    """Find the columns and check their types; other columns are ignored, as in Spark's own sink."""
    positions: dict[str, int] = {}
    for position, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _TYPES:
            continue
        kind = field.dataType.simpleString()
        if kind not in _TYPES[name]:
            raise OptionError(
                f"column {field.name} is {kind}, a sink takes {' or '.join(_TYPES[name])}: "
                f'cast it, for example .selectExpr("cast({field.name} as {_TYPES[name][0]}) as {field.name}")'
            )
        positions[name] = position
    if "value" not in positions:
        raise OptionError(
            f"a sink needs the column value (string or binary); there are {', '.join(schema.names) or 'none'}. "
            'For whole rows as JSON: .selectExpr("to_json(struct(*)) as value")'
        )
    if "topic" not in positions and not topic_given:
        raise OptionError('no target: give .option("topic", "orders") or a column topic')
    return Layout(
        positions.get("key"),
        positions["value"],
        positions.get("topic"),
        positions.get("partition"),
        positions.get("headers"),
    )


def rows_of(batches: Iterator[pa.RecordBatch], layout: Layout, topic: str | None) -> Iterator[OutgoingRecord]:
    """Yield the rows of Arrow batches as records; the option `topic` overrides the column, as in Spark's own sink."""
    for batch in batches:
        count = batch.num_rows
        keys = _bytes(batch, layout.key) if layout.key is not None else [None] * count
        values = _bytes(batch, layout.value)
        topics = [topic] * count if topic is not None else batch.column(layout.topic).to_pylist()
        partitions = [None] * count if layout.partition is None else batch.column(layout.partition).to_pylist()
        headers = None if layout.headers is None else batch.column(layout.headers).to_pylist()
        for index in range(count):
            name = topics[index]
            if name is None:
                raise ValueError(f"a row has no topic: column topic is null (value {_short(values[index])})")
            pairs: Sequence[tuple[str | bytes, bytes | None]] = ()
            if headers is not None and headers[index]:
                pairs = [(_header_name(header["key"]), header["value"]) for header in headers[index]]
            yield OutgoingRecord(name, keys[index], values[index], pairs, partitions[index])


def _bytes(batch: pa.RecordBatch, position: int) -> list[bytes | None]:
    column = batch.column(position)
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _header_name(name: str | None) -> str:
    if name is None:
        raise ValueError("a header has no key: Kafka's headers have names, only their values may be null")
    return name


def _short(value: bytes | None) -> str:
    return "null" if value is None else repr(value[:60])
