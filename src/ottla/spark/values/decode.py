"""Decode the values or keys of one task into typed Arrow arrays, each record with the schema it was written with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.schemas.framing import FramingError, unframe
from ottla.schemas.values import Codec
from ottla.spark.data_loss import warn
from ottla.spark.values.arrow import arrow_type
from ottla.spark.values.reader import ERROR_TYPE, column_type_of, parsed_reader
from ottla.spark.values.schemas import added_fields, only_added
from ottla.spark.values.writers import UnknownSchemaError, WriterSchemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.schemas.schema import Schema
    from ottla.spark.values.options import ColumnFormat

    Headers = Sequence[Mapping[str, bytes | None]]


class UndecodableRecordError(Exception):
    """A record whose key or value is not data of its schema; the message has its partition and offset."""


class SchemaEvolvedError(Exception):
    """A record was written with a schema that has fields which the query's columns have not."""


class Decoded(NamedTuple):
    """The decoded column, and those for undecodable records and added fields if they were requested."""

    values: pa.Array
    errors: pa.Array | None
    added: pa.Array | None


class UndecodableError(ValueError):
    """Why one record cannot be decoded."""


class ColumnDecoder:
    """Decodes one column of one topic's partition."""

    def __init__(self, format_: ColumnFormat, partition: str) -> None:
        from ottla.spark.values.batches import make_batch_decoder

        self._format = format_
        self._partition = partition
        self.reader = parsed_reader(format_)
        self.type = column_type_of(format_)
        self.arrow = arrow_type(self.type)
        self._schemas = WriterSchemas(format_.registry)
        self._added: dict[int | str, list[str]] = {}
        self._codecs: dict[int | str, Codec] = {}
        self._undecodable = 0
        self._batch = make_batch_decoder(self, format_)

    def decode(self, array: pa.Array, offsets: pa.Array, headers: Headers | None = None) -> Decoded:
        """Decode an array of bytes; `offsets` are those of the records, for messages."""
        failures: dict[int, str] = {}

        def failed(row: int, reason: str) -> None:
            if self._format.errors == "fail":
                raise UndecodableRecordError(
                    f"the {self._format.column} of {self._partition} at offset {offsets[row].as_py()} cannot be "
                    f"decoded: {reason}; {self._format.column}Errors=column keeps such records with the reason, "
                    f"{self._format.column}Errors=null makes them null"
                )
            failures[row] = reason

        values = self._batch.decode(array, headers, failed)
        if failures and not self._undecodable:
            row = min(failures)
            warn(
                "ottla",
                f"the {self._format.column} of {self._partition} at offset {offsets[row].as_py()} cannot be decoded: "
                f"{failures[row]}; further ones of this task are not reported",
            )
        self._undecodable += len(failures)
        errors = None
        if self._format.errors == "column":
            errors = _errors(array, failures)
        added = self._added_values(array, headers, failures) if self._format.evolution == "widen" else None
        return Decoded(values, errors, added)

    def writer(self, identifier: int | str) -> Schema:
        """Return the schema of an id or guid, after comparing it with the reader's; UndecodableError if it has none."""
        try:
            schema = self._schemas.get(identifier)
        except UnknownSchemaError as error:
            raise UndecodableError(str(error)) from error
        if schema.type != self.reader.type:
            raise UndecodableError(f"schema id {identifier} is {schema.type}, the column is read as {self.reader.type}")
        if identifier not in self._added:
            self._added[identifier] = self._compare(identifier, schema)
        return schema

    def _compare(self, identifier: int | str, writer: Schema) -> list[str]:
        """Return the fields that a schema adds; report them or raise SchemaEvolvedError, as requested."""
        format_ = self._format
        reader = format_.reader
        assert reader is not None
        newer = isinstance(identifier, int) and reader.schema_id is not None and identifier > reader.schema_id
        if format_.schema != "latest" or not newer:
            return []
        added = added_fields(writer, self.reader, reader.message)
        if added:
            message = (
                f"{self._partition} has records of schema id {identifier} with the new fields {', '.join(added)}, "
                f"which the columns of schema id {reader.schema_id} have not"
            )
            if format_.evolution == "stop":
                raise SchemaEvolvedError(f"{message}: start the query again to read them as columns")
            column = format_.added_column
            kept = "they are left out" if column is None else f"the column {column} has them as JSON"
            warn("ottla", f"{message}; {kept} until the query is started again")
        return added

    def _added_values(self, array: pa.Array, headers: Headers | None, failures: dict[int, str]) -> pa.Array:
        """Return the added fields of each record as JSON."""
        if not any(self._added.values()):
            return pa.nulls(len(array), pa.string())
        texts: list[str | None] = []
        for row, value in enumerate(array.to_pylist()):
            text = None
            if value is not None and row not in failures:
                framed = unframe(value, headers[row] if headers else None, is_key=self._format.column == "key")
                identifier = framed.guid if framed.schema_id is None else framed.schema_id
                assert identifier is not None
                if self._added[identifier]:
                    decoded = self._codec(identifier).decode(framed.data)
                    fields = only_added(decoded, self._added[identifier])
                    text = json.dumps(fields, default=str, ensure_ascii=False) if fields else None
            texts.append(text)
        return pa.array(texts, pa.string())

    def _codec(self, identifier: int | str) -> Codec:
        if identifier not in self._codecs:
            self._codecs[identifier] = Codec(self._schemas.get(identifier))
        return self._codecs[identifier]


def _errors(array: pa.Array, failures: dict[int, str]) -> pa.Array:
    if not failures:
        return pa.nulls(len(array), ERROR_TYPE)
    rows = [
        {"reason": failures[row], "bytes": array[row].as_py()} if row in failures else None for row in range(len(array))
    ]
    return pa.array(rows, ERROR_TYPE)


def frame_of(value: bytes, headers: Mapping[str, bytes | None] | None, *, is_key: bool) -> tuple[int | str, int]:
    """Return the schema of a value and where its data begins; UndecodableError without the registry's framing."""
    try:
        framed = unframe(value, headers, is_key=is_key)
    except FramingError as error:
        raise UndecodableError(str(error)) from error
    identifier = framed.guid if framed.schema_id is None else framed.schema_id
    assert identifier is not None
    return identifier, len(value) - len(framed.data)
