"""The syntax of .proto files (proto2 and proto3): text to a tree and back.

`parse_file` accepts what protoc's parser accepts, without its checks of names and numbers: those are made by
google.protobuf when a schema is built. Written here because no maintained package parses .proto text in process
without a compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ottla.schemas.schema import MAX_DEPTH, MAX_SCHEMA_BYTES, InvalidSchemaError

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)f?)
  | (?P<name>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
  | (?P<sign>-(?=inf|nan))
  | (?P<symbol>[{}()\[\]<>;=,:/])
    """,
    re.VERBOSE | re.DOTALL,
)
LABELS: Final = ("optional", "required", "repeated")


@dataclass(slots=True)
class Option:
    """An option: its name as written, with parentheses for custom ones, and its value as written."""

    name: str
    value: str


@dataclass(slots=True)
class Field:
    """A field of a message, a oneof or an extension; maps have the type `map<K, V>`."""

    name: str
    type: str
    number: int
    label: str | None = None
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class OneOf:
    """A oneof."""

    name: str
    fields: list[Field] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Constant:
    """A constant of an enum."""

    name: str
    number: int
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Enum:
    """An enum."""

    name: str
    constants: list[Constant] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Extend:
    """An `extend` block."""

    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Message:
    """A message. `ranges` has `extensions` clauses, `reserved` those of `reserved`, as written."""

    name: str
    fields: list[Field] = field(default_factory=list)
    oneofs: list[OneOf] = field(default_factory=list)
    types: list[Message | Enum] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)


@dataclass(slots=True)
class Method:
    """An rpc of a service."""

    name: str
    request: str
    response: str
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class Service:
    """A service."""

    name: str
    methods: list[Method] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)


@dataclass(slots=True)
class File:
    """A .proto file. Imports keep their modifier: `"x.proto"`, `public "x.proto"`, `weak "x.proto"`."""

    syntax: str | None = None
    package: str = ""
    imports: list[tuple[str, str]] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    types: list[Message | Enum] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)


def parse_file(text: str) -> File:
    """Parse a .proto file; InvalidSchemaError names the line."""
    if len(text) > MAX_SCHEMA_BYTES:
        raise InvalidSchemaError(f"the schema is larger than {MAX_SCHEMA_BYTES} characters")
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(f"unexpected {text[position]!r}", position)
            if match.lastgroup != "space":
                self._tokens.append((match.lastgroup or "", match.group(), position))
            position = match.end()
        self._next = 0
        self._depth = 0

    def _error(self, message: str, position: int | None = None) -> InvalidSchemaError:
        if position is None:
            position = self._tokens[self._next][2] if self._next < len(self._tokens) else len(self._text)
        return InvalidSchemaError(f"line {self._text.count(chr(10), 0, position) + 1}: {message}")

    def _peek(self) -> str:
        return self._tokens[self._next][1] if self._next < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else "end"

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if not token or (expected is not None and token != expected):
            raise self._error(f"expected {expected or 'more'!r}, found {token or 'the end'!r}")
        self._next += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._peek() == token:
            self._next += 1
            return True
        return False

    def _name(self) -> str:
        if self._kind() != "name":
            raise self._error(f"expected a name, found {self._peek() or 'the end'!r}")
        return self._take()

    def _string(self) -> str:
        if self._kind() != "string":
            raise self._error(f"expected a string, found {self._peek() or 'the end'!r}")
        parts = []
        while self._kind() == "string":
            parts.append(self._take()[1:-1])
        return "".join(parts)

    def _number(self) -> int:
        if self._kind() != "number":
            raise self._error(f"expected a number, found {self._peek() or 'the end'!r}")
        token = self._take()
        try:
            return int(token, 8) if re.fullmatch(r"[+-]?0[0-7]+", token) else int(token, 0)
        except ValueError:
            raise self._error(f"expected a whole number, found {token!r}") from None

    def file(self) -> File:
        file = File()
        while self._next < len(self._tokens):
            if self._accept(";"):
                continue
            keyword = self._name()
            if keyword in ("syntax", "edition"):
                self._take("=")
                file.syntax = self._string()
                if keyword == "edition" or file.syntax not in ("proto2", "proto3"):
                    raise self._error(f"unsupported syntax {file.syntax!r}: use proto2 or proto3")
                self._take(";")
            elif keyword == "package":
                file.package = self._name()
                self._take(";")
            elif keyword == "import":
                modifier = self._take() if self._peek() in ("public", "weak") else ""
                file.imports.append((modifier, self._string()))
                self._take(";")
            elif keyword == "option":
                file.options.append(self._option())
                self._take(";")
            elif keyword == "message":
                file.types.append(self._message(file.syntax != "proto3"))
            elif keyword == "enum":
                file.types.append(self._enum())
            elif keyword == "extend":
                file.extends.append(self._extend())
            elif keyword == "service":
                file.services.append(self._service())
            else:
                self._next -= 1
                raise self._error(f"unexpected {keyword!r}")
        return file

    def _option(self) -> Option:
        name = ""
        while True:
            if self._accept("("):
                name += f"({self._name()})"
                self._take(")")
            else:
                name += self._name()
            if self._kind() == "name" and self._peek().startswith("."):
                continue
            break
        self._take("=")
        return Option(name, self._value())

    def _value(self) -> str:
        if self._peek() == "{":
            return self._aggregate()
        if self._kind() == "string":
            return f'"{self._string()}"'
        sign = self._take() if self._kind() == "sign" else ""
        if self._kind() not in ("name", "number"):
            raise self._error(f"expected a value, found {self._peek() or 'the end'!r}")
        return sign + self._take()

    def _aggregate(self) -> str:
        parts, depth = [], 0
        while True:
            token = self._take()
            parts.append(token)
            depth += token in ("{", "[")
            depth -= token in ("}", "]")
            if depth > MAX_DEPTH:
                raise self._error(f"the schema nests deeper than {MAX_DEPTH} levels")
            if depth == 0:
                return " ".join(parts)

    def _options(self) -> list[Option]:
        options = []
        if self._accept("["):
            while True:
                options.append(self._option())
                if not self._accept(","):
                    break
            self._take("]")
        return options

    def _message(self, proto2: bool, name: str | None = None) -> Message:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"the schema nests deeper than {MAX_DEPTH} levels")
        message = Message(self._name() if name is None else name)
        self._take("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            keyword = self._peek()
            following = self._tokens[self._next + 1][1] if self._next + 1 < len(self._tokens) else ""
            if keyword == "message" and following not in ("=", ";"):
                self._take()
                message.types.append(self._message(proto2))
            elif keyword == "enum":
                self._take()
                message.types.append(self._enum())
            elif keyword == "oneof":
                self._take()
                message.oneofs.append(self._oneof(message))
            elif keyword == "option":
                self._take()
                message.options.append(self._option())
                self._take(";")
            elif keyword == "reserved":
                self._take()
                message.reserved.append(self._clause())
            elif keyword == "extensions":
                self._take()
                message.ranges.append(self._clause())
            elif keyword == "extend":
                self._take()
                message.extends.append(self._extend())
            else:
                message.fields.append(self._field(message))
        self._depth -= 1
        return message

    def _clause(self) -> str:
        parts: list[str] = []
        while not self._accept(";"):
            token = self._take()
            if token == "," and parts:
                parts[-1] += ","
            else:
                parts.append(token)
        return " ".join(parts)

    def _field(self, message: Message | None) -> Field:
        label = self._take() if self._peek() in LABELS else None
        if self._peek() == "group":
            return self._group(message, label)
        if self._peek() == "map" and self._tokens[self._next + 1 : self._next + 2][0][1:2] == ("<",):
            self._take()
            self._take("<")
            key = self._name()
            self._take(",")
            type_ = f"map<{key}, {self._name()}>"
            self._take(">")
        else:
            type_ = self._name()
        name = self._name()
        self._take("=")
        number = self._number()
        options = self._options()
        self._take(";")
        return Field(name, type_, number, label, options)

    def _group(self, message: Message | None, label: str | None) -> Field:
        self._take("group")
        name = self._name()
        self._take("=")
        number = self._number()
        options = self._options()
        nested = self._message(True, name)
        if message is None:
            raise self._error("a group must be inside a message")
        message.types.append(nested)
        return Field(name.lower(), name, number, label, [*options, Option("group", "true")])

    def _oneof(self, message: Message) -> OneOf:
        oneof = OneOf(self._name())
        self._take("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            if self._accept("option"):
                oneof.options.append(self._option())
                self._take(";")
            else:
                oneof.fields.append(self._field(message))
        return oneof

    def _extend(self) -> Extend:
        extend = Extend(self._name())
        self._take("{")
        while not self._accept("}"):
            if not self._accept(";"):
                extend.fields.append(self._field(None))
        return extend

    def _enum(self) -> Enum:
        enum = Enum(self._name())
        self._take("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            if self._accept("option"):
                enum.options.append(self._option())
                self._take(";")
            elif self._accept("reserved"):
                enum.reserved.append(self._clause())
            else:
                name = self._name()
                self._take("=")
                number = self._number()
                enum.constants.append(Constant(name, number, self._options()))
                self._take(";")
        return enum

    def _service(self) -> Service:
        service = Service(self._name())
        self._take("{")
        while not self._accept("}"):
            if self._accept(";"):
                continue
            if self._accept("option"):
                service.options.append(self._option())
                self._take(";")
                continue
            self._take("rpc")
            method = Method(self._name(), self._call_type(), "")
            self._take("returns")
            method.response = self._call_type()
            if self._accept("{"):
                while not self._accept("}"):
                    if self._accept("option"):
                        method.options.append(self._option())
                    self._take(";")
            else:
                self._take(";")
            service.methods.append(method)
        return service

    def _call_type(self) -> str:
        self._take("(")
        stream = self._accept("stream")
        name = self._name()
        self._take(")")
        return f"stream {name}" if stream else name


def write_file(file: File) -> str:
    """Return a file as text, in the form in which Confluent's registry stores it."""
    lines = [f'syntax = "{file.syntax}";'] if file.syntax else []
    lines += [f"package {file.package};"] if file.package else []
    sections = [lines] if lines else []
    if file.imports:
        order = {"": 0, "public": 1, "weak": 2}
        imports = sorted(file.imports, key=lambda entry: order[entry[0]])
        sections.append([f'import {f"{modifier} " if modifier else ""}"{path}";' for modifier, path in imports])
    if file.options:
        sections.append([f"option {option.name} = {option.value};" for option in file.options])
    body: list[str] = []
    for type_ in file.types:
        body += _type(type_, "")
    for extend in file.extends:
        body += _extend(extend, "")
    for service in file.services:
        body += _service(service)
    if body:
        sections.append(body)
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _type(type_: Message | Enum, indent: str) -> list[str]:
    inner = indent + "  "
    if isinstance(type_, Enum):
        lines = [f"{indent}enum {type_.name} {{"]
        lines += [f"{inner}option {option.name} = {option.value};" for option in type_.options]
        lines += [f"{inner}reserved {clause};" for clause in type_.reserved]
        lines += [
            f"{inner}{constant.name} = {constant.number}{_bracketed(constant.options)};" for constant in type_.constants
        ]
        return [*lines, f"{indent}}}"]
    lines = [f"{indent}message {type_.name} {{"]
    sections: list[list[str]] = []
    if type_.options:
        sections.append([f"{inner}option {option.name} = {option.value};" for option in type_.options])
    if type_.reserved:
        sections.append([f"{inner}reserved {clause};" for clause in type_.reserved])
    if type_.fields:
        sections.append([_field(entry, inner) for entry in type_.fields])
    sections += [_oneof(oneof, inner) for oneof in type_.oneofs]
    if type_.ranges:
        sections.append([f"{inner}extensions {clause};" for clause in type_.ranges])
    sections += [_type(nested, inner) for nested in type_.types]
    sections += [_extend(extend, inner) for extend in type_.extends]
    for number, section in enumerate(sections):
        lines += [""] if number else []
        lines += section
    return [*lines, f"{indent}}}"]


def _field(entry: Field, indent: str) -> str:
    label = f"{entry.label} " if entry.label else ""
    return f"{indent}{label}{entry.type} {entry.name} = {entry.number}{_bracketed(entry.options)};"


def _oneof(oneof: OneOf, indent: str) -> list[str]:
    inner = indent + "  "
    options = [f"{inner}option {option.name} = {option.value};" for option in oneof.options]
    return [
        f"{indent}oneof {oneof.name} {{",
        *options,
        *(_field(entry, inner) for entry in oneof.fields),
        f"{indent}}}",
    ]


def _extend(extend: Extend, indent: str) -> list[str]:
    return [
        f"{indent}extend {extend.name} {{",
        *(_field(entry, indent + "  ") for entry in extend.fields),
        f"{indent}}}",
    ]


def _service(service: Service) -> list[str]:
    lines = [f"service {service.name} {{", *(f"  option {option.name} = {option.value};" for option in service.options)]
    for method in service.methods:
        head = f"  rpc {method.name} ({method.request}) returns ({method.response})"
        if method.options:
            options = [f"    option {option.name} = {option.value};" for option in method.options]
            lines += [f"{head} {{", *options, "  };"]
        else:
            lines.append(f"{head};")
    return [*lines, "}"]


def _bracketed(options: list[Option]) -> str:
    return " [" + ", ".join(f"{option.name} = {option.value}" for option in options) + "]" if options else ""
