"""Encode columns for a sink: a struct becomes Avro, JSON or Protobuf under a subject, framed with its schema id.

A step in front of any writer: it turns the columns value and key into bytes, and the writer sends those.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from ottla.schemas.avro import Array, AvroSchema, Map, Named, Record, Type, Union
from ottla.schemas.framing import frame
from ottla.schemas.registry_client import RegistryRefusedError, RegistryUnreachableError
from ottla.schemas.schema import InvalidSchemaError
from ottla.schemas.types import parse_schema
from ottla.schemas.values import Codec, ValueMismatchError, fetch_references
from ottla.spark.options import OptionError, Options
from ottla.spark.values.derive import derive_schema
from ottla.spark.values.options import FORMATS, REGISTRY_OPTIONS, SCHEMA_TYPES, RegistrySettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructField, StructType

    from ottla.schemas.registry_client import RegistryClient

ENCODE_OPTIONS: Final = (
    *REGISTRY_OPTIONS,
    *(f"{column}{name}" for column in ("value", "key") for name in ("Format", "Subject", "Schema")),
    "registerSchemas",
)


class EncodingError(Exception):
    """A row that the schema does not describe; the message has the field and the reason."""


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The schema by which one column is encoded; sent to executors."""

    column: str
    schema_id: int
    type: str
    text: str
    references: tuple[tuple[str, str], ...]


class RowEncoder:
    """Encodes values of one column on an executor."""

    def __init__(self, encoding: ColumnEncoding) -> None:
        schema = parse_schema(encoding.type, encoding.text, dict(encoding.references))
        self._encoding = encoding
        self._encode = Codec(schema).encode
        self._prepare: Callable[[Any], Any] = _plain
        if isinstance(schema, AvroSchema):
            self._prepare = _avro_converter(schema.root)

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the column as framed bytes; null stays null."""
        schema_id, encode, prepare = self._encoding.schema_id, self._encode, self._prepare
        try:
            framed = [
                None if value is None else frame(schema_id, encode(prepare(value)))
                for value in column.to_pylist(maps_as_pydicts="strict")
            ]
        except ValueMismatchError as error:
            raise EncodingError(
                f"a row's {self._encoding.column} cannot be encoded with schema id {schema_id}: {error}"
            ) from error
        return pa.array(framed, pa.binary())


def split_encodings(
    given: Mapping[str, str], schema: StructType
) -> tuple[tuple[ColumnEncoding, ...], dict[str, str], StructType]:
    """Return the encodings, and options and columns as the writer behind them sees them.

    Registers schemas if `registerSchemas` allows it; OptionError if the registry or the options do not fit.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    names = {name.lower() for name in ENCODE_OPTIONS}
    mine = {name: value for name, value in given.items() if name.lower() in names}
    rest = {name: value for name, value in given.items() if name.lower() not in names}
    if not mine:
        return (), rest, schema
    options = Options("ottla", mine, ENCODE_OPTIONS)
    topic = next((value for name, value in given.items() if name.lower() == "topic"), None)
    encodings = tuple(
        _prepare_column(options, column, topic, schema)
        for column in ("value", "key")
        if options.text(f"{column}Format") is not None
    )
    if not encodings:
        raise OptionError(f'{sorted(mine)[0]} requires a format, for example .option("valueFormat", "avro")')
    encoded = {encoding.column for encoding in encodings}
    fields = [
        StructField(field.name, BinaryType(), True) if field.name.lower() in encoded else field
        for field in schema.fields
    ]
    return encodings, rest, StructType(fields)


def encoded_writer(writer: DataSourceWriter, encodings: tuple[ColumnEncoding, ...]) -> DataSourceWriter:
    """Put the encodings in front of a batch writer."""
    return EncodedWriter(writer, encodings) if encodings else writer


def encoded_stream_writer(
    writer: DataSourceStreamWriter, encodings: tuple[ColumnEncoding, ...]
) -> DataSourceStreamWriter:
    """Put the encodings in front of a stream writer."""
    return EncodedStreamWriter(writer, encodings) if encodings else writer


def encode_batches(
    batches: Iterator[pa.RecordBatch], encodings: tuple[ColumnEncoding, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield batches with their columns encoded."""
    encoders = {encoding.column: RowEncoder(encoding) for encoding in encodings}
    for batch in batches:
        arrays, names = [], batch.schema.names
        for position, name in enumerate(names):
            column = batch.column(position)
            encoder = encoders.get(name.lower())
            arrays.append(column if encoder is None else encoder.encode(column))
        yield pa.RecordBatch.from_arrays(arrays, names=names)


class EncodedWriter(DataSourceArrowWriter):
    """Encodes in front of a batch writer."""

    def __init__(self, writer: DataSourceWriter, encodings: tuple[ColumnEncoding, ...]) -> None:
        self._writer = writer
        self._encodings = encodings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode and send the rows of one task."""
        return self._writer.write(encode_batches(iterator, self._encodings))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit."""
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort."""
        self._writer.abort(messages)


class EncodedStreamWriter(DataSourceStreamArrowWriter):
    """Encodes in front of a stream writer."""

    def __init__(self, writer: DataSourceStreamWriter, encodings: tuple[ColumnEncoding, ...]) -> None:
        self._writer = writer
        self._encodings = encodings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Encode and send the rows of one task."""
        return self._writer.write(encode_batches(iterator, self._encodings))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit a micro-batch."""
        self._writer.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort a micro-batch."""
        self._writer.abort(messages, batchId)


def _prepare_column(options: Options, column: str, topic: str | None, schema: StructType) -> ColumnEncoding:
    field = next((field for field in schema.fields if field.name.lower() == column), None)
    if field is None:
        raise OptionError(f"{column}Format is set, and there is no column {column}: {', '.join(schema.names)}")
    subject = options.text(f"{column}Subject") or (f"{topic}-{column}" if topic else None)
    if subject is None:
        raise OptionError(f"{column}Subject is required without the option topic: the column topic names several")
    client = RegistrySettings.parse(options).client()
    try:
        encoding = _choose(options, column, subject, field, client)
        _check_fields(encoding, field)
    except RegistryRefusedError as error:
        raise OptionError(f"the registry refuses the schema for subject {subject}: {error}") from error
    except RegistryUnreachableError as error:
        raise OptionError(f"schemaRegistryUrl: {error}") from error
    except InvalidSchemaError as error:
        raise OptionError(f"{column}Schema: {error}") from error
    return encoding


def _choose(options: Options, column: str, subject: str, field: StructField, client: RegistryClient) -> ColumnEncoding:
    """Return the schema of the options: one to register, or one that the subject has."""
    format_ = options.choice(f"{column}Format", FORMATS, FORMATS[0])
    chosen = (options.text(f"{column}Schema") or "").strip()
    allowed = options.boolean("registerSchemas", False)
    is_text = bool(chosen) and chosen != "latest" and not chosen.isdigit() and not chosen.startswith("id:")
    if is_text or (allowed and not chosen):
        if format_ == "registry":
            raise OptionError(f"{column}Format must be avro, json-schema or protobuf to register a schema")
        type_ = SCHEMA_TYPES[format_]
        text = chosen if is_text else derive_schema(field.dataType, type_, subject)
        parse_schema(type_, text)
        request = {"schema": text, "schemaType": type_}
        if allowed:
            schema_id = client.register(subject, request)["id"]
        else:
            schema_id = _lookup(client, subject, request)
        return ColumnEncoding(column, schema_id, type_, text, ())
    try:
        if chosen.startswith("id:"):
            schema_id = int(chosen.removeprefix("id:"))
            version = client.schema(schema_id)
        else:
            version = client.version(subject, chosen or "latest")
            schema_id = version["id"]
    except RegistryRefusedError as error:
        if not error.is_missing:
            raise
        raise OptionError(
            f"the registry has no such schema of subject {subject} ({error.message}): register one, or let "
            "registerSchemas=true register one that describes the column"
        ) from error
    type_ = version.get("schemaType") or "AVRO"
    if format_ != "registry" and SCHEMA_TYPES[format_] != type_:
        raise OptionError(f"{column}Format is {format_}, and subject {subject} has a schema of type {type_}")
    return ColumnEncoding(column, schema_id, type_, version["schema"], tuple(fetch_references(client, version).items()))


def _lookup(client: RegistryClient, subject: str, request: dict[str, Any]) -> int:
    from urllib.parse import quote

    try:
        schema_id: int = client.call("POST", f"/subjects/{quote(subject, safe='')}", request)["id"]
    except RegistryRefusedError as error:
        if not error.is_missing:
            raise
        raise OptionError(
            f"subject {subject} does not have this schema: register it, or let registerSchemas=true do that"
        ) from error
    return schema_id


def _check_fields(encoding: ColumnEncoding, field: StructField) -> None:
    """Refuse a column with fields that the schema has not: they would be lost."""
    from ottla.spark.values.schemas import type_of_schema

    kind = type_of_schema(parse_schema(encoding.type, encoding.text, dict(encoding.references)))
    names = getattr(field.dataType, "names", None)
    if names is None:
        return
    if kind.kind != "struct":
        raise OptionError(f"the column {field.name} is a struct, and schema id {encoding.schema_id} describes {kind}")
    known = [name for name, _ in kind.fields]
    missing = [name for name in names if name not in known]
    if missing:
        raise OptionError(
            f"schema id {encoding.schema_id} has no field {', '.join(missing)}: drop it, or register a schema with it "
            f"(its fields are {', '.join(known)})"
        )


def _avro_converter(type_: Type) -> Callable[[Any], Any]:
    """Return a function that turns a value of a column into one that fastavro writes: unions name their branch."""
    if isinstance(type_, Record):
        fields = [(field.name, _avro_converter(field.type)) for field in type_.fields]
        defaults = {field.name: _default(field.type, field.default) for field in type_.fields if field.has_default}

        def record(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return defaults | {name: convert(value[name]) for name, convert in fields if name in value}

        return record
    if isinstance(type_, Array):
        item = _avro_converter(type_.items)
        return lambda value: [item(entry) for entry in value] if isinstance(value, list) else value
    if isinstance(type_, Map):
        item = _avro_converter(type_.values)
        return lambda value: {k: item(v) for k, v in value.items()} if isinstance(value, dict) else value
    if isinstance(type_, Union):
        return _union_converter(type_)
    return _same


def _default(type_: Type, value: Any) -> Any:
    """Return the JSON of a default as fastavro writes it: bytes are strings there."""
    if isinstance(value, str) and type_.kind in ("bytes", "fixed"):
        return value.encode("latin-1")
    if isinstance(type_, Record) and isinstance(value, dict):
        return {
            field.name: _default(field.type, value.get(field.name, field.default))
            for field in type_.fields
            if field.name in value or field.has_default
        }
    return value


def _union_converter(union: Union) -> Callable[[Any], Any]:
    branches = [branch for branch in union.branches if branch.kind != "null"]
    converters = [_avro_converter(branch) for branch in branches]
    if len(branches) == 1:
        return lambda value: None if value is None else converters[0](value)
    if all(branch.kind in ("int", "long", "float", "double") for branch in branches):
        return _same
    names = [branch.full_name if isinstance(branch, Named) else branch.kind for branch in branches]

    def member(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for number, name in enumerate(names):
            if value.get(f"member{number}") is not None:
                return name, converters[number](value[f"member{number}"])
        return None

    return member


def _same(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, for JSON Schema and for Protobuf; null fields are left out."""
    match value:
        case dict():
            return {name: _plain(entry) for name, entry in value.items() if entry is not None}
        case list():
            return [_plain(entry) for entry in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if value.tzinfo is not None:
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
    return value
