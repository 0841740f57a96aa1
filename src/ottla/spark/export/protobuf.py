"""Protocol Buffers: a descriptor set (`protoc --descriptor_set_out`) to columns, and messages to what JSON can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.spark.export.values import SchemaFileError

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST: Final = 20
# By the numbers of FieldDescriptor.TYPE_*.
_TYPES: Final = {
    1: "double",
    2: "float",
    3: "bigint",
    4: "decimal(20,0)",
    5: "int",
    6: "decimal(20,0)",
    7: "bigint",
    8: "boolean",
    9: "string",
    12: "binary",
    13: "bigint",
    14: "string",
    15: "int",
    16: "bigint",
    17: "int",
    18: "bigint",
}
_WELL_KNOWN: Final = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "string",
    "google.protobuf.StringValue": "string",
    "google.protobuf.BytesValue": "binary",
    "google.protobuf.Int64Value": "bigint",
    "google.protobuf.UInt64Value": "decimal(20,0)",
    "google.protobuf.Int32Value": "int",
    "google.protobuf.UInt32Value": "bigint",
    "google.protobuf.BoolValue": "boolean",
    "google.protobuf.FloatValue": "float",
    "google.protobuf.DoubleValue": "double",
    "google.protobuf.Struct": "string",  # JSON as it is
    "google.protobuf.Value": "string",
    "google.protobuf.ListValue": "string",
}


def protobuf_decoder(path: str, message: str) -> tuple[Callable[[bytes], Any], str]:
    """What decodes one value, and the columns as Spark's DDL has them."""
    try:
        from google.protobuf import message as _there  # noqa: F401
    except ImportError:
        raise SchemaFileError("--value protobuf needs protobuf: pip install protobuf") from None
    with open(path, "rb") as file:
        described = file.read()
    columns = _struct(_class(described, message, path).DESCRIPTOR, 0)
    made: list[Any] = []

    def decode(value: bytes) -> Any:
        if not made:  # message classes do not travel to executors; the bytes that describe them do
            made.append(_class(described, message, path))
        found = made[0]()
        found.ParseFromString(value)
        return _plain(found)

    return decode, columns


def _plain(message: Any) -> Any:
    """A message as a dict, with numbers as numbers; a field that is not set is null where the schema can tell."""
    if message.DESCRIPTOR.full_name in _WELL_KNOWN:
        from google.protobuf import json_format

        if [field.name for field in message.DESCRIPTOR.fields] == ["value"]:
            return message.value
        return json_format.MessageToDict(message)
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            found[field.name] = {str(key): _one(nested.fields_by_name["value"], value[key]) for key in value}
        elif _repeated(field):
            found[field.name] = [_one(field, each) for each in value]
        else:
            there = not field.has_presence or message.HasField(field.name)
            found[field.name] = _one(field, value) if there else None
    return found


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return name.name if name is not None else str(value)
    return value


def _class(described: bytes, message: str, path: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(described)
        pool = descriptor_pool.DescriptorPool()
        for each in files.file:
            pool.Add(each)
    except (DecodeError, TypeError) as error:
        raise SchemaFileError(
            f"{path} is no whole descriptor set ({error}): make one with protoc --include_imports --descriptor_set_out"
        ) from error
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        own = [each for each in files.file if not each.name.startswith("google/protobuf/")]
        there = sorted(f"{each.package}.{m.name}".lstrip(".") for each in own for m in each.message_type)
        raise SchemaFileError(f"{path} has no message {message}; it has {', '.join(there) or 'none'}") from None


def _struct(descriptor: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise SchemaFileError(f"message {descriptor.full_name} contains itself, which no column can hold")
    fields = [f"`{field.name}`: {_field(field, depth)}" for field in descriptor.fields]
    return f"struct<{', '.join(fields)}>"


def _field(field: Any, depth: int) -> str:
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        return f"map<string, {_single(nested.fields_by_name['value'], depth)}>"
    one = _single(field, depth)
    return f"array<{one}>" if _repeated(field) else one


def _single(field: Any, depth: int) -> str:
    if field.message_type is not None:
        return _WELL_KNOWN.get(field.message_type.full_name) or _struct(field.message_type, depth + 1)
    return _TYPES[field.type]


def _repeated(field: Any) -> bool:
    """Older releases of protobuf have a label in place of `is_repeated`."""
    known = getattr(field, "is_repeated", None)
    return field.label == 3 if known is None else bool(known)
