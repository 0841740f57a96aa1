"""Differences between two .proto files, and which of them a reader survives: Confluent's SchemaDiff for Protobuf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.schemas.proto_syntax import Enum, Field, File, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPATIBLE: Final = frozenset(
    (
        "MESSAGE_ADDED",
        "MESSAGE_MOVED",
        "ENUM_ADDED",
        "ENUM_REMOVED",
        "ENUM_CONST_ADDED",
        "ENUM_CONST_CHANGED",
        "ENUM_CONST_REMOVED",
        "FIELD_ADDED",
        "FIELD_REMOVED",
        "FIELD_NAME_CHANGED",
        "FIELD_STRING_OR_BYTES_LABEL_CHANGED",
        "ONEOF_ADDED",
        "ONEOF_REMOVED",
        "ONEOF_FIELD_ADDED",
        "ONEOF_FIELD_MOVED_TO_TOP_LEVEL",
    )
)
_MESSAGES: Final = {
    "PACKAGE_CHANGED": "The package at '{path}' in the %s schema does not match the package in the %s schema",
    "MESSAGE_REMOVED": "The %s schema is missing a MESSAGE type at path '{path}' in the %s schema",
    "FIELD_KIND_CHANGED": "The type of a field at path '{path}' in the %s schema does not match the %s schema",
    "FIELD_SCALAR_KIND_CHANGED": (
        "The kind of a SCALAR field at path '{path}' in the %s schema does not match its kind in the %s schema"
    ),
    "FIELD_NAMED_TYPE_CHANGED": (
        "The type of a MESSAGE field at path '{path}' in the %s schema does not match its type in the %s schema"
    ),
    "FIELD_NUMERIC_LABEL_CHANGED": (
        "The label for a NUMERIC field at path '{path}' in the %s schema does not match its label in the %s schema"
    ),
    "REQUIRED_FIELD_ADDED": "A required field  at path '{path}' in the %s schema is missing in the %s schema",
    "REQUIRED_FIELD_REMOVED": "The %s schema is missing a required field at path: '{path}' in the %s schema",
    "ONEOF_FIELD_REMOVED": "The %s schema is missing a oneof field at path '{path}' in the %s schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": (
        "Multiple fields in the oneof at path '{path}' in the %s schema are outside a oneof in the %s schema"
    ),
    "FIELD_MOVED_TO_EXISTING_ONEOF": (
        "A field in the oneof at path '{path}' in the %s schema is outside an existing oneof in the %s schema"
    ),
}
_MAP: Final = re.compile(r"map<(\S+), (\S+)>\Z")
_KINDS: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool"), "general number"),
    **dict.fromkeys(("sint32", "sint64"), "signed number"),
    **dict.fromkeys(("string", "bytes"), "string or bytes"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    "float": "float",
    "double": "double",
}
"""Scalar types by what may replace each other on the wire."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference and its path."""

    type: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.type} #/{'/'.join(self.path)}"

    def message(self) -> str:
        """Return the difference in Confluent's words, with `%s` for the reader's and the writer's side."""
        text = _MESSAGES.get(self.type, "").replace("{path}", f"#/{'/'.join(self.path)}")
        return f'{{errorType:"{self.type}", description:"{text}"}}'


@dataclass(eq=False, slots=True)
class _Named:
    """A type with where it was defined."""

    type: Message | Enum
    package: str
    name: str
    """Without the package."""
    imported: bool


class _Types:
    """All types that a file can name."""

    def __init__(self, file: File, dependencies: Mapping[str, File]) -> None:
        self._named: dict[str, _Named] = {}
        for dependency in dependencies.values():
            self._collect(dependency.types, dependency.package, (), imported=True)
        self._collect(file.types, file.package, (), imported=False)

    def _collect(self, types: list[Message | Enum], package: str, scope: tuple[str, ...], *, imported: bool) -> None:
        for type_ in types:
            name = ".".join((*scope, type_.name))
            self._named[f"{package}.{name}" if package else name] = _Named(type_, package, name, imported)
            if isinstance(type_, Message):
                self._collect(type_.types, package, (*scope, type_.name), imported=imported)

    def find(self, name: str, package: str, scope: tuple[str, ...]) -> _Named | None:
        """Resolve a name from within a message, inner scopes first."""
        if name.startswith("."):
            return self._named.get(name[1:])
        prefix = [*(package.split(".") if package else []), *scope]
        while prefix:
            named = self._named.get(".".join([*prefix, name]))
            if named is not None:
                return named
            prefix.pop()
        return self._named.get(name)


def compare(
    original: File, original_dependencies: Mapping[str, File], update: File, update_dependencies: Mapping[str, File]
) -> list[Difference]:
    """Return the differences of an updated file to the original one."""
    walk = _Walk(_Types(original, original_dependencies), _Types(update, update_dependencies))
    if original.package != update.package:
        walk.differences.append(Difference("PACKAGE_CHANGED", ()))
    walk.types(original.types, update.types, _Scope(original.package, update.package, ()))
    return walk.differences


@dataclass(frozen=True, slots=True)
class _Scope:
    """The position of the walk: both packages, and the names of the enclosing messages."""

    original_package: str
    update_package: str
    names: tuple[str, ...]


class _Walk:
    def __init__(self, original: _Types, update: _Types) -> None:
        self._original = original
        self._update = update
        self._under_way: set[int] = set()
        self.differences: list[Difference] = []

    def _add(self, type_: str, *path: str) -> None:
        self.differences.append(Difference(type_, path))

    def types(self, original: list[Message | Enum], update: list[Message | Enum], scope: _Scope) -> None:
        old, new = _by_name(original, Message), _by_name(update, Message)
        for name in dict.fromkeys([*old, *new]):
            path = (*scope.names, name)
            if name not in new:
                self._add("MESSAGE_REMOVED", *path)
            elif name not in old:
                self._add("MESSAGE_ADDED", *path)
            else:
                inner = _Scope(scope.original_package, scope.update_package, path)
                self.messages(old[name], new[name], inner)  # type: ignore[arg-type]
                if list(old).index(name) != list(new).index(name):
                    self._add("MESSAGE_MOVED", *path)
        old, new = _by_name(original, Enum), _by_name(update, Enum)
        for name in dict.fromkeys([*old, *new]):
            path = (*scope.names, name)
            if name not in new:
                self._add("ENUM_REMOVED", *path)
            elif name not in old:
                self._add("ENUM_ADDED", *path)
            else:
                self._enums(old[name], new[name], path)  # type: ignore[arg-type]

    def _enums(self, original: Enum, update: Enum, path: tuple[str, ...]) -> None:
        old = {constant.number: constant.name for constant in original.constants}
        new = {constant.number: constant.name for constant in update.constants}
        for number in dict.fromkeys([*old, *new]):
            if number not in new:
                self._add("ENUM_CONST_REMOVED", *path, str(number))
            elif number not in old:
                self._add("ENUM_CONST_ADDED", *path, str(number))
            elif old[number] != new[number]:
                self._add("ENUM_CONST_CHANGED", *path, str(number))

    def messages(self, original: Message, update: Message, scope: _Scope) -> None:
        if id(original) not in self._under_way:
            self._under_way.add(id(original))
            self._fields(original, update, scope)
            self.types(original.types, update.types, scope)
            self._under_way.discard(id(original))

    def _fields(self, original: Message, update: Message, scope: _Scope) -> None:
        old, old_oneof = _by_number(original)
        new, new_oneof = _by_number(update)
        removed_oneofs = {
            oneof.name
            for oneof in original.oneofs
            if oneof.name not in {other.name for other in update.oneofs}
            and not any(entry.number in new for entry in oneof.fields)
        }
        for oneof in update.oneofs:
            groups = {
                f"oneof {old_oneof[entry.number]}" if entry.number in old_oneof else f"field {entry.number}"
                for entry in oneof.fields
                if entry.number in old
            }
            moved = sum(entry.number in old and entry.number not in old_oneof for entry in oneof.fields)
            if len(groups) > 1:
                kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if moved > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
                self._add(kind, *scope.names, oneof.name)
        before, after = ({oneof.name for oneof in message.oneofs} for message in (original, update))
        for name in sorted(before ^ after):
            self._add("ONEOF_REMOVED" if name in before else "ONEOF_ADDED", *scope.names, name)
        for number in sorted({*old, *new}):
            self._field(number, old, old_oneof, new, new_oneof, removed_oneofs, scope)

    def _field(
        self,
        number: int,
        old: dict[int, Field],
        old_oneof: dict[int, str],
        new: dict[int, Field],
        new_oneof: dict[int, str],
        removed_oneofs: set[str],
        scope: _Scope,
    ) -> None:
        path = (*scope.names, str(number))
        if number not in new:
            if number not in old_oneof:
                self._add("REQUIRED_FIELD_REMOVED" if old[number].label == "required" else "FIELD_REMOVED", *path)
            elif old_oneof[number] not in removed_oneofs:
                self._add("ONEOF_FIELD_REMOVED", *scope.names, old_oneof[number], str(number))
        elif number not in old:
            if number in new_oneof:
                self._add("ONEOF_FIELD_ADDED", *scope.names, new_oneof[number], str(number))
            else:
                self._add("REQUIRED_FIELD_ADDED" if new[number].label == "required" else "FIELD_ADDED", *path)
        else:
            if number in old_oneof and number not in new_oneof:
                self._add("ONEOF_FIELD_MOVED_TO_TOP_LEVEL", *path)
            if number in new_oneof:
                path = (*scope.names, new_oneof[number], str(number))
            first, second = old[number], new[number]
            if first.name != second.name:
                self._add("FIELD_NAME_CHANGED", *path)
            self._compare_types((first.label, first.type), (second.label, second.type), scope, path)

    def _compare_types(
        self, original: tuple[str | None, str], update: tuple[str | None, str], scope: _Scope, path: tuple[str, ...]
    ) -> None:
        old = self._original.find(original[1], scope.original_package, scope.names)
        new = self._update.find(update[1], scope.update_package, scope.names)
        kind = _kind(original[1], old)
        if kind != _kind(update[1], new):
            self._add("FIELD_KIND_CHANGED", *path)
        elif kind == "scalar":
            first = "general number" if old is not None else _KINDS[original[1]]
            second = "general number" if new is not None else _KINDS[update[1]]
            if first != second:
                self._add("FIELD_SCALAR_KIND_CHANGED", *path)
            elif original[0] is not None and update[0] is not None and original[0] != update[0]:
                text = first == "string or bytes"
                self._add("FIELD_STRING_OR_BYTES_LABEL_CHANGED" if text else "FIELD_NUMERIC_LABEL_CHANGED", *path)
        elif kind == "map":
            first_map, second_map = _MAP.match(original[1]), _MAP.match(update[1])
            assert first_map is not None
            assert second_map is not None
            for group in (1, 2):
                self._compare_types((None, first_map.group(group)), (None, second_map.group(group)), scope, path)
        else:
            self._compare_messages(original[1], old, update[1], new, path)

    def _compare_messages(
        self, original: str, old: _Named | None, update: str, new: _Named | None, path: tuple[str, ...]
    ) -> None:
        if old is None or new is None:
            if original.lstrip(".") != update.lstrip("."):
                self._add("FIELD_NAMED_TYPE_CHANGED", *path)
            return
        if old.name != new.name:
            self._add("FIELD_NAMED_TYPE_CHANGED", *path)
            return
        if not old.imported and not new.imported:
            return  # compared where they are defined
        start = len(self.differences)
        assert isinstance(old.type, Message)
        assert isinstance(new.type, Message)
        self.messages(old.type, new.type, _Scope(old.package, new.package, tuple(old.name.split("."))))
        if any(difference.type not in COMPATIBLE for difference in self.differences[start:]):
            self._add("FIELD_NAMED_TYPE_CHANGED", *path)


def _kind(type_: str, named: _Named | None) -> str:
    if type_.startswith("map<"):
        return "map"
    return "scalar" if type_ in _KINDS or (named is not None and isinstance(named.type, Enum)) else "message"


def _by_name(types: list[Message | Enum], kind: type[Message] | type[Enum]) -> dict[str, Message | Enum]:
    return {type_.name: type_ for type_ in types if isinstance(type_, kind)}


def _by_number(message: Message) -> tuple[dict[int, Field], dict[int, str]]:
    fields = {entry.number: entry for entry in message.fields}
    oneofs = {}
    for oneof in message.oneofs:
        for entry in oneof.fields:
            fields[entry.number] = entry
            oneofs[entry.number] = oneof.name
    return fields, oneofs
