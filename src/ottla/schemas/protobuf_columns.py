"""Protobuf messages as columns: the column types of a message, and the conversion of messages to them.

Timestamps become timestamps and wrappers their values. A field without presence that is not in the data has its
default; any other is null.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ottla.schemas.column_types import STRING, ColumnType, NoColumnsError, list_of, map_of, struct_of
from ottla.schemas.kernel import protobuf as _numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.schemas.protobuf import ProtobufSchema

MAX_TYPES: Final = 20_000
_SCALARS: Final = {
    1: "double", 2: "float", 3: "long", 4: "uint64", 5: "int", 6: "uint64", 7: "long", 8: "boolean", 9: "string",
    12: "bytes", 13: "long", 15: "int", 16: "long", 17: "int", 18: "long",
}  # fmt: skip
_ENUM: Final = 14
_MESSAGE: Final = 11
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_UINT64: Final = ColumnType("decimal", (), 20, 0)


def find_message(schema: ProtobufSchema, name: str | None) -> Any:
    """Return the descriptor of a message by its full name, or of the first one of the file."""
    messages = schema.message_names()
    if not messages:
        raise NoColumnsError("the schema has no message")
    if name is not None and name not in messages:
        raise NoColumnsError(f"the schema has no message {name}; it has {', '.join(messages)}")
    return schema.pool.FindMessageTypeByName(name or messages[0])


def column_type(schema: ProtobufSchema, message: str | None = None) -> ColumnType:
    """Return the type of the column that messages become."""
    return _Types().message(find_message(schema, message), ())


def message_fields(schema: ProtobufSchema, message: str | None = None) -> dict[str, Any]:
    """Return the fields of a message as a tree of names."""
    return _tree(column_type(schema, message))


def _tree(type_: ColumnType) -> dict[str, Any]:
    if type_.kind in ("list", "map"):
        return _tree(type_.fields[-1][1])
    return {name: _tree(field) for name, field in type_.fields}


class _Types:
    """Turns descriptors into types of columns, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def message(self, descriptor: Any, parents: tuple[str, ...]) -> ColumnType:
        name = descriptor.full_name
        if name == "google.protobuf.Timestamp":
            return ColumnType("timestamp")
        if name in _WRAPPERS:
            return self.single(descriptor.fields_by_name["value"], parents)
        if name in _JSON:
            return STRING
        if name in parents:
            raise NoColumnsError(
                f"the schema is recursive: the message {name} contains itself, and tables have no recursive types; "
                "give a reader schema without that field"
            )
        inside = (*parents, name)
        return struct_of([(field.name, self.field(field, inside)) for field in descriptor.fields])

    def field(self, field: Any, parents: tuple[str, ...]) -> ColumnType:
        if _is_map(field):
            entry = field.message_type.fields_by_name
            return map_of(self.single(entry["value"], parents), self.single(entry["key"], parents))
        return list_of(self.single(field, parents)) if field.is_repeated else self.single(field, parents)

    def single(self, field: Any, parents: tuple[str, ...]) -> ColumnType:
        self._count += 1
        if self._count > MAX_TYPES:
            raise NoColumnsError(f"the schema has more than {MAX_TYPES} types")
        if field.message_type is not None:
            return self.message(field.message_type, parents)
        if field.type == _ENUM:
            return STRING
        kind = _SCALARS[field.type]
        return _UINT64 if kind == "uint64" else ColumnType(kind)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.is_repeated and field.message_type.GetOptions().map_entry


def converter(descriptor: Any) -> Callable[[Any], Any]:
    """Return a function that turns a parsed message into a value of its column."""
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return lambda message: message.seconds * 1_000_000 + message.nanos // 1000
    if name in _WRAPPERS:
        return _single(descriptor.fields_by_name["value"], lambda message: message.value)
    if name in _JSON:
        return _json_text
    fields = [(field.name, _field(field)) for field in descriptor.fields]
    return lambda message: {name: convert(message) for name, convert in fields}


def _json_text(message: Any) -> str:
    import json

    from google.protobuf import json_format

    return json.dumps(json_format.MessageToDict(message), separators=(",", ":"), ensure_ascii=False)


def _field(field: Any) -> Callable[[Any], Any]:
    name = field.name

    def value(message: Any) -> Any:
        return getattr(message, name)

    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, item = _single(entry["key"], _itself), _single(entry["value"], _itself)
        return lambda message: [(key(name_), item(entry_)) for name_, entry_ in sorted(value(message).items())]
    if field.is_repeated:
        item = _single(field, _itself)
        return lambda message: [item(entry_) for entry_ in value(message)]
    single = _single(field, value)
    if field.has_presence:
        return lambda message: single(message) if message.HasField(name) else None
    return single


def _itself(value: Any) -> Any:
    return value


def _single(field: Any, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if field.message_type is not None:
        convert = converter(field.message_type)
        return lambda message: convert(value(message))
    if field.type == _ENUM:
        names = {number: entry.name for number, entry in field.enum_type.values_by_number.items()}
        return lambda message: names.get(value(message), str(value(message)))
    if _SCALARS[field.type] == "uint64":
        return lambda message: Decimal(value(message))
    return value


_NUMBERS: Final = {
    1: _numbers.NUMBER_DOUBLE,
    2: _numbers.NUMBER_FLOAT,
    3: _numbers.NUMBER_INT64,
    4: _numbers.NUMBER_UINT64,
    5: _numbers.NUMBER_INT32,
    6: _numbers.NUMBER_FIXED64,
    7: _numbers.NUMBER_FIXED32,
    8: _numbers.NUMBER_BOOL,
    13: _numbers.NUMBER_UINT32,
    15: _numbers.NUMBER_SFIXED32,
    16: _numbers.NUMBER_SFIXED64,
    17: _numbers.NUMBER_SINT32,
    18: _numbers.NUMBER_SINT64,
}


def compile_message(descriptor: Any, column: Any, kernel: Any) -> Any:
    """Return the kernel's step for a message, or None if it has types that only google.protobuf reads.

    These are Timestamp, wrappers, JSON values, maps, groups and closed enums.
    """
    fields = []
    for field, target in zip(descriptor.fields, column.fields, strict=True):
        step = _compile_field(field, target, kernel)
        if step is None:
            return None
        fields.append(step)
    return kernel.MessageStep(column, fields)


def _compile_field(field: Any, column: Any, kernel: Any) -> Any:
    if field.message_type is not None and field.type != _MESSAGE:
        return None
    if _is_map(field):
        return None  # the last entry of a key counts, which columns cannot tell
    items = column if field.is_repeated else None
    target = column.items if field.is_repeated else column
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == "google.protobuf.Timestamp" or name in _WRAPPERS or name in _JSON:
            return None
        message = compile_message(field.message_type, target, kernel)
        return None if message is None else kernel.MessageField(field.number, message, items)
    if field.type == _ENUM:
        if field.enum_type.is_closed:
            return None
        names = {number: entry.name.encode() for number, entry in field.enum_type.values_by_number.items()}
        default = None if field.has_presence else names.get(0)
        return kernel.EnumField(field.number, target, names, items, default)
    if _SCALARS[field.type] in ("string", "bytes"):
        return kernel.BytesField(field.number, target, items, field.has_presence)
    return kernel.NumberField(field.number, target, _NUMBERS[field.type], items, field.has_presence)
