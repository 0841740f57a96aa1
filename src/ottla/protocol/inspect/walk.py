"""Decodes a message slowly, field by field, and describes each byte.

The codec uses it to find the invalid byte after a fast decode has failed; the inspector prints its nodes. It builds no
message; codec and walk must agree on what is valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.codec.wire import FIXED, MAX_LENGTH, MAX_STRING, layout
from ottla.protocol.errors import ProtocolError
from ottla.protocol.schema import Field, Message, Struct, Uuid

if TYPE_CHECKING:
    from collections.abc import Iterator


class Node(NamedTuple):
    """One element of a message and its bytes.

    `kind` is "field" (a value), "array" (`value` is the count, or None for null; the bytes are the count's),
    "struct" (its fields follow one level deeper; a nullable one takes a byte and has the value None when
    null), "tags" (`value` is the number of tagged fields that follow) or "tag" (a tagged field that the schema
    does not declare; `value` is its bytes). A known tagged field comes as its own node, after its tag and size.
    """

    kind: str
    path: str
    name: str
    type: str
    depth: int
    position: int
    end: int
    value: Any
    field: Field | None


def walk(cls: type[Message], buffer: bytes | memoryview, version: int, position: int = 0) -> Iterator[Node]:
    """Yield the nodes of a message that starts at `position`; raise ProtocolError at the first invalid byte."""
    schema = cls.__schema__
    if version not in schema.versions:
        raise unsupported_version(cls, version)
    walker = _Walker(schema.name, version, version in schema.flexible, buffer, position)
    yield from walker.struct(cls, "", 0)


def find_error(
    cls: type[Message], buffer: bytes | memoryview, version: int, position: int, whole: bool
) -> ProtocolError:
    """Return the error of a message that did not decode, with path and byte."""
    name = cls.__schema__.name
    end = position
    try:
        for node in walk(cls, buffer, version, position):
            end = node.end
    except ProtocolError as error:
        return error
    remaining = len(buffer) - end
    if whole and remaining:
        some = "1 byte" if remaining == 1 else f"{remaining} bytes"
        return ProtocolError(f"{some} left after {name} v{version}", message=name, version=version, position=end)
    return ProtocolError("the bytes do not decode", message=name, version=version, position=position)


def unsupported_version(cls: type[Message], version: int) -> ProtocolError:
    """Return the error for a version that a message does not have."""
    versions = cls.__schema__.versions
    known = f"{versions[0]} to {versions[-1]}" if versions else "none"
    return ProtocolError(f"expected a version from {known}", message=cls.__schema__.name, version=version)


class _Walker:
    """The state of one walk: its position and the context of errors."""

    def __init__(self, name: str, version: int, flexible: bool, buffer: bytes | memoryview, position: int) -> None:
        self.name = name
        self.version = version
        self.flexible = flexible
        self.buffer = buffer
        self.position = position
        self.end = len(buffer)

    def fail(self, path: str, expected: str, position: int | None = None) -> ProtocolError:
        where = self.position if position is None else position
        return ProtocolError(expected, message=self.name, version=self.version, path=path, position=where)

    # -- bytes ---------------------------------------------------------------------------------------------------

    def fixed(self, type_name: str, path: str) -> Any:
        letter, size = FIXED[type_name]
        remaining = self.end - self.position
        if remaining < size:
            unit = "byte" if size == 1 else "bytes"
            raise self.fail(path, f"expected {type_name} to be {size} {unit}, got {remaining}")
        (value,) = layout(letter).unpack_from(self.buffer, self.position)
        self.position += size
        return Uuid(value) if type_name == "uuid" else value

    def uvarint(self, path: str, expected: str) -> int:
        start = self.position
        value = shift = 0
        while True:
            if self.position >= self.end:
                size = self.position - start
                raise self.fail(path, f"expected {expected} as an unsigned varint, got {size} bytes of it", start)
            byte = self.buffer[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 28:
                raise self.fail(path, f"expected {expected} as an unsigned varint of at most 5 bytes", start)
        if value > MAX_LENGTH:
            raise self.fail(path, f"expected {expected} of at most {MAX_LENGTH}, got {value}", start)
        return value

    def length(self, path: str, expected: str, compact: bool, short: bool, nullable: bool) -> int | None:
        """Read the length of a string, bytes, records or array; None for null."""
        start = self.position
        if compact:
            value = self.uvarint(path, f"the length of {expected}") - 1
        else:
            value = self.fixed("int16" if short else "int32", path)
        if value == -1:
            if not nullable:
                raise self.fail(path, f"expected {expected}, got null, which it may not be", start)
            return None
        if value < 0:
            raise self.fail(path, f"expected {expected} to have a length, got {value}", start)
        return int(value)

    # -- values --------------------------------------------------------------------------------------------------

    def variable(self, type_name: str, path: str, compact: bool, nullable: bool) -> Any:
        """Read a string, bytes or records."""
        start = self.position
        length = self.length(path, type_name, compact, type_name == "string", nullable)
        if length is None:
            return None
        if type_name == "string" and length > MAX_STRING:
            raise self.fail(path, f"expected string of at most {MAX_STRING} bytes, got {length}", start)
        remaining = self.end - self.position
        if length > remaining:
            unit = "byte" if length == 1 else "bytes"
            raise self.fail(path, f"expected {type_name} to be {length} {unit}, got {remaining}")
        data = memoryview(self.buffer)[self.position : self.position + length]
        self.position += length
        if type_name == "string":
            return bytes(data).decode("utf-8", "replace")
        return bytes(data) if type_name == "bytes" else data

    def field(self, field: Field, path: str, depth: int) -> Iterator[Node]:
        nullable = self.version in field.nullable
        compact = self.flexible and self.version in field.flexible
        start = self.position
        kind = field.kind
        if kind == "array":
            yield from self.array(field, path, depth, compact, nullable)
        elif kind == "struct":
            cls = field.struct
            assert cls is not None
            value: Any = cls
            if nullable:
                present = self.fixed("int8", path)
                if present < 0:
                    value = None
            yield Node("struct", path, field.name, cls.__name__, depth, start, self.position, value, field)
            if value is not None:
                yield from self.struct(cls, path + ".", depth + 1)
        else:
            if kind in FIXED:
                value = self.fixed(kind, path)
            else:
                value = self.variable(kind, path, compact, nullable)
            yield Node("field", path, field.name, kind, depth, start, self.position, value, field)

    def array(self, field: Field, path: str, depth: int, compact: bool, nullable: bool) -> Iterator[Node]:
        start = self.position
        count = self.length(path, "array", compact, False, nullable)
        of = field.of
        name = of if isinstance(of, str) else of.__name__ if of is not None else ""
        remaining = self.end - self.position
        need = FIXED[of][1] if isinstance(of, str) and of in FIXED else 1
        if count is not None and count * need > remaining:
            raise self.fail(path, f"expected an array of {count} elements, got {remaining} bytes", start)
        yield Node("array", path, field.name, name, depth, start, self.position, count, field)
        for index in range(count or 0):
            element = f"{path}[{index}]"
            start = self.position
            if isinstance(of, str):
                value = self.fixed(of, element) if of in FIXED else self.variable(of, element, compact, False)
                label = f"{field.name}[{index}]"
                yield Node("field", element, label, of, depth + 1, start, self.position, value, field)
            elif of is not None:
                label = f"{field.name}[{index}]"
                yield Node("struct", element, label, name, depth + 1, start, start, of, field)
                yield from self.struct(of, element + ".", depth + 2)

    def struct(self, cls: type[Struct], prefix: str, depth: int) -> Iterator[Node]:
        for field in cls.__schema__.fields:
            if field.present(self.version):
                yield from self.field(field, prefix + field.name, depth)
        if self.flexible:
            yield from self.tags(cls, prefix, depth)

    def tags(self, cls: type[Struct], prefix: str, depth: int) -> Iterator[Node]:
        section = f"{prefix}tags"
        start = self.position
        count = self.uvarint(section, "the number of tagged fields")
        yield Node("tags", section, "tags", "tags", depth, start, self.position, count, None)
        known = {field.tag: field for field in cls.__schema__.fields if field.tag is not None}
        for _ in range(count):
            start = self.position
            tag = self.uvarint(section, "a tag")
            path = f"{prefix}tags[{tag}]"
            size = self.uvarint(path, "the size of a tagged field")
            remaining = self.end - self.position
            if size > remaining:
                raise self.fail(path, f"expected tagged field {tag} to be {size} bytes, got {remaining}")
            end = self.position + size
            field = known.get(tag)
            if field is None:
                data = bytes(self.buffer[self.position : end])
                self.position = end
                yield Node("tag", path, f"tags[{tag}]", "unknown", depth + 1, start, end, data, None)
                continue
            if self.version not in field.tagged or self.version not in field.versions:
                raise self.fail(path, f"expected no tag {tag} ({field.name}) in this version", start)
            outer, self.end = self.end, end
            if field.kind == "struct" and self.version in field.nullable:
                # A nullable tagged struct marks null with a varint, others with a byte.
                yield from self.tagged_nullable_struct(field, prefix + field.name, depth + 1)
            else:
                yield from self.field(field, prefix + field.name, depth + 1)
            self.end = outer
            if self.position != end:
                raise self.fail(path, f"expected tagged field {tag} to be {size} bytes, {end - self.position} are left")

    def tagged_nullable_struct(self, field: Field, path: str, depth: int) -> Iterator[Node]:
        cls = field.struct
        assert cls is not None
        start = self.position
        present = self.uvarint(path, "whether the struct is there")
        value = cls if present else None
        yield Node("struct", path, field.name, cls.__name__, depth, start, self.position, value, field)
        if present:
            yield from self.struct(cls, path + ".", depth + 1)
