"""Avro values as columns: the column types of a reader's schema, and decoders that resolve a writer's schema to it.

A decoder is compiled once for each pair of schemas into steps of the kernel, which append straight to columns. Types
follow Spark's `from_avro`: a union of several types becomes a struct with the fields member0, member1 and so on.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from ottla.schemas import kernel as _kernel
from ottla.schemas.avro import Array, AvroSchema, Enum, Field, Fixed, Map, Named, Primitive, Record, Type, Union
from ottla.schemas.column_types import ColumnType, NoColumnsError, decimal_of, list_of, map_of, struct_of

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LONG: Final = 2**63 - 1
MAX_STEPS: Final = 20_000
"""Types in a schema, counted where they are used: named types that are used often would otherwise multiply."""
_PLAIN: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
}


class UnresolvableError(ValueError):
    """A writer's schema that cannot be resolved to the reader's; the message has the place and the reason."""


def column_type(schema: AvroSchema) -> ColumnType:
    """Return the type of the column that values of a reader's schema become."""
    return _Types().of(schema.root, ())


def added_fields(writer: AvroSchema, reader: AvroSchema) -> list[str]:
    """Return the fields of a writer's schema that the reader's has not, as paths with dots."""
    added: list[str] = []
    _added(writer.root, reader.root, "", added, set())
    return added


def _added(writer: Type, reader: Type, path: str, added: list[str], seen: set[tuple[int, int]]) -> None:
    if (id(writer), id(reader)) in seen:
        return
    seen.add((id(writer), id(reader)))
    if isinstance(writer, Union) or isinstance(reader, Union):
        readers = reader.branches if isinstance(reader, Union) else [reader]
        for branch in writer.branches if isinstance(writer, Union) else [writer]:
            match = next((entry for entry in readers if entry.kind == branch.kind), None)
            if match is not None:
                _added(branch, match, path, added, seen)
    elif isinstance(writer, Array) and isinstance(reader, Array):
        _added(writer.items, reader.items, path, added, seen)
    elif isinstance(writer, Map) and isinstance(reader, Map):
        _added(writer.values, reader.values, path, added, seen)
    elif isinstance(writer, Record) and isinstance(reader, Record):
        names = {name: field for field in reader.fields for name in (field.name, *field.aliases)}
        for field in writer.fields:
            inside = f"{path}.{field.name}" if path else field.name
            if field.name not in names:
                added.append(inside)
            else:
                _added(field.type, names[field.name].type, inside, added, seen)


class _Types:
    """Turns types of Avro into types of columns, and counts them."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, type_: Type, parents: tuple[str, ...]) -> ColumnType:
        self._count += 1
        if self._count > MAX_STEPS:
            raise NoColumnsError(f"the schema has more than {MAX_STEPS} types")
        if isinstance(type_, Record):
            if type_.full_name in parents:
                raise NoColumnsError(
                    f"the schema is recursive: the record {type_.full_name} contains itself, and tables have no "
                    "recursive types; give a reader schema without that field"
                )
            inside = (*parents, type_.full_name)
            return struct_of([(field.name, self.of(field.type, inside)) for field in type_.fields])
        if isinstance(type_, Array):
            return list_of(self.of(type_.items, parents))
        if isinstance(type_, Map):
            return map_of(self.of(type_.values, parents))
        if isinstance(type_, Union):
            return self._union(type_, parents)
        if isinstance(type_, Enum):
            return ColumnType("string")
        if _is_decimal(type_):
            return decimal_of(type_.props["precision"], type_.props.get("scale", 0))
        if isinstance(type_, Fixed):
            return ColumnType("bytes")
        return ColumnType(_LOGICAL.get((type_.kind, _logical(type_)), type_.kind))

    def _union(self, union: Union, parents: tuple[str, ...]) -> ColumnType:
        branches = _not_null(union)
        if not branches:
            return ColumnType("null")
        if len(branches) == 1:
            return self.of(branches[0], parents)
        merged = _merged(branches)
        if merged is not None:
            return ColumnType(merged)
        return struct_of([(f"member{number}", self.of(branch, parents)) for number, branch in enumerate(branches)])


def _not_null(union: Union) -> list[Type]:
    return [branch for branch in union.branches if branch.kind != "null"]


def _merged(branches: list[Type]) -> str | None:
    """Return the one type that Spark reads a union of two numbers as."""
    kinds = {branch.kind for branch in branches}
    return {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}.get(frozenset(kinds))


def _logical(type_: Type) -> str:
    props: dict[str, Any] = getattr(type_, "props", {})
    name = props.get("logicalType")
    return name if isinstance(name, str) else ""


def _is_decimal(type_: Primitive | Fixed) -> bool:
    """Return whether a type is a valid decimal; an invalid logical type is ignored, as Avro requires."""
    precision, scale = type_.props.get("precision"), type_.props.get("scale", 0)
    return (
        type_.kind in ("bytes", "fixed")
        and _logical(type_) == "decimal"
        and isinstance(precision, int)
        and isinstance(scale, int)
        and 0 <= scale <= precision
        and precision > 0
    )


class AvroDecoder:
    """Decodes values of one writer's schema into the column of a reader's schema.

    `step` is passed to `FramedRows.decode`; `explain` words the error of the last row that failed.
    """

    def __init__(self, writer: AvroSchema, reader: AvroSchema, column: _kernel.Column, *, kernel: Any = None) -> None:
        self._compiler = _Compiler(kernel or _kernel.compiled())
        self.step: _kernel.Step = self._compiler.step(writer.root, reader.root, column, ())

    def explain(self, error: int) -> str:
        """Return why the last row failed, and where; forget it."""
        failure = self._compiler.failure
        path, reason = ".".join(reversed(failure.path)), failure.reason
        failure.path, failure.reason = [], None
        if error > 0:
            return f"{error} bytes follow the Avro value"
        return f"{f'field {path}: ' if path else ''}{reason or self._compiler.messages[error]}"


class _Compiler:
    """Compiles pairs of types into steps; all steps share one failure."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.failure = kernel.Failure()
        self._count = 0
        self.messages = {
            kernel.CUT_OFF: "the data is cut off",
            kernel.BAD_VARINT: "a number is longer than its type allows",
            kernel.BAD_LENGTH: "a length is negative or larger than the data",
            kernel.BAD_COUNT: "a block has more items than the data can hold",
            kernel.BAD_BRANCH: "the union has no such branch",
            kernel.BAD_SYMBOL: "the enum has no such symbol",
            kernel.UNRESOLVED: "the reader's enum has neither this symbol nor a default",
            kernel.BAD_DECIMAL: "the decimal has more digits than its precision",
            kernel.OUT_OF_RANGE: "the number is out of the range of the column",
            kernel.FULL: "the values are larger than the 2 GiB that a column holds",
        }

    def step(self, writer: Type, reader: Type, column: Any, parents: tuple[str, ...], path: str = "") -> Any:
        """Return the step that reads a type of the writer into a column of the reader's type."""
        if isinstance(writer, Union):
            return self._writer_union(writer, reader, column, parents, path)
        if isinstance(reader, Union):
            return self._reader_union(writer, reader, column, parents, path)
        step = self._single(writer, reader, column, parents, path)
        if step is None:
            raise UnresolvableError(
                f"{path or 'the value'} is {_named(writer)} in the data and {_named(reader)} in the reader's schema"
            )
        return self._finished(step)

    def _finished(self, step: Any) -> Any:
        step.failure = self.failure
        self._count += 1
        if self._count > MAX_STEPS:
            raise UnresolvableError(f"the schema has more than {MAX_STEPS} types")
        return step

    def _writer_union(self, writer: Union, reader: Type, column: Any, parents: tuple[str, ...], path: str) -> Any:
        kernel = self._kernel
        steps = []
        for branch in writer.branches:
            try:
                steps.append(self.step(branch, reader, column, parents, path))
            except UnresolvableError as error:  # an error only for data with this branch
                steps.append(self._finished(kernel.RefusedStep(str(error))))
        kinds = [branch.kind for branch in writer.branches]
        if len(kinds) == 2 and kinds.count("null") == 1 and _takes_null(reader):
            null = kinds.index("null")
            return self._finished(kernel.NullableStep(column, steps[1 - null], null))
        return self._finished(kernel.UnionStep(steps))

    def _reader_union(self, writer: Type, reader: Union, column: Any, parents: tuple[str, ...], path: str) -> Any:
        kernel = self._kernel
        if writer.kind == "null" and _takes_null(reader):
            return self._finished(kernel.NullStep(column))
        branches = _not_null(reader)
        chosen = _best_branch(writer, branches)
        if chosen is None:
            raise UnresolvableError(f"{path or 'the value'} is {_named(writer)}, which the reader's union has not")
        branch = branches[chosen]
        merged = _merged(branches) if len(branches) > 1 else None
        if len(branches) == 1:
            return self.step(writer, branch, column, parents, path)
        if merged is not None:
            return self.step(writer, Primitive(merged), column, parents, path)
        member = column.fields[chosen]
        value = self.step(writer, branch, member, parents, path)
        return self._finished(kernel.MemberStep(column, member, value))

    def _single(self, writer: Type, reader: Type, column: Any, parents: tuple[str, ...], path: str) -> Any:
        """Return the step for two types of which neither is a union, or None if they do not match."""
        kernel = self._kernel
        if isinstance(writer, Record) and isinstance(reader, Record):
            return self._record(writer, reader, column, parents, path) if _names_match(writer, reader) else None
        if isinstance(writer, Array) and isinstance(reader, Array):
            item = self.step(writer.items, reader.items, column.items, parents, path)
            return kernel.ListStep(column, None, item)
        if isinstance(writer, Map) and isinstance(reader, Map):
            key, value = column.items.fields
            item = self.step(writer.values, reader.values, value, parents, path)
            return kernel.ListStep(column, self._finished(kernel.BytesStep(key)), item)
        if isinstance(writer, Enum) and isinstance(reader, Enum):
            if not _names_match(writer, reader):
                return None
            known = set(reader.symbols)
            symbols = [name if name in known else reader.default for name in writer.symbols]
            return kernel.EnumStep(column, [None if name is None else name.encode() for name in symbols])
        if isinstance(writer, Fixed) and isinstance(reader, Fixed):
            if writer.size != reader.size or not _names_match(writer, reader):
                return None
            if _is_decimal(reader):
                return self._decimal(writer, reader, column, writer.size, path)
            return kernel.FixedStep(column, writer.size)
        if isinstance(writer, Primitive) and isinstance(reader, Primitive):
            return self._primitive(writer, reader, column, path)
        return None

    def _primitive(self, writer: Primitive, reader: Primitive, column: Any, path: str) -> Any:
        kernel = self._kernel
        match writer.kind, reader.kind:
            case "null", "null":
                return kernel.NullStep(column)
            case "boolean", "boolean":
                return kernel.BooleanStep(column)
            case "int", "int":
                return kernel.IntStep(column)
            case "int" | "long", "long":
                scale = 1000 if _logical(reader) in ("timestamp-millis", "local-timestamp-millis") else 1
                if writer.kind == "long" and _logical(writer) != _logical(reader):
                    return self._other_time(writer, reader, column, scale)
                return kernel.LongStep(column, scale, MAX_LONG // scale)
            case ("float", "float") | ("double", "double"):
                return kernel.CopyStep(column)
            case "int" | "long" | "float", "float" | "double":
                return kernel.PromotedStep(column, writer.kind == "float")
            case (("bytes" | "string"), ("bytes" | "string")):
                if _is_decimal(reader):
                    return self._decimal(writer, reader, column, -1, path) if writer.kind == "bytes" else None
                return kernel.BytesStep(column)
        return None

    def _other_time(self, writer: Primitive, reader: Primitive, column: Any, scale: int) -> Any:
        """Read a long whose logical type changed: by the writer's unit if both are times of the same kind.

        Any other change reads the number as the reader's type.
        """
        unit = _logical(writer).rpartition("-")
        if unit[0] and unit[0] == _logical(reader).rpartition("-")[0] and unit[2] in ("millis", "micros"):
            scale = 1000 if unit[2] == "millis" else 1
        return self._kernel.LongStep(column, scale, MAX_LONG // scale)

    def _decimal(self, writer: Primitive | Fixed, reader: Primitive | Fixed, column: Any, size: int, path: str) -> Any:
        precision, scale = reader.props["precision"], reader.props.get("scale", 0)
        if _is_decimal(writer) and writer.props.get("scale", 0) != scale:
            raise UnresolvableError(
                f"{path or 'the value'} has the scale {writer.props.get('scale', 0)} in the data and {scale} in the "
                "reader's schema"
            )
        limit = 10**precision - 1
        return self._kernel.DecimalStep(column, size, limit >> 64, limit & (2**64 - 1))

    def _record(self, writer: Record, reader: Record, column: Any, parents: tuple[str, ...], path: str) -> Any:
        if writer.full_name in parents:
            raise UnresolvableError(f"the writer's schema is recursive: {writer.full_name} contains itself")
        inside = (*parents, writer.full_name)
        columns = dict(zip([field.name for field in reader.fields], column.fields, strict=True))
        by_writer_name = _match_fields(writer, reader)
        steps = []
        for field in writer.fields:
            target = by_writer_name.get(field.name)
            field_path = f"{path}.{field.name}" if path else field.name
            if target is None:
                step = self._skip(field.type, inside)
            else:
                step = self.step(field.type, target.type, columns[target.name], inside, field_path)
            step.name = field.name if target is None else target.name
            steps.append(step)
        least = sum(step.least for step in steps)
        read = {target.name for target in by_writer_name.values()}
        for field in reader.fields:
            if field.name not in read:
                field_path = f"{path}.{field.name}" if path else field.name
                steps.append(self._default(field, columns[field.name], field_path))
        return self._kernel.RecordStep(column, steps, least)

    def _default(self, field: Field, column: Any, path: str) -> Any:
        value, has_default = field.default, field.has_default
        if not has_default and isinstance(field.type, Enum) and field.type.default is not None:
            value, has_default = field.type.default, True
        if not has_default:
            raise UnresolvableError(f"{path} is not in the data and has no default in the reader's schema")
        step = self.step(field.type, field.type, column, (), path)
        return self._finished(self._kernel.DefaultStep(encode_default(field.type, value), step))

    def _skip(self, type_: Type, parents: tuple[str, ...]) -> Any:
        """Return the step that skips a type."""
        kernel = self._kernel
        if isinstance(type_, Record):
            if type_.full_name in parents:
                raise UnresolvableError(f"the writer's schema is recursive: {type_.full_name} contains itself")
            steps = [self._skip(field.type, (*parents, type_.full_name)) for field in type_.fields]
            return self._finished(kernel.RecordStep(None, steps, sum(step.least for step in steps)))
        if isinstance(type_, Union):
            return self._finished(kernel.UnionStep([self._skip(branch, parents) for branch in type_.branches]))
        if isinstance(type_, Array):
            return self._finished(kernel.ListStep(None, None, self._skip(type_.items, parents)))
        if isinstance(type_, Map):
            key = self._finished(kernel.SkipStep(-2))
            return self._finished(kernel.ListStep(None, key, self._skip(type_.values, parents)))
        if isinstance(type_, Enum):
            return self._finished(kernel.EnumStep(None, [None] * len(type_.symbols)))
        if isinstance(type_, Fixed):
            return self._finished(kernel.SkipStep(type_.size))
        sizes = {"null": 0, "boolean": 1, "float": 4, "double": 8, "int": -1, "long": -1, "bytes": -2, "string": -2}
        return self._finished(kernel.SkipStep(sizes[type_.kind]))


def _takes_null(reader: Type) -> bool:
    return reader.kind == "null" or (isinstance(reader, Union) and any(b.kind == "null" for b in reader.branches))


def _names_match(writer: Named, reader: Named) -> bool:
    """Return whether two named types match; names without their namespaces decide, as in Avro's Java library."""
    return writer.name == reader.name or writer.full_name in reader.aliases


def _match_fields(writer: Record, reader: Record) -> dict[str, Field]:
    """Return the reader's field for each field of the writer that is read."""
    written = {field.name for field in writer.fields}
    matches: dict[str, Field] = {}
    for field in reader.fields:
        name = next((name for name in (field.name, *field.aliases) if name in written), None)
        if name is not None:
            matches.setdefault(name, field)
    return matches


def _best_branch(writer: Type, branches: list[Type]) -> int | None:
    """Return the index of the reader's branch that reads a type: the same type by its full name, else the first."""
    tests: tuple[Callable[[Type], bool], ...] = (
        lambda branch: (
            branch.kind == writer.kind
            and (not isinstance(branch, Named) or not isinstance(writer, Named) or branch.full_name == writer.full_name)
        ),
        lambda branch: (
            branch.kind == writer.kind
            and (not isinstance(branch, Named) or not isinstance(writer, Named) or _names_match(writer, branch))
        ),
        lambda branch: writer.kind in _PROMOTED.get(branch.kind, ()),
    )
    for test in tests:
        for index, branch in enumerate(branches):
            if test(branch):
                return index
    return None


_PROMOTED: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}


def _named(type_: Type) -> str:
    return f"{type_.kind} {type_.full_name}" if isinstance(type_, Named) else type_.kind


def encode_default(type_: Type, value: Any) -> bytes:
    """Encode the JSON of a default as Avro data of its type; a union takes the first branch that the value fits."""
    if isinstance(type_, Union):
        for index, branch in enumerate(type_.branches):
            try:
                return _long(index) + encode_default(branch, value)
            except (TypeError, ValueError, KeyError, AttributeError, struct.error):
                continue
        raise ValueError(f"no branch of the union takes the default {value!r}")
    match type_.kind:
        case "null":
            if value is not None:
                raise TypeError("not null")
            return b""
        case "boolean":
            if not isinstance(value, bool):
                raise TypeError("not a boolean")
            return bytes([value])
        case "int" | "long":
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError("not an integer")
            return _long(value)
        case "float" | "double":
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError("not a number")
            return struct.pack("<f" if type_.kind == "float" else "<d", value)
        case "string":
            data: bytes = value.encode()
            return _long(len(data)) + data
        case "bytes":
            data = value.encode("latin-1")
            return _long(len(data)) + data
    if isinstance(type_, Fixed):
        data = value.encode("latin-1")
        if len(data) != type_.size:
            raise ValueError(f"the default of {type_.full_name} has {len(data)} bytes, not {type_.size}")
        return bytes(data)
    if isinstance(type_, Enum):
        return _long(type_.symbols.index(value))
    if isinstance(type_, Array):
        items = b"".join(encode_default(type_.items, entry) for entry in value)
        return (_long(len(value)) + items if value else b"") + b"\0"
    if isinstance(type_, Map):
        entries = b"".join(
            _long(len(name.encode())) + name.encode() + encode_default(type_.values, entry)
            for name, entry in value.items()
        )
        return (_long(len(value)) + entries if value else b"") + b"\0"
    assert isinstance(type_, Record)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return b"".join(
        encode_default(field.type, value.get(field.name, field.default))
        for field in type_.fields
        if field.name in value or field.has_default or _missing(field)
    )


def _missing(field: Field) -> bool:
    raise ValueError(f"the default has no field {field.name}")


def _long(number: int) -> bytes:
    value = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
