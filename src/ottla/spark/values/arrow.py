"""Arrow arrays of decoded columns: the kernel's buffers wrapped without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from ottla.schemas import kernel
    from ottla.schemas.column_types import ColumnType

_SIMPLE: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(type_: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column, with the field names that Spark gives to elements and entries."""
    match type_.kind:
        case "struct":
            return pa.struct([pa.field(name, arrow_type(field)) for name, field in type_.fields])
        case "list":
            return pa.list_(pa.field("element", arrow_type(type_.fields[0][1])))
        case "map":
            (_, key), (_, value) = type_.fields
            return pa.map_(pa.field("key", arrow_type(key), nullable=False), pa.field("value", arrow_type(value)))
        case "decimal":
            return pa.decimal128(type_.precision, type_.scale)
    return _SIMPLE[type_.kind]


class InvalidTextError(ValueError):
    """A string is no UTF-8."""


def take_array(column: Any, type_: ColumnType, *, strict: bool = False) -> pa.Array:
    """Return the rows of a column and empty it.

    Bytes of a string that are no UTF-8 are replaced, as Java does. With `strict` they raise InvalidTextError, after
    which the column cannot be used any longer.
    """
    length = column.length
    validity = _buffer(column.take_validity())
    kind = arrow_type(type_)
    match type_.kind:
        case "null":
            array = pa.nulls(length)
        case "boolean":
            data = pa.Array.from_buffers(pa.uint8(), length, [validity, _used(column.data)])
            array = data.cast(pa.bool_())
        case "string" | "bytes":
            buffers = [validity, _used(column.offsets), _used(column.data)]
            array = pa.Array.from_buffers(kind, length, buffers)
            if type_.kind == "string":
                array = _valid_text(array, buffers, strict)
        case "struct":
            fields = [
                take_array(child, field, strict=strict)
                for child, (_, field) in zip(column.fields, type_.fields, strict=True)
            ]
            array = pa.Array.from_buffers(kind, length, [validity], children=fields)
        case "list":
            items = take_array(column.items, type_.fields[0][1], strict=strict)
            array = pa.Array.from_buffers(kind, length, [validity, _used(column.offsets)], children=[items])
        case "map":
            array = _take_map(column, type_, kind, validity, strict)
        case _:
            array = pa.Array.from_buffers(kind, length, [validity, _used(column.data)])
    column.begin()
    return array


def _take_map(column: Any, type_: ColumnType, kind: pa.MapType, validity: pa.Buffer | None, strict: bool) -> pa.Array:
    length, entries = column.length, column.items
    fields = [
        take_array(child, field, strict=strict) for child, (_, field) in zip(entries.fields, type_.fields, strict=True)
    ]
    pairs = pa.StructArray.from_arrays(fields, fields=[kind.key_field, kind.item_field])
    array = pa.Array.from_buffers(kind, length, [validity, _used(column.offsets)], children=[pairs])
    entries.take_validity()
    entries.begin()
    return array


def _buffer(data: bytearray | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _used(buffer: kernel.Buffer) -> pa.Buffer:  # type: ignore[name-defined]
    used = buffer.used
    return pa.py_buffer(buffer.take())[:used]


def _valid_text(array: pa.Array, buffers: list[pa.Buffer | None], strict: bool) -> pa.Array:
    """Replace bytes that are no UTF-8 by the replacement character, as Java does."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if strict:
            raise InvalidTextError(str(error)) from error
        raw = pa.Array.from_buffers(pa.binary(), len(array), buffers).to_pylist()
        return pa.array([None if value is None else value.decode(errors="replace") for value in raw], pa.string())
    return array
