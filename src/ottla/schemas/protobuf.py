"""Protobuf schemas: descriptors that google.protobuf checks, and Confluent's compatibility rules."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ottla.schemas.proto_difference import COMPATIBLE, compare
from ottla.schemas.proto_syntax import Enum, Field, File, Message, parse_file, write_file
from ottla.schemas.schema import InvalidSchemaError, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAP: Final = re.compile(r"map<(\S+), (\S+)>\Z")
_SCALARS: Final = (
    "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes",
    "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64",
)  # fmt: skip
"""Types of FieldDescriptorProto in the order of their numbers, from 1."""
_WELL_KNOWN: Final = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
    "wrappers",
)  # fmt: skip


class ProtobufSchema(Schema):
    """A parsed .proto file."""

    type: ClassVar[str] = "PROTOBUF"

    def __init__(self, file: File, dependencies: Mapping[str, File]) -> None:
        self.file = file
        self.dependencies = dict(dependencies)

    @classmethod
    def parse(cls, text: str, references: Mapping[str, str] | None = None) -> ProtobufSchema:
        """Parse a .proto file, or a serialized FileDescriptorProto in base64; `references` has what it imports."""
        schema = cls(parse_file(text), {name: parse_file(reference) for name, reference in (references or {}).items()})
        schema.pool  # noqa: B018 - building the descriptors checks names, numbers and types
        return schema

    def canonical(self) -> str:
        """Return the file as Confluent's registry prints it."""
        return write_file(self.file)

    def normalized(self) -> ProtobufSchema:
        """Return the file with options, imports and fields in a fixed order."""
        file = replace(
            self.file,
            imports=sorted(set(self.file.imports)),
            options=sorted(self.file.options, key=lambda option: option.name),
            types=[_normalized(type_) for type_ in self.file.types],
        )
        return ProtobufSchema(file, self.dependencies)

    def resolved(self) -> str:
        """Return the file; what it imports stays apart, as in Confluent's registry."""
        return self.canonical()

    def differences(self, writer: Schema) -> list[str]:
        """Return the incompatible differences in Confluent's words."""
        if not isinstance(writer, ProtobufSchema):
            return ["Incompatible because of different schema type"]
        found = compare(writer.file, writer.dependencies, self.file, self.dependencies)
        return [difference.message() for difference in found if difference.type not in COMPATIBLE]

    @cached_property
    def pool(self) -> Any:
        """Build the descriptors of this file and of what it imports; return a google.protobuf DescriptorPool."""
        from google.protobuf import descriptor_pool

        pool = descriptor_pool.DescriptorPool()
        added: set[str] = set()
        for path in _imports(self.file):
            self._add(pool, path, added, ())
        _build(pool, self.file, "schema.proto")
        return pool

    def message_names(self) -> list[str]:
        """Return the full names of all messages in the order of their message indexes."""
        prefix = f"{self.file.package}." if self.file.package else ""
        return [prefix + name for name in _message_names(self.file.types)]

    def _add(self, pool: Any, path: str, added: set[str], parents: tuple[str, ...]) -> None:
        if path in added:
            return
        if path in parents:
            raise InvalidSchemaError(f"{path} imports itself through {' and '.join(parents)}")
        file = self.dependencies.get(path)
        if file is not None:
            for imported in _imports(file):
                self._add(pool, imported, added, (*parents, path))
            _build(pool, file, path)
        else:
            _add_well_known(pool, path, added)
        added.add(path)


def _imports(file: File) -> list[str]:
    return [path for _, path in file.imports]


def _message_names(types: list[Message | Enum]) -> Iterator[str]:
    for type_ in types:
        if isinstance(type_, Message):
            yield type_.name
            yield from (f"{type_.name}.{name}" for name in _message_names(type_.types))


def _normalized(type_: Message | Enum) -> Message | Enum:
    if isinstance(type_, Enum):
        return replace(type_, constants=sorted(type_.constants, key=lambda constant: constant.number))
    return Message(
        type_.name,
        sorted(type_.fields, key=lambda entry: entry.number),
        [replace(oneof, fields=sorted(oneof.fields, key=lambda entry: entry.number)) for oneof in type_.oneofs],
        [_normalized(nested) for nested in type_.types],
        sorted(type_.options, key=lambda option: option.name),
        type_.reserved,
        type_.ranges,
        type_.extends,
    )


def _add_well_known(pool: Any, path: str, added: set[str]) -> None:
    from importlib import import_module

    name = path.removeprefix("google/protobuf/").removesuffix(".proto")
    if not path.startswith("google/protobuf/") or name not in _WELL_KNOWN:
        raise InvalidSchemaError(f"{path} is imported, but it is not among the references")
    module = import_module(f"google.protobuf.{name}_pb2")
    for dependency in module.DESCRIPTOR.dependencies:
        if dependency.name not in added:
            _add_well_known(pool, dependency.name, added)
            added.add(dependency.name)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _build(pool: Any, file: File, name: str) -> None:
    try:
        pool.AddSerializedFile(_file_descriptor(file, name).SerializeToString())
        pool.FindFileByName(name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchemaError(str(error).replace("Couldn't build proto file into descriptor pool: ", "")) from None


def _file_descriptor(file: File, name: str) -> Any:
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
