"""Decode an Arrow array of bytes: Avro with the kernel, JSON with Arrow's parser, Protobuf message by message."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from ottla.schemas import kernel
from ottla.schemas.avro import AvroSchema
from ottla.schemas.avro_columns import AvroDecoder, UnresolvableError
from ottla.schemas.column_types import make_column
from ottla.schemas.framing import FramingError, read_indexes
from ottla.schemas.json_columns import WrongTypeError, convert
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.protobuf import ProtobufSchema
from ottla.spark.values.arrow import InvalidTextError, take_array
from ottla.spark.values.decode import UndecodableError, frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.schemas.column_types import ColumnType
    from ottla.spark.values.decode import ColumnDecoder, Headers
    from ottla.spark.values.options import ColumnFormat

    Failed = Callable[[int, str], None]


class BatchDecoder(Protocol):
    """Decodes arrays of one column."""

    def decode(self, array: pa.Array, headers: Headers | None, failed: Failed) -> pa.Array:
        """Return the values; call `failed` with the row and the reason of each that cannot be decoded."""


def make_batch_decoder(owner: ColumnDecoder, format_: ColumnFormat) -> BatchDecoder:
    """Return the decoder for the type of the reader's schema."""
    is_key = format_.column == "key"
    if isinstance(owner.reader, AvroSchema):
        return _AvroBatches(owner, is_key)
    if isinstance(owner.reader, JsonSchema):
        return _JsonBatches(owner, is_key)
    assert format_.reader is not None
    return _ProtobufBatches(owner, is_key, format_.reader.message)


class _AvroBatches:
    """Runs of records with one schema id are decoded by one call of the kernel."""

    def __init__(self, owner: ColumnDecoder, is_key: bool) -> None:
        self._owner = owner
        self._is_key = is_key
        self._column = make_column(owner.type)
        self._decoders: dict[int | str, AvroDecoder | str] = {}

    def decode(self, array: pa.Array, headers: Headers | None, failed: Failed) -> pa.Array:
        validity, offsets, data = array.buffers()
        column = self._column
        column.truncate(0)  # rows of a batch that failed
        null_bitmap = validity if array.null_count else None
        rows = kernel.FramedRows(data or b"", offsets, null_bitmap, array.offset, len(array))
        if headers is not None:
            for row in range(rows.count):
                self._decode_row(rows, column, headers[row], failed)
            return take_array(column, self._owner.type)
        step, schema_id = kernel.Step(), -1
        while (status := rows.decode(step, column, schema_id)) != kernel.DONE:
            if status == kernel.OTHER_SCHEMA:
                decoder = self._decoder(rows.schema_id)
                if isinstance(decoder, str):
                    failed(rows.row, decoder)
                    rows.skip(column)
                else:
                    step, schema_id = decoder.step, rows.schema_id
            elif status == kernel.UNFRAMED:
                self._decode_row(rows, column, None, failed)
            else:
                decoder = self._decoders[schema_id]
                assert isinstance(decoder, AvroDecoder)
                failed(rows.row, f"{decoder.explain(rows.error)} (schema id {schema_id})")
                rows.skip(column)
        return take_array(column, self._owner.type)

    def _decode_row(self, rows: kernel.FramedRows, column: kernel.Column, headers: Any, failed: Failed) -> None:
        """Decode the next row alone: its schema is named by a header or a guid, or by nothing."""
        if rows.is_null():
            rows.skip(column)
            return
        try:
            identifier, prefix = frame_of(rows.value(rows.row), headers, is_key=self._is_key)
        except UndecodableError as error:
            failed(rows.row, str(error))
            rows.skip(column)
            return
        decoder = self._decoder(identifier)
        if isinstance(decoder, str):
            failed(rows.row, decoder)
            rows.skip(column)
        elif not rows.decode_row(decoder.step, column, prefix):
            failed(rows.row, f"{decoder.explain(rows.error)} (schema id {identifier})")
            rows.skip(column)

    def _decoder(self, identifier: int | str) -> AvroDecoder | str:
        if identifier not in self._decoders:
            try:
                writer = self._owner.writer(identifier)
                assert isinstance(writer, AvroSchema)
                assert isinstance(self._owner.reader, AvroSchema)
                self._decoders[identifier] = AvroDecoder(writer, self._owner.reader, self._column)
            except UnresolvableError as error:
                self._decoders[identifier] = f"{error} (schema id {identifier})"
            except UndecodableError as error:
                self._decoders[identifier] = str(error)
        return self._decoders[identifier]


class _PlainBatches:
    """Values that become Python objects first."""

    def __init__(self, owner: ColumnDecoder, is_key: bool) -> None:
        self._owner = owner
        self._is_key = is_key

    def decode(self, array: pa.Array, headers: Headers | None, failed: Failed) -> pa.Array:
        values: list[Any] = []
        for row, value in enumerate(array.to_pylist()):
            decoded = None
            if value is not None:
                try:
                    identifier, prefix = frame_of(value, headers[row] if headers else None, is_key=self._is_key)
                    decoded = self._read(identifier, value[prefix:])
                except UndecodableError as error:
                    failed(row, str(error))
            values.append(decoded)
        return self._array(values, failed)

    def _read(self, identifier: int | str, data: bytes) -> Any:
        raise NotImplementedError

    def _array(self, values: list[Any], failed: Failed) -> pa.Array:
        try:
            return pa.array(values, self._owner.arrow)
        except (pa.ArrowException, ValueError, OverflowError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self._owner.arrow)
                except (pa.ArrowException, ValueError, OverflowError) as error:
                    failed(row, f"not a value of {self._owner.type}: {error}")
                    values[row] = None
            return pa.array(values, self._owner.arrow)


class _JsonBatches(_PlainBatches):
    """Arrow parses a whole array at once; one with a value that it refuses is parsed value by value."""

    def __init__(self, owner: ColumnDecoder, is_key: bool) -> None:
        super().__init__(owner, is_key)
        self._is_parsed_by_arrow = owner.type.kind == "struct" and _is_parsed_by_arrow(owner.type)

    def decode(self, array: pa.Array, headers: Headers | None, failed: Failed) -> pa.Array:
        if headers is None and self._is_parsed_by_arrow and len(array):
            parsed = self._parse(array)
            if parsed is not None:
                return parsed
        return super().decode(array, headers, failed)

    def _parse(self, array: pa.Array) -> pa.Array | None:
        from pyarrow import json as arrow_json

        values = array.to_pylist()
        if array.null_count:
            return None
        for prefix in {value[:5] for value in values}:
            if len(prefix) < 5 or prefix[0]:
                return None
            try:
                self._owner.writer(int.from_bytes(prefix[1:], "big"))
            except UndecodableError:
                return None
        # One object for each line: as every line has at least one, as many objects as lines are one for each.
        payloads = [value[5:] for value in values]
        if not all(payload.strip() and b"\n" not in payload and b"\r" not in payload for payload in payloads):
            return None
        text = b"\n".join(payloads)
        options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(self._owner.arrow)), unexpected_field_behavior="ignore"
        )
        read = arrow_json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 20))
        try:
            table = arrow_json.read_json(pa.BufferReader(text), read, options)
        except pa.ArrowException:
            return None
        if len(table) != len(values):
            return None
        columns = [table.column(name).combine_chunks() for name, _ in self._owner.type.fields]
        return pa.StructArray.from_arrays(columns, fields=list(self._owner.arrow))

    def _read(self, identifier: int | str, data: bytes) -> Any:
        self._owner.writer(identifier)
        try:
            return convert(json.loads(data), self._owner.type)
        except WrongTypeError as error:
            raise UndecodableError(f"{error} (schema id {identifier})") from error
        except (ValueError, RecursionError) as error:
            raise UndecodableError(f"not JSON: {error} (schema id {identifier})") from error


def _is_parsed_by_arrow(type_: ColumnType) -> bool:
    """Return whether Arrow's parser of JSON knows a type: it has no maps, and structs without fields are all null."""
    if type_.kind == "struct":
        return bool(type_.fields) and all(_is_parsed_by_arrow(field) for _, field in type_.fields)
    if type_.kind == "list":
        return _is_parsed_by_arrow(type_.fields[0][1])
    return type_.kind in ("boolean", "long", "double", "string")


class _ProtobufBatches(_PlainBatches):
    """Messages are parsed with the reader's schema: Protobuf resolves by field numbers.

    The kernel decodes arrays whose messages are all plain; google.protobuf decodes any other, message by message.
    """

    def __init__(self, owner: ColumnDecoder, is_key: bool, message: str | None) -> None:
        from google.protobuf import message_factory

        from ottla.schemas.protobuf_columns import converter, find_message

        super().__init__(owner, is_key)
        assert isinstance(owner.reader, ProtobufSchema)
        descriptor = find_message(owner.reader, message)
        self._name: str = descriptor.full_name
        self._message = message_factory.GetMessageClass(descriptor)
        self._convert = converter(descriptor)
        self._descriptor = descriptor
        self._compile()
        self._checked: dict[tuple[int | str, bytes], str | None] = {}

    def decode(self, array: pa.Array, headers: Headers | None, failed: Failed) -> pa.Array:
        if headers is None and self._step is not None and len(array) and not array.null_count:
            decoded = self._decode_all(array)
            if decoded is not None:
                return decoded
        return super().decode(array, headers, failed)

    def _decode_all(self, array: pa.Array) -> pa.Array | None:
        """Decode messages of one schema with the kernel; return None if one of them is unusual."""
        first = array[0].as_py()
        try:
            identifier, start = frame_of(first, None, is_key=self._is_key)
            indexes, rest = read_indexes(first[start:])
            self._check(identifier, indexes)
        except (UndecodableError, FramingError):
            return None
        _, offsets, data = array.buffers()
        self._column.truncate(0)  # messages of an array that was unusual
        rows = kernel.compiled().MessageRows(data or b"", offsets, array.offset, len(array))
        if not rows.decode(self._step, first[: len(first) - len(rest)]):
            return None
        try:
            return take_array(self._column, self._owner.type, strict=True)
        except InvalidTextError:  # google.protobuf names the message
            self._compile()
            return None

    def _compile(self) -> None:
        from ottla.schemas.protobuf_columns import compile_message

        self._column = make_column(self._owner.type)
        self._step = compile_message(self._descriptor, self._column, kernel.compiled())

    def _read(self, identifier: int | str, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            indexes, rest = read_indexes(data)
            self._check(identifier, indexes)
            message = self._message()
            message.ParseFromString(rest)
            return self._convert(message)
        except (FramingError, DecodeError) as error:
            raise UndecodableError(f"not a message {self._name}: {error} (schema id {identifier})") from error

    def _check(self, identifier: int | str, indexes: tuple[int, ...]) -> None:
        """Raise UndecodableError unless the indexes name the reader's message in the writer's schema."""
        key = identifier, repr(indexes).encode()
        if key not in self._checked:
            writer = self._owner.writer(identifier)
            assert isinstance(writer, ProtobufSchema)
            self._checked[key] = _message_name(writer, indexes)
            if len(self._checked) > 1000:  # indexes are data: a hostile producer must not fill the memory
                self._checked = {key: self._checked[key]}
        name = self._checked[key]
        if name != self._name:
            raise UndecodableError(f"the value is a message {name or list(indexes)}, not {self._name}")


def _message_name(schema: ProtobufSchema, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message that indexes name."""
    messages = list(schema.pool.FindFileByName("schema.proto").message_types_by_name.values())
    descriptor = None
    for index in indexes:
        if not 0 <= index < len(messages):
            return None
        descriptor = messages[index]
        messages = [entry for entry in descriptor.nested_types if not entry.GetOptions().map_entry]
    return None if descriptor is None else str(descriptor.full_name)
