"""Protocol Buffers values: a descriptor set (`protoc --descriptor_set_out`) to columns, and messages to JSON."""

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
    """Return a function that decodes one value, and the columns as Spark DDL."""
    try:
        from google.protobuf import message as _there  # noqa: F401
    except ImportError:
        raise SchemaFileError("--value protobuf needs protobuf: pip install protobuf") from None
    with open(path, "rb") as file:
        described = file.read()
    columns = _struct(_class(described, message, path).DESCRIPTOR, 0)
    made: list[Any] = []

    def decode(value: bytes) -> Any:
        if not made:  # message classes cannot be pickled to executors; their descriptors can
            made.append(_class(described, message, path))
        decoded = made[0]()
        decoded.ParseFromString(value)
        return _plain(decoded)

    return decode, columns


def _plain(message: Any) -> Any:
    """Return a message as a dict, with numbers as numbers; an unset field is null where the schema has presence."""
    if message.DESCRIPTOR.full_name in _WELL_KNOWN:
        from google.protobuf import json_format

        if [field.name for field in message.DESCRIPTOR.fields] == ["value"]:
            return message.value
        return json_format.MessageToDict(message)
    plain: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        nested = field.message_type
        if nested is not None and nested.GetOptions().map_entry:
            plain[field.name] = {str(key): _one(nested.fields_by_name["value"], value[key]) for key in value}
        elif _repeated(field):
            plain[field.name] = [_one(field, item) for item in value]
        else:
            is_set = not field.has_presence or message.HasField(field.name)
            plain[field.name] = _one(field, value) if is_set else None
    return plain


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
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise SchemaFileError(
            f"{path} is no complete descriptor set ({error}): use protoc --include_imports --descriptor_set_out"
        ) from error
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        own = [file for file in files.file if not file.name.startswith("google/protobuf/")]
        names = sorted(f"{file.package}.{kind.name}".lstrip(".") for file in own for kind in file.message_type)
        raise SchemaFileError(f"{path} has no message {message}; it has {', '.join(names) or 'none'}") from None


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
    """Return whether a field is repeated; older releases of protobuf have a label instead of `is_repeated`."""
    known = getattr(field, "is_repeated", None)
    return field.label == 3 if known is None else bool(known)
