"""Protobuf schemas: descriptors that google.protobuf checks, and Confluent's compatibility rules."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ottla.schemas.proto_descriptor import decode_file, to_descriptor
from ottla.schemas.proto_difference import COMPATIBLE, compare
from ottla.schemas.proto_syntax import Enum, File, Message, parse_file, write_file
from ottla.schemas.schema import InvalidSchemaError, Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        schema = cls(_parse(text), {name: _parse(reference) for name, reference in (references or {}).items()})
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

    def formatted(self, format_: str) -> str:
        """Return the file; `serialized` is its FileDescriptorProto in base64."""
        if format_ == "serialized":
            return base64.b64encode(self.pool.FindFileByName("schema.proto").serialized_pb).decode()
        if format_ == "ignore_extensions":
            return self.canonical()
        return super().formatted(format_)

    def differences(self, writer: Schema, *, lenient: bool = False) -> list[str]:
        """Return the incompatible differences in Confluent's words."""
        if not isinstance(writer, ProtobufSchema):
            return ["Incompatible because of different schema type"]
        all_differences = compare(writer.file, writer.dependencies, self.file, self.dependencies)
        return [difference.message() for difference in all_differences if difference.type not in COMPATIBLE]

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


def _parse(text: str) -> File:
    return decode_file(text) or parse_file(text)


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
        pool.AddSerializedFile(to_descriptor(file, name).SerializeToString())
        pool.FindFileByName(name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchemaError(str(error).replace("Couldn't build proto file into descriptor pool: ", "")) from None
