"""The columns of a topic as a table: those of Spark's own Kafka source, and those of a batch's header on request.

Turns the decoder's Arrow columns into these; readers find the batches. Arrow's functions are imported where they are
used: importing them takes a tenth of a second in every Python process that Spark starts, and most reads need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.records.columnar import iter_arrow
from ottla.records.compression import CompressionType
from ottla.spark.options import OptionError, Options
from ottla.spark.values.options import VALUE_OPTIONS, ColumnFormat, parse_formats

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from ottla.records.columnar import AbortedTransaction
    from ottla.spark.values.decode import ColumnDecoder
    from ottla.storage.names import TopicPartition

_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_RECORD: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)
_HEADER_COLUMN: Final = pa.field("headers", _HEADERS)
_BATCH: Final = (
    pa.field("leaderEpoch", pa.int32()),
    pa.field("producerId", pa.int64()),
    pa.field("producerEpoch", pa.int16()),
    pa.field("sequence", pa.int32()),
    pa.field("batchOffset", pa.int64()),
    pa.field("transactional", pa.bool_()),
    pa.field("control", pa.bool_()),
    pa.field("compression", pa.string()),
    pa.field("segment", pa.int64()),
    pa.field("position", pa.int64()),
)
BAD_COLUMN: Final = pa.field("badRecord", pa.string())
_MAX_SEQUENCE: Final = 2**31
COLUMN_OPTIONS: Final = ("includeHeaders", "columns", *VALUE_OPTIONS)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one read, in order."""

    fields: tuple[pa.Field, ...]
    formats: tuple[ColumnFormat, ...] = ()
    """How key and value are decoded; without a format they are bytes."""

    @property
    def spark(self) -> StructType:
        """Return Spark's schema."""
        if not self.formats:
            return spark_schema(self.arrow)
        from ottla.spark.values.reader import with_schema_ids

        return with_schema_ids(spark_schema(self.arrow), self.formats)

    def typed(self, topics: list[str], schema: StructType | None = None) -> Columns:
        """Return the columns with the types of their formats; asks the registry for the schemas of the topics.

        `schema` has the columns that Spark knows already: their schemas are used again.
        """
        if not self.formats:
            return self
        from ottla.spark.values.reader import resolve_format, typed_fields

        formats = tuple(resolve_format(format_, topics, schema) for format_ in self.formats)
        return Columns(typed_fields(self.fields, formats), formats)

    @property
    def arrow(self) -> pa.Schema:
        """Return the Arrow schema that Spark expects batches to have."""
        return pa.schema(self.fields)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return [field.name for field in self.fields]

    @property
    def headers(self) -> bool:
        """Whether the read needs record headers."""
        return "headers" in self.names or any(format_.id_in_header for format_ in self.formats)

    @property
    def batch(self) -> bool:
        """Whether the read includes a column of the batch header."""
        return any(field.name in self.names for field in _BATCH)

    def narrowed(self, source: str, schema: StructType) -> Columns:
        """Return only the columns of `.schema(...)`: Spark passes the user's schema or this source's own."""
        if schema == self.spark:
            return self
        offered = {field.name: field for field in spark_schema(self.arrow).fields}
        for field in schema.fields:
            if field.name not in offered:
                raise OptionError(f"{source} has no column {field.name}; the columns are {', '.join(offered)}")
            kind = offered[field.name].dataType
            if field.dataType != kind:
                raise OptionError(
                    f"{source} has the column {field.name} as {kind.simpleString()}, not as "
                    f"{field.dataType.simpleString()}: leave .schema(...) out and cast the column instead"
                )
        fields = tuple(self.arrow.field(field.name) for field in schema.fields)
        names = {field.name for field in fields}
        used = [format_ for format_ in self.formats if names & set(format_.columns)]
        return Columns(fields, tuple(used))


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's without the JVM."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def choose_columns(options: Options, *, batch: bool = False, bad: bool = False) -> Columns:
    """Return the columns that the options `includeHeaders` and `columns` select."""
    fields = list(_RECORD)
    if options.boolean("includeHeaders", False):
        fields.append(_HEADER_COLUMN)
    if batch:
        fields += _BATCH
    if bad:
        fields.append(BAD_COLUMN)
    names = options.text("columns")
    formats = parse_formats(options)
    if names is None:
        return Columns(tuple(fields), formats)
    known = {field.name.lower(): field for field in (*fields, _HEADER_COLUMN)}
    chosen = []
    for name in names.split(","):
        field = known.get(name.strip().lower())
        if field is None:
            listed = ", ".join(field.name for field in known.values())
            raise OptionError(f"columns: unknown column {name.strip()!r}; the columns are {listed}")
        if field not in chosen:
            chosen.append(field)
    if bad and BAD_COLUMN not in chosen:
        chosen.append(BAD_COLUMN)
    chosen_names = [field.name for field in chosen]
    return Columns(tuple(chosen), tuple(format_ for format_ in formats if format_.column in chosen_names))


class TableWriter:
    """Convert record batches of one partition into Spark's Arrow batches."""

    def __init__(
        self, columns: Columns, partition: TopicPartition, segment: int = 0, *, times: tuple[int, int] | None = None
    ) -> None:
        self._columns = columns
        self._times = times
        self._partition = partition
        self._segment = segment
        self._schema = columns.arrow
        self._decoders = _decoders(columns, partition)

    def decode(
        self,
        buffer: memoryview | bytes,
        first_offset: int,
        last_offset: int,
        aborted: Sequence[AbortedTransaction] = (),
        positions: Iterable[tuple[int, int]] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of whole batches; `positions` holds base offsets and file positions.that colum"""
        by_offset = _by_offset(positions) if "position" in self._columns.names else None
        for batch in iter_arrow(
            buffer,
            first_offset=first_offset,
            last_offset=last_offset,
            aborted=aborted,
            headers=self._columns.headers,
            batch_columns=self._columns.batch,
            timestamp_unit="us",
            times=self._times,
        ):
            if batch.num_rows:
                decoded = self._decoded(batch)
                arrays = [
                    decoded[field.name]
                    if field.name in decoded
                    else self._array(field.name, field.type, batch, by_offset)
                    for field in self._columns.fields
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def rows(self, rows: Sequence[dict[str, object]]) -> pa.RecordBatch:
        """Return a batch of single rows, which the decoder does not yield: control records and damaged bytes."""
        topic, partition = self._partition
        constant = {"topic": topic, "partition": partition, "segment": self._segment}
        typed = {format_.column: None for format_ in self._columns.formats}  # these bytes are no value of a schema
        return pa.RecordBatch.from_pylist(
            [{name: {**constant, **row, **typed}.get(name) for name in self._columns.names} for row in rows],
            schema=self._schema,
        )

    def _decoded(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns of formats by name."""
        columns: dict[str, pa.Array] = {}
        for format_, decoder in self._decoders:
            headers = None
            if format_.id_in_header:
                headers = [
                    {header["key"]: header["value"] for header in row} for row in batch.column("headers").to_pylist()
                ]
            decoded = decoder.decode(batch.column(format_.column), batch.column("offset"), headers)
            columns |= {name: array for name, array in zip(format_.columns, decoded, strict=True) if name}
        return columns

    def _array(
        self, name: str, kind: pa.DataType, batch: pa.RecordBatch, by_offset: tuple[pa.Array, pa.Array] | None
    ) -> pa.Array:
        rows = batch.num_rows
        match name:
            case "key" | "value" | "offset" | "timestamp":
                return batch.column(name)
            case "headers":
                return _headers(batch.column(name).cast(kind))
            case "timestampType":
                return batch.column("timestamp_type")
            case "topic":
                return pa.repeat(pa.scalar(self._partition.topic), rows)
            case "partition":
                return pa.repeat(pa.scalar(self._partition.partition, pa.int32()), rows)
            case "segment":
                return pa.repeat(pa.scalar(self._segment, pa.int64()), rows)
            case "control":
                return pa.repeat(pa.scalar(False), rows)
            case "badRecord":
                return pa.nulls(rows, kind)
            case "compression":
                # Built on use: pa.array() imports pandas, which most reads do not need.
                return pa.array([kind.name.lower() for kind in CompressionType]).take(batch.column("compression"))
            case "sequence":
                return _sequences(batch)
            case "position":
                import pyarrow.compute as pc  # type: ignore[import-untyped]

                assert by_offset is not None
                return by_offset[1].take(pc.index_in(batch.column("base_offset"), value_set=by_offset[0]))
        return batch.column({"batchOffset": "base_offset"}.get(name) or _snake(name)).cast(kind)


def _decoders(columns: Columns, partition: TopicPartition) -> list[tuple[ColumnFormat, ColumnDecoder]]:
    if not columns.formats:
        return []
    from ottla.spark.values.decode import ColumnDecoder

    name = f"{partition.topic}-{partition.partition}"
    return [(format_, ColumnDecoder(format_, name)) for format_ in columns.formats]


def _headers(lists: pa.ListArray) -> pa.ListArray:
    """Replace empty headers by null, as Spark's own source does."""
    import pyarrow.compute as pc

    empty = pc.equal(pc.list_value_length(lists), 0)
    if not pc.any(empty).as_py():
        return lists
    return pa.ListArray.from_arrays(lists.offsets, lists.values, type=lists.type, mask=empty)


def _by_offset(positions: Iterable[tuple[int, int]]) -> tuple[pa.Array, pa.Array]:
    pairs = list(positions)
    bases, file_positions = [base for base, _ in pairs], [position for _, position in pairs]
    return pa.array(bases, pa.int64()), pa.array(file_positions, pa.int64())


def _sequences(batch: pa.RecordBatch) -> pa.Array:
    """Return the sequence number of each record: the batch's base sequence plus its index, wrapping after 2**31 - 1."""
    import pyarrow.compute as pc

    base = batch.column("base_sequence").cast(pa.int64())
    plain = pc.add(base, pc.subtract(batch.column("offset"), batch.column("base_offset")))
    wrapped = pc.if_else(pc.greater_equal(plain, _MAX_SEQUENCE), pc.subtract(plain, _MAX_SEQUENCE), plain)
    return pc.if_else(pc.less(base, 0), pa.scalar(-1, pa.int64()), wrapped).cast(pa.int32())


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
