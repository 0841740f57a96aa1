"""The schema language: a Kafka message is declared once, as a class whose fields are a table.

Contains only declarations: names, types, version ranges, defaults. `codec` encodes and decodes them, `walk` explains
them byte by byte.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast, dataclass_transform

from ottla.protocol.inspect.secrets import HIDDEN, SECRET_FIELDS, is_secret_config
from ottla.protocol.uuids import ZERO_UUID, Uuid
from ottla.protocol.versions import NO_VERSIONS, format_versions, parse_versions

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = [
    "ZERO_UUID", "Buffer", "Field", "Message", "Records", "Schema", "Struct", "Uuid", "array", "boolean", "bytes_",
    "float64", "format_versions", "int8", "int16", "int32", "int64", "parse_versions", "records_", "string", "struct",
    "uint16", "uint32", "uuid",
]  # fmt: skip

# The value of a `records` field. Decoding gives a memoryview of the frame; encoding takes anything bytes-like,
# or any object with a length, which `encode_parts` hands through as it is (a slice of a file, sent later).
Records: TypeAlias = Any

Buffer: TypeAlias = bytes | bytearray | memoryview


class Field:
    """One field of a message: its versions, its encoding, and its default."""

    __slots__ = (
        "default",
        "factory",
        "flexible",
        "ignorable",
        "kind",
        "name",
        "nullable",
        "of",
        "tag",
        "tagged",
        "versions",
    )

    name: str
    kind: str
    of: str | type[Struct] | None
    versions: range
    nullable: range
    tag: int | None
    tagged: range
    flexible: range
    default: Any
    factory: Callable[[], Any] | None
    ignorable: bool

    def __init__(
        self,
        kind: str,
        of: str | type[Struct] | None,
        default: Any,
        factory: Callable[[], Any] | None,
        versions: str,
        nullable: str,
        tag: int | None,
        tagged: str | None,
        ignorable: bool,
        flexible: str,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.of = of
        self.versions = parse_versions(versions)
        self.nullable = parse_versions(nullable)
        self.tag = tag
        self.tagged = NO_VERSIONS if tag is None else parse_versions(tagged or versions)
        self.flexible = parse_versions(flexible)
        self.default = default
        self.factory = factory
        self.ignorable = ignorable

    def __repr__(self) -> str:
        return f"<Field {self.name}: {self.kind} {format_versions(self.versions)}>"

    @property
    def struct(self) -> type[Struct] | None:
        """The nested structure that this field holds, or holds many of."""
        return None if self.of is None or isinstance(self.of, str) else self.of

    def new_default(self) -> Any:
        """Return the value that a message without this field has."""
        return self.factory() if self.factory is not None else self.default

    def present(self, version: int) -> bool:
        """Return whether the field is written in its place in this version; a tagged field is not."""
        return version in self.versions and version not in self.tagged


def boolean(
    *,
    default: bool = False,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a bool of one byte."""
    return Field("bool", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def int8(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a signed integer of one byte."""
    return Field("int8", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def int16(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a signed integer of two bytes."""
    return Field("int16", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def uint16(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare an unsigned integer of two bytes."""
    return Field("uint16", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def int32(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a signed integer of four bytes."""
    return Field("int32", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def uint32(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare an unsigned integer of four bytes."""
    return Field("uint32", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def int64(
    *,
    default: int = 0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a signed integer of eight bytes."""
    return Field("int64", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def float64(
    *,
    default: float = 0.0,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a floating-point number of eight bytes."""
    return Field("float64", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def uuid(
    *,
    default: Uuid = ZERO_UUID,
    versions: str = "0+",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a Uuid."""
    return Field("uuid", None, default, None, versions, "none", tag, tagged, ignorable, "0+")


def string(
    *,
    default: str | None = "",
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
    flexible: str = "0+",
) -> Any:
    """Declare a string; `flexible` narrows the versions in which its length may be a varint."""
    return Field("string", None, default, None, versions, nullable, tag, tagged, ignorable, flexible)


def bytes_(
    *,
    default: bytes | None = b"",
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare bytes, which are copied out of the frame."""
    return Field("bytes", None, default, None, versions, nullable, tag, tagged, ignorable, "0+")


def records_(
    *,
    default: None = None,
    versions: str = "0+",
    nullable: str = "none",
    ignorable: bool = False,
) -> Any:
    """Declare record batches, which are never copied (see `Records`)."""
    return Field("records", None, default, None, versions, nullable, None, None, ignorable, "0+")


def array(
    of: type[Struct] | Callable[..., Any],
    *,
    default: None = None,
    default_factory: Callable[[], list[Any]] | None = None,
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a list of a structure, or of a primitive that is named by its specifier."""
    element = of if isinstance(of, type) else _PRIMITIVES[of]
    return Field("array", element, default, default_factory, versions, nullable, tag, tagged, ignorable, "0+")


def struct(
    of: type[Struct],
    *,
    default: None = None,
    default_factory: Callable[[], Struct] | None = None,
    versions: str = "0+",
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Declare a nested structure."""
    return Field("struct", of, default, default_factory, versions, nullable, tag, tagged, ignorable, "0+")


_PRIMITIVES: dict[Callable[..., Any], str] = {
    boolean: "bool",
    int8: "int8",
    int16: "int16",
    uint16: "uint16",
    int32: "int32",
    uint32: "uint32",
    int64: "int64",
    float64: "float64",
    uuid: "uuid",
    string: "string",
    bytes_: "bytes",
}


class Schema:
    """The declaration of a message class, for codec, walk and documentation."""

    __slots__ = (
        "api_key", "cls", "decoders", "encoders", "fields", "flexible", "kind", "name", "values", "versions",
        "view_decoders",
    )  # fmt: skip

    def __init__(
        self,
        cls: type[Struct],
        fields: tuple[Field, ...],
        api_key: int | None,
        kind: str,
        versions: range,
        flexible: range,
    ) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.fields = fields
        self.values = attrgetter("unknown_tags", *[field.name for field in fields])
        self.api_key = api_key
        self.kind = kind
        self.versions = versions
        self.flexible = flexible
        # Compiled codecs by version, filled by `codec`.
        self.decoders: dict[int, Callable[[Any, int, bool], Any]] = {}
        self.view_decoders: dict[int, Callable[[Any, int, bool], Any]] = {}
        self.encoders: dict[int, Callable[[Any, list[Any], list[int]], None]] = {}

    def __repr__(self) -> str:
        return f"<Schema {self.name} v{format_versions(self.versions)}>"


class _StructType(type):
    """Moves the declared fields out of the class body, so that they can be slots."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        kind: str = "struct",
        versions: str = "0+",
        flexible: str = "none",
    ) -> _StructType:
        fields = []
        for key, value in list(namespace.items()):
            if isinstance(value, Field):
                value.name = key
                fields.append(value)
                del namespace[key]
        namespace.setdefault("__slots__", tuple([field.name for field in fields]))
        cls = super().__new__(mcls, name, bases, namespace)
        cls.__schema__ = Schema(  # type: ignore[attr-defined]
            cast("type[Struct]", cls),
            tuple(fields),
            api_key,
            kind,
            parse_versions(versions),
            parse_versions(flexible),
        )
        cls.__decoders__ = cls.__schema__.decoders  # type: ignore[attr-defined]
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean, int8, int16, uint16, int32, uint32, int64, float64, uuid, string, bytes_, records_, array,
        struct,
    ),
)  # fmt: skip
class Struct(metaclass=_StructType):
    """A structure inside a message: keyword constructor, equality and repr come from its fields.

    `unknown_tags` has the tagged fields that the schema does not declare, tag to bytes, or is None.
    """

    __slots__ = ("unknown_tags",)
    __schema__: ClassVar[Schema]
    __hash__ = None  # type: ignore[assignment]
    unknown_tags: dict[int, bytes] | None

    def __init__(self, **values: Any) -> None:
        # The first instance of a class builds its constructor; importing a message module builds none.
        cls = type(self)
        cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = self.__schema__.values
        return bool(values(self) == values(other))

    def __repr__(self) -> str:
        shown = [f"{field.name}={_shown(self, field.name)}" for field in self.__schema__.fields]
        if self.unknown_tags:
            shown.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


T = TypeVar("T")


def owned(value: T) -> T:
    """Return a deep copy of a message: a response may share parts with others."""
    if isinstance(value, list):
        return [owned(item) for item in value]  # type: ignore[return-value]
    if not isinstance(value, Struct):
        return value
    copied = type(value)(**{field.name: owned(getattr(value, field.name)) for field in value.__schema__.fields})
    copied.unknown_tags = value.unknown_tags
    return copied


def _shown(message: Struct, name: str) -> str:
    value = getattr(message, name)
    if value and (name in SECRET_FIELDS or (name == "value" and is_secret_config(getattr(message, "name", None)))):
        return HIDDEN
    return repr(value)


def _make_init(cls: type[Struct]) -> Callable[..., None]:
    parameters, lines = [], [" self.unknown_tags = None"]
    scope: dict[str, Any] = {"_absent": object()}
    for field in cls.__schema__.fields:
        name = field.name
        if field.factory is None:
            scope[f"_{name}"] = field.default
            parameters.append(f"{name}=_{name}")
            lines.append(f" self.{name} = {name}")
        else:
            scope[f"_{name}"] = field.factory
            parameters.append(f"{name}=_absent")
            lines.append(f" self.{name} = _{name}() if {name} is _absent else {name}")
    star = ", *, " if parameters else ""
    source = f"def __init__(self{star}{', '.join(parameters)}):\n" + "\n".join(lines)
    exec(source, scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


class Message(Struct):
    """A structure that stands on its own: a request, a response, a header, or the value of a record.

    Its codec for a version is compiled on first use.
    """

    __slots__ = ()
    __decoders__: ClassVar[dict[int, Callable[[Any, int, bool], Any]]]

    @classmethod
    def decode(cls, buffer: Buffer, version: int, position: int = 0) -> Self:
        """Read a message that fills the buffer (from a position on); ProtocolError if it does not, to the byte."""
        if type(buffer) is bytes:
            try:
                decoder = cls.__decoders__[version]
            except KeyError:
                decoder = _codec().decoder(cls, version)
        else:
            buffer = memoryview(buffer)
            decoder = cls.view_decoder(version)
        message: Self = decoder(buffer, position, True)
        return message

    @classmethod
    def decode_from(cls, buffer: Buffer, position: int, version: int) -> tuple[Self, int]:
        """Read a message that starts at a position; return it and the position after it."""
        schema = cls.__schema__
        if type(buffer) is bytes:
            decoder = schema.decoders.get(version) or _codec().decoder(cls, version)
        else:
            buffer = memoryview(buffer)
            decoder = cls.view_decoder(version)
        result: tuple[Self, int] = decoder(buffer, position, False)
        return result

    @classmethod
    def view_decoder(cls, version: int) -> Callable[[memoryview, int, bool], Any]:
        """Return the decoder of this version for memoryviews: from a position to the end, or (False) as far as the
        message goes.

        In the second case it returns the position after the message as well.
        """
        decoder: Callable[[memoryview, int, bool], Any] = cls.__schema__.view_decoders.get(version) or (
            _codec().view_decoder(cls, version)
        )
        return decoder

    def encode(self, version: int) -> bytes:
        """Encode the message; raise ProtocolError if this version cannot hold it."""
        out: list[Any] = []
        encoder = self.__schema__.encoders.get(version) or _codec().encoder(type(self), version)
        try:
            encoder(self, out, [])
            return b"".join(out)
        except Exception as error:
            raise _codec().explain_encode(self, version, error) from None

    def encode_parts(self, version: int) -> list[Any]:
        """Encode the message as parts to be sent in order; large `records` are separate, uncopied parts."""
        encoder = self.__schema__.encoders.get(version) or _codec().encoder(type(self), version)
        out: list[Any] = []
        large: list[int] = []
        try:
            encoder(self, out, large)
            return _join_around(out, large) if large else [b"".join(out)]
        except Exception as error:
            raise _codec().explain_encode(self, version, error) from None


# Shorter records are copied: one more buffer in a vectored write costs more than the copy.
_COPY_BELOW = 1024


def _join_around(out: list[Any], large: list[int]) -> list[Any]:
    parts: list[Any] = []
    start = 0
    for index in large:
        piece = out[index]
        if len(piece) < _COPY_BELOW and isinstance(piece, (bytes, bytearray, memoryview)):
            continue
        if index > start:
            parts.append(b"".join(out[start:index]))
        parts.append(piece)
        start = index + 1
    if start < len(out):
        parts.append(b"".join(out[start:]))
    return parts


def _codec() -> Any:
    from ottla.protocol.codec import compiled as codec

    return codec
