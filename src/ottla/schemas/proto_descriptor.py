"""FileDescriptorProtos from .proto trees, and back.

Clients may register a serialized descriptor in base64 in place of the text of a file.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, Final

from ottla.schemas.proto_syntax import Constant, Enum, Field, File, Message, OneOf, Option
from ottla.schemas.schema import MAX_SCHEMA_BYTES, InvalidSchemaError

_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*\Z")
_MAP: Final = re.compile(r"map<(\S+), (\S+)>\Z")
_SCALARS: Final = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
    "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
"""Types of FieldDescriptorProto in the order of their numbers, from 1."""
_LABELS: Final = {1: "optional", 2: "required", 3: "repeated"}
_MAX_RANGE: Final = 536_870_912


def decode_file(text: str) -> File | None:
    """Return the tree of a serialized descriptor in base64; None if the text is not one."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    if len(text) > MAX_SCHEMA_BYTES or not text.strip() or not _BASE64.match(text):
        return None
    proto = FileDescriptorProto()
    try:
        proto.ParseFromString(base64.b64decode(text, validate=False))
    except (binascii.Error, DecodeError, ValueError):
        return None
    if proto.syntax not in ("", "proto2", "proto3") or proto.HasField("edition"):
        raise InvalidSchemaError(f"unsupported syntax {proto.syntax!r}: use proto2 or proto3")
    return from_descriptor(proto) if proto.name or proto.message_type or proto.enum_type else None


def from_descriptor(proto: Any) -> File:
    """Return a FileDescriptorProto as a tree. Services, extensions and custom options are left out."""
    proto3 = proto.syntax == "proto3"
    public = set(proto.public_dependency)
    return File(
        syntax=proto.syntax or "proto2",
        package=proto.package,
        imports=[("public" if index in public else "", path) for index, path in enumerate(proto.dependency)],
        options=_options(proto.options),
        types=[
            *(_message(message, proto3) for message in proto.message_type),
            *(_enum(enum) for enum in proto.enum_type),
        ],
    )


def _message(proto: Any, proto3: bool) -> Message:
    maps = {nested.name: nested for nested in proto.nested_type if nested.options.map_entry}
    message = Message(proto.name, options=_options(proto.options))
    oneofs = [OneOf(oneof.name) for oneof in proto.oneof_decl]
    for field in proto.field:
        entry = _field(field, maps, proto3)
        if field.HasField("oneof_index") and not field.proto3_optional:
            entry.label = None
            oneofs[field.oneof_index].fields.append(entry)
        else:
            message.fields.append(entry)
    message.oneofs = [oneof for oneof in oneofs if oneof.fields]
    message.types = [_message(nested, proto3) for nested in proto.nested_type if nested.name not in maps]
    message.types += [_enum(enum) for enum in proto.enum_type]
    ranges = [_range(entry.start, entry.end - 1) for entry in proto.reserved_range]
    message.reserved = [", ".join(ranges)] if ranges else []
    if proto.reserved_name:
        message.reserved.append(", ".join(json.dumps(name) for name in proto.reserved_name))
    if proto.extension_range:
        message.ranges = [", ".join(_range(entry.start, entry.end - 1) for entry in proto.extension_range)]
    return message


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last + 1 >= _MAX_RANGE else last}"


def _field(proto: Any, maps: dict[str, Any], proto3: bool) -> Field:
    pair = maps.get(proto.type_name.rpartition(".")[2]) if proto.label == 3 and proto.type_name else None
    options = _options(proto.options)
    if proto.HasField("default_value"):
        quoted = proto.type in (9, 12)
        options.insert(0, Option("default", json.dumps(proto.default_value) if quoted else proto.default_value))
    if pair is not None:
        key, value = (_type(entry) for entry in pair.field)
        return Field(proto.name, f"map<{key}, {value}>", proto.number, None, options)
    label: str | None = _LABELS[proto.label or 1]
    if proto3 and label == "optional" and not proto.proto3_optional:
        label = None
    return Field(proto.name, _type(proto), proto.number, label, options)


def _type(proto: Any) -> str:
    return str(proto.type_name) if proto.type_name else _SCALARS[proto.type - 1]


def _enum(proto: Any) -> Enum:
    constants = [Constant(value.name, value.number, _options(value.options)) for value in proto.value]
    return Enum(proto.name, constants, _options(proto.options))


def _options(proto: Any) -> list[Option]:
    options = []
    for descriptor, value in proto.ListFields():
        if descriptor.name in ("map_entry", "uninterpreted_option") or descriptor.is_extension:
            continue
        if descriptor.enum_type is not None and not isinstance(value, list):
            options.append(Option(descriptor.name, descriptor.enum_type.values_by_number[value].name))
        elif isinstance(value, bool | str | int):
            options.append(Option(descriptor.name, json.dumps(value)))
    return options


def to_descriptor(file: File, name: str) -> Any:
    """Return a file as a FileDescriptorProto; names of types stay relative, google.protobuf resolves them."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    proto = FileDescriptorProto(name=name, package=file.package, syntax=file.syntax or "proto2")
    for position, (modifier, path) in enumerate(file.imports):
        proto.dependency.append(path)
        if modifier == "public":
            proto.public_dependency.append(position)
    for type_ in file.types:
        _fill_type(type_, proto.message_type, proto.enum_type, file)
    return proto


def _fill_type(type_: Message | Enum, messages: Any, enums: Any, file: File) -> None:
    if isinstance(type_, Enum):
        enum = enums.add(name=type_.name)
        for constant in type_.constants:
            enum.value.add(name=constant.name, number=constant.number)
        enum.options.allow_alias = any(
            option.name == "allow_alias" and option.value == "true" for option in type_.options
        )
        if not enum.options.allow_alias:
            enum.ClearField("options")
        return
    message = messages.add(name=type_.name)
    for entry in type_.fields:
        _fill_field(entry, message, None, file)
    for oneof in type_.oneofs:
        message.oneof_decl.add(name=oneof.name)
        for entry in oneof.fields:
            _fill_field(entry, message, len(message.oneof_decl) - 1, file)
    for entry in type_.fields:  # synthetic oneofs come after the others
        if entry.label == "optional" and file.syntax == "proto3":
            target = next(field for field in message.field if field.name == entry.name)
            message.oneof_decl.add(name=f"_{entry.name}")
            target.oneof_index = len(message.oneof_decl) - 1
            target.proto3_optional = True
    for nested in type_.types:
        _fill_type(nested, message.nested_type, message.enum_type, file)


def _fill_field(entry: Field, message: Any, oneof: int | None, file: File) -> None:
    target = message.field.add(name=entry.name, number=entry.number, label=1)
    if entry.label is not None:
        target.label = {"optional": 1, "required": 2, "repeated": 3}[entry.label]
    match = _MAP.match(entry.type)
    if match is not None:
        pair = message.nested_type.add(name=_camel(entry.name) + "Entry")
        pair.options.map_entry = True
        _fill_field(Field("key", match.group(1), 1), pair, None, file)
        _fill_field(Field("value", match.group(2), 2), pair, None, file)
        target.label, target.type, target.type_name = 3, 11, pair.name
    elif entry.type in _SCALARS:
        target.type = _SCALARS.index(entry.type) + 1
    else:
        target.type_name = entry.type
        if any(option.name == "group" for option in entry.options):
            target.type = 10
    if oneof is not None:
        target.oneof_index = oneof
    for option in entry.options:
        if option.name == "packed":
            target.options.packed = option.value == "true"


def _camel(name: str) -> str:
    return "".join(part.capitalize() if part.islower() else part[:1].upper() + part[1:] for part in name.split("_"))
