"""Avro schemas: parsing, the canonical form of Avro's Java library, and schema resolution.

Canonical text and compatibility follow `Schema.toString` and `SchemaCompatibility` of Avro 1.12, because registries
compare schemas by that text and show those messages. Records themselves are read and written with fastavro.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from ottla.schemas.schema import InvalidSchemaError, Schema, load_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PROMOTIONS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
_RESERVED: Final = {
    "record": {"type", "name", "namespace", "doc", "fields", "aliases"},
    "enum": {"type", "name", "namespace", "doc", "symbols", "default", "aliases"},
    "fixed": {"type", "name", "namespace", "doc", "size", "aliases"},
    "array": {"type", "items"},
    "map": {"type", "values"},
    "field": {"name", "type", "doc", "default", "order", "aliases"},
}


@dataclass(eq=False, slots=True)
class Primitive:
    """One of the eight primitive types, with the properties that a logical type adds."""

    kind: str
    props: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Array:
    """An array."""

    items: Type
    props: dict[str, Any]
    kind: str = "array"


@dataclass(eq=False, slots=True)
class Map:
    """A map from strings."""

    values: Type
    props: dict[str, Any]
    kind: str = "map"


@dataclass(eq=False, slots=True)
class Union:
    """A union of other types."""

    branches: list[Type]
    kind: str = "union"


@dataclass(eq=False, slots=True)
class Named:
    """The base of records, enums and fixed types."""

    kind: str
    name: str
    namespace: str
    doc: str | None
    aliases: list[str]
    """Full names."""
    props: dict[str, Any]

    @property
    def full_name(self) -> str:
        """Return the namespace and the name."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: Type
    doc: str | None
    has_default: bool
    default: Any
    order: str
    aliases: list[str]
    props: dict[str, Any]


@dataclass(eq=False, slots=True)
class Record(Named):
    """A record."""

    fields: list[Field] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Enum(Named):
    """An enum."""

    symbols: list[str] = field(default_factory=list)
    default: str | None = None


@dataclass(eq=False, slots=True)
class Fixed(Named):
    """A fixed number of bytes."""

    size: int = 0


Type: TypeAlias = Primitive | Array | Map | Union | Record | Enum | Fixed


class AvroSchema(Schema):
    """A parsed Avro schema.

    >>> AvroSchema.parse('{"type": "string"}').canonical()
    '"string"'
    """

    type: ClassVar[str] = "AVRO"

    def __init__(self, root: Type, referenced: frozenset[str] = frozenset()) -> None:
        self.root = root
        self._referenced = referenced

    @classmethod
    def parse(cls, text: str, references: Mapping[str, str] | None = None) -> AvroSchema:
        """Parse a schema; `references` has the texts of the schemas that define names which it uses, in order."""
        parser = _Parser()
        for reference in (references or {}).values():
            parser.parse(load_json(reference), "")
        referenced = frozenset(parser.names)
        return cls(parser.parse(_load(text), ""), referenced)

    def canonical(self) -> str:
        """Return the schema as `Schema.toString` writes it, with types of references by name."""
        return _dump(_Writer(self._referenced).write(self.root, ""))

    def normalized(self) -> AvroSchema:
        """Return the schema with properties sorted by name."""
        text = _dump(_Writer(self._referenced, sort_props=True).write(self.root, ""))
        parser = _Parser()
        parser.names.update(
            {named.full_name: named for named in _named(self.root) if named.full_name in self._referenced}
        )
        return AvroSchema(parser.parse(json.loads(text), ""), self._referenced)

    def resolved(self) -> str:
        """Return the schema with the definitions of references written out."""
        return _dump(_Writer(frozenset()).write(self.root, ""))

    def differences(self, writer: Schema, *, lenient: bool = False) -> list[str]:
        """Return the incompatibilities of Avro's SchemaCompatibility as Confluent words them."""
        if not isinstance(writer, AvroSchema):
            return ["Incompatible because of different schema type"]
        return [incompatibility.message() for incompatibility in self.incompatibilities(writer)]

    def incompatibilities(self, writer: AvroSchema) -> list[Incompatibility]:
        """Return the reasons why a reader with this schema cannot read data of `writer`."""
        return _Checker().check(self.root, writer.root, ())


def _load(text: str) -> Any:
    stripped = text.strip()
    if stripped in PRIMITIVES:  # Java's parser accepts a bare primitive name
        return stripped
    return load_json(text)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class _Parser:
    """Turns JSON into types; `names` holds every named type that was defined so far."""

    def __init__(self) -> None:
        self.names: dict[str, Named] = {}

    def parse(self, value: Any, namespace: str) -> Type:
        if isinstance(value, str):
            return self._by_name(value, namespace)
        if isinstance(value, list):
            return self._union(value, namespace)
        if not isinstance(value, dict):
            raise InvalidSchemaError(f"Schema not yet supported: {_shown(value)}")
        kind = value.get("type")
        if kind is None:
            raise InvalidSchemaError(f"No type: {_shown(value)}")
        if not isinstance(kind, str):
            return self.parse(kind, namespace)  # {"type": {...}}: the outer object adds nothing
        if kind in ("record", "error"):
            return self._record(value, namespace)
        if kind == "enum":
            return self._enum(value, namespace)
        if kind == "fixed":
            return self._fixed(value, namespace)
        if kind == "array":
            if "items" not in value:
                raise InvalidSchemaError(f"Array has no items type: {_shown(value)}")
            return Array(self.parse(value["items"], namespace), _props(value, "array"))
        if kind == "map":
            if "values" not in value:
                raise InvalidSchemaError(f"Map has no values type: {_shown(value)}")
            return Map(self.parse(value["values"], namespace), _props(value, "map"))
        if kind in PRIMITIVES:
            return Primitive(kind, {name: entry for name, entry in value.items() if name != "type"})
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        type_ = self.names.get(full) or self.names.get(name)
        if type_ is None:
            raise InvalidSchemaError(
                f'"{name}" is not a defined name. The type of a field must be a defined name or a '
                '{"type": ...} expression.'
            )
        return type_  # type: ignore[return-value]

    def _union(self, value: list[Any], namespace: str) -> Union:
        union = Union([])
        seen: set[str] = set()
        for entry in value:
            branch = self.parse(entry, namespace)
            if isinstance(branch, Union):
                raise InvalidSchemaError(f"Nested union: {_shown(value)}")
            name = branch.full_name if isinstance(branch, Named) else branch.kind
            if name in seen:
                raise InvalidSchemaError(f"Duplicate in union:{name}")
            seen.add(name)
            union.branches.append(branch)
        return union

    def _header(self, value: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
        name = value.get("name")
        if not isinstance(name, str):
            raise InvalidSchemaError(f"No name in schema: {_shown(value)}")
        space = value.get("namespace", namespace)
        if not isinstance(space, str):
            raise InvalidSchemaError(f"Invalid namespace in schema: {_shown(value)}")
        if "." in name:
            space, _, name = name.rpartition(".")
        for part in [name, *(space.split(".") if space else [])]:
            _check_name(part)
        aliases = value.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise InvalidSchemaError(f"aliases not an array of names: {_shown(value)}")
        full = f"{space}.{name}" if space else name
        if full in PRIMITIVES:
            raise InvalidSchemaError(f"Can't redefine: {full}")
        return {
            "kind": kind,
            "name": name,
            "namespace": space,
            "doc": _text(value, "doc"),
            "aliases": [alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases],
            "props": _props(value, kind),
        }

    def _define(self, type_: Named) -> None:
        """Make a type known by its name; an enum or fixed type may be defined again if it is the same."""
        known = self.names.setdefault(type_.full_name, type_)
        if known is not type_ and not (
            (isinstance(known, Enum) and isinstance(type_, Enum) and known.symbols == type_.symbols)
            or (isinstance(known, Fixed) and isinstance(type_, Fixed) and known.size == type_.size)
        ):
            raise InvalidSchemaError(f"Can't redefine: {type_.full_name}")
        if known is not type_ and known.props != type_.props:
            raise InvalidSchemaError(f"Can't redefine: {type_.full_name}")

    def _record(self, value: dict[str, Any], namespace: str) -> Record:
        record = Record(**self._header(value, "record", namespace))
        self._define(record)
        entries = value.get("fields")
        if not isinstance(entries, list):
            raise InvalidSchemaError(f"Record has no fields: {_shown(value)}")
        for entry in entries:
            parsed = self._field(entry, record)
            if any(parsed.name == known.name for known in record.fields):
                raise InvalidSchemaError(f"Duplicate field {parsed.name} in record {record.full_name}")
            record.fields.append(parsed)
        return record

    def _field(self, value: Any, record: Record) -> Field:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise InvalidSchemaError(f"No field name: {_shown(value)}")
        name = value["name"]
        _check_name(name)
        if "type" not in value:
            raise InvalidSchemaError(f"No field type: {_shown(value)}")
        aliases = value.get("aliases", [])
        if not isinstance(aliases, list):
            raise InvalidSchemaError(f"aliases not an array: {_shown(value)}")
        order = value.get("order", "ascending")
        if order not in ("ascending", "descending", "ignore"):
            raise InvalidSchemaError(f"No enum constant for order {order!r} of field {name}")
        parsed = Field(
            name=name,
            type=self.parse(value["type"], record.namespace),
            doc=_text(value, "doc"),
            has_default="default" in value,
            default=value.get("default"),
            order=order,
            aliases=aliases,
            props=_props(value, "field"),
        )
        if parsed.has_default and not _is_valid_default(parsed.type, parsed.default):
            raise InvalidSchemaError(
                f"Invalid default for field {name}: {_shown(parsed.default)} not a {_shown(value['type'])}"
            )
        return parsed

    def _enum(self, value: dict[str, Any], namespace: str) -> Enum:
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise InvalidSchemaError(f"Enum has no symbols: {_shown(value)}")
        for symbol in symbols:
            _check_name(symbol)
        if len(set(symbols)) != len(symbols):
            raise InvalidSchemaError(f"Duplicate enum symbol: {_shown(value)}")
        default = value.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchemaError(f"The Enum Default: {default} is not in the enum symbol set: {_shown(symbols)}")
        enum = Enum(**self._header(value, "enum", namespace), symbols=symbols, default=default)
        self._define(enum)
        return enum

    def _fixed(self, value: dict[str, Any], namespace: str) -> Fixed:
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidSchemaError(f"Invalid or no size: {_shown(value)}")
        fixed = Fixed(**self._header(value, "fixed", namespace), size=size)
        self._define(fixed)
        return fixed


def _shown(value: Any) -> str:
    text = _dump(value)
    return text if len(text) <= 200 else text[:200] + "..."


def _text(value: dict[str, Any], name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) else None


def _props(value: dict[str, Any], kind: str) -> dict[str, Any]:
    return {name: entry for name, entry in value.items() if name not in _RESERVED[kind]}


def _check_name(name: str) -> None:
    if not name:
        raise InvalidSchemaError("Empty name")
    if not _NAME.match(name):
        raise InvalidSchemaError(f"Illegal initial character or character in name: {name}")


def _is_valid_default(type_: Type, value: Any, depth: int = 0) -> bool:
    kind = type_.kind
    if depth > 50:
        return True
    if kind in ("string", "bytes", "enum", "fixed"):
        return isinstance(value, str)
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
    if kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if isinstance(type_, Array):
        return isinstance(value, list) and all(_is_valid_default(type_.items, entry, depth + 1) for entry in value)
    if isinstance(type_, Map):
        return isinstance(value, dict) and all(
            _is_valid_default(type_.values, entry, depth + 1) for entry in value.values()
        )
    if isinstance(type_, Union):
        return any(_is_valid_default(branch, value, depth + 1) for branch in type_.branches)
    assert isinstance(type_, Record)
    return isinstance(value, dict) and all(
        _is_valid_default(field.type, value.get(field.name, field.default), depth + 1)
        for field in type_.fields
        if field.name in value or not field.has_default
    )


def _named(root: Type) -> Iterator[Named]:
    """Yield every named type of a schema once."""
    seen: set[int] = set()
    stack: list[Type] = [root]
    while stack:
        type_ = stack.pop()
        if isinstance(type_, Named):
            if id(type_) in seen:
                continue
            seen.add(id(type_))
            yield type_
        if isinstance(type_, Record):
            stack += [field.type for field in type_.fields]
        elif isinstance(type_, Array):
            stack.append(type_.items)
        elif isinstance(type_, Map):
            stack.append(type_.values)
        elif isinstance(type_, Union):
            stack += type_.branches


class _Writer:
    """Writes types as JSON in the order of Java's `Schema.toString`."""

    def __init__(self, written: frozenset[str], *, sort_props: bool = False) -> None:
        self._written = set(written)
        self._sort = sort_props

    def write(self, type_: Type, namespace: str) -> Any:
        if isinstance(type_, Primitive):
            return {"type": type_.kind, **self._properties(type_.props)} if type_.props else type_.kind
        if isinstance(type_, Union):
            return [self.write(branch, namespace) for branch in type_.branches]
        if isinstance(type_, Array):
            return {"type": "array", "items": self.write(type_.items, namespace), **self._properties(type_.props)}
        if isinstance(type_, Map):
            return {"type": "map", "values": self.write(type_.values, namespace), **self._properties(type_.props)}
        if type_.full_name in self._written:
            return type_.name if type_.namespace == namespace else type_.full_name
        self._written.add(type_.full_name)
        tree: dict[str, Any] = {"type": type_.kind, "name": type_.name}
        if type_.namespace != namespace:
            tree["namespace"] = type_.namespace
        if type_.doc is not None:
            tree["doc"] = type_.doc
        if isinstance(type_, Record):
            tree["fields"] = [self._field(entry, type_.namespace) for entry in type_.fields]
        elif isinstance(type_, Enum):
            tree["symbols"] = type_.symbols
            if type_.default is not None:
                tree["default"] = type_.default
        else:
            tree["size"] = type_.size
        tree |= self._properties(type_.props)
        if type_.aliases:
            prefix = f"{type_.namespace}."
            tree["aliases"] = [alias.removeprefix(prefix) if type_.namespace else alias for alias in type_.aliases]
        return tree

    def _field(self, entry: Field, namespace: str) -> dict[str, Any]:
        tree: dict[str, Any] = {"name": entry.name, "type": self.write(entry.type, namespace)}
        if entry.doc is not None:
            tree["doc"] = entry.doc
        if entry.has_default:
            tree["default"] = entry.default
        if entry.order != "ascending":
            tree["order"] = entry.order
        if entry.aliases:
            tree["aliases"] = entry.aliases
        return tree | self._properties(entry.props)

    def _properties(self, props: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(props.items())) if self._sort else props


_DESCRIPTIONS: Final = {
    "FIXED_SIZE_MISMATCH": (
        "The size of FIXED type field at path '{path}' in the %s schema does not match with the %s schema"
    ),
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the %s schema does not match with the %s schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": ("The %s schema is missing enum symbols '{detail}' at path '{path}' in the %s schema"),
    "MISSING_UNION_BRANCH": ("The %s schema is missing a type inside a union field at path '{path}' in the %s schema"),
    "READER_FIELD_MISSING_DEFAULT_VALUE": (
        "The field '{detail}' at path '{path}' in the %s schema has no default value and is missing in the %s schema"
    ),
}


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """One reason why a reader cannot read a writer's data: Avro's SchemaCompatibility.Incompatibility."""

    type: str
    path: tuple[str, ...]
    detail: str

    @property
    def location(self) -> str:
        """Return the location in the reader's schema as a JSON pointer."""
        return "/" + "/".join(self.path)

    def message(self) -> str:
        """Return the message as Confluent words it, with `%s` for the sides."""
        description = _DESCRIPTIONS[self.type].replace("{path}", self.location).replace("{detail}", self.detail)
        return f"{{errorType:'{self.type}', description:'{description}', additionalInfo:'{self.detail}'}}"


class _Checker:
    """Avro's ReaderWriterCompatibilityChecker; pairs under way count as compatible, so recursion ends."""

    def __init__(self) -> None:
        self._results: dict[tuple[int, int], list[Incompatibility]] = {}

    def check(self, reader: Type, writer: Type, path: tuple[str, ...]) -> list[Incompatibility]:
        key = (id(reader), id(writer))
        if key not in self._results:
            self._results[key] = []
            self._results[key] = self._compare(reader, writer, path)
        return self._results[key]

    def _compare(self, reader: Type, writer: Type, path: tuple[str, ...]) -> list[Incompatibility]:
        if isinstance(writer, Union):
            if isinstance(reader, Union):
                return self._unions(reader, writer, path)
            return [problem for branch in writer.branches for problem in self.check(reader, branch, path)]
        if isinstance(reader, Union):
            if any(not self.check(branch, writer, path) for branch in reader.branches):
                return []
            return [
                Incompatibility(
                    "MISSING_UNION_BRANCH", path, f"reader union lacking writer type: {writer.kind.upper()}"
                )
            ]
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTIONS.get(reader.kind, ()):
                return []
            detail = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
            return [Incompatibility("TYPE_MISMATCH", path, detail)]
        if isinstance(reader, Array) and isinstance(writer, Array):
            return self.check(reader.items, writer.items, (*path, "items"))
        if isinstance(reader, Map) and isinstance(writer, Map):
            return self.check(reader.values, writer.values, (*path, "values"))
        problems = []
        if isinstance(reader, Named) and isinstance(writer, Named):
            if reader.name != writer.name and writer.full_name not in reader.aliases:
                problems.append(Incompatibility("NAME_MISMATCH", (*path, "name"), f"expected: {writer.full_name}"))
            if isinstance(reader, Fixed) and isinstance(writer, Fixed) and reader.size != writer.size:
                detail = f"expected: {writer.size}, found: {reader.size}"
                problems.append(Incompatibility("FIXED_SIZE_MISMATCH", (*path, "size"), detail))
            if isinstance(reader, Enum) and isinstance(writer, Enum):
                missing = sorted(set(writer.symbols) - set(reader.symbols))
                if missing and reader.default is None:
                    detail = f"[{', '.join(missing)}]"
                    problems.append(Incompatibility("MISSING_ENUM_SYMBOLS", (*path, "symbols"), detail))
            if isinstance(reader, Record) and isinstance(writer, Record):
                problems += self._fields(reader, writer, path)
        return problems

    def _unions(self, reader: Union, writer: Union, path: tuple[str, ...]) -> list[Incompatibility]:
        return [
            Incompatibility(
                "MISSING_UNION_BRANCH", (*path, str(index)), f"reader union lacking writer type: {branch.kind.upper()}"
            )
            for index, branch in enumerate(writer.branches)
            if self.check(reader, branch, (*path, str(index)))
        ]

    def _fields(self, reader: Record, writer: Record, path: tuple[str, ...]) -> list[Incompatibility]:
        problems: list[Incompatibility] = []
        written = {writer_field.name: writer_field for writer_field in writer.fields}
        for position, reader_field in enumerate(reader.fields):
            field_path = (*path, "fields", str(position))
            source = next(
                (written[name] for name in (reader_field.name, *reader_field.aliases) if name in written), None
            )
            if source is not None:
                problems += self.check(reader_field.type, source.type, (*field_path, "type"))
            elif not reader_field.has_default and not (
                isinstance(reader_field.type, Enum) and reader_field.type.default is not None
            ):
                problems.append(Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", field_path, reader_field.name))
        return problems
