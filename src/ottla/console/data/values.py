"""Keys and values of records as text: JSON, schema-encoded, internal records, plain text, numbers or a hexdump."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.client.formats import Form
from ottla.client.formats import read as read_form
from ottla.client.formats import show as show_form
from ottla.protocol.internal_records import KINDS, explain
from ottla.schemas.registry_client import RegistryClient, RegistryRefusedError, RegistryUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ottla.schemas.values import Decoder

PREVIEW: Final = 300
"""Characters of a key or value in a list."""
WHOLE: Final = 256 * 1024
"""Characters of a key or value that is opened; the rest can be downloaded."""
HEX_BYTES: Final = 16 * 1024
TREE_NODES: Final = 3000
FORMS: Final[tuple[tuple[str, str], ...]] = (
    ("auto", "automatic"),
    ("text", "text"),
    ("json", "JSON"),
    ("schema", "schema"),
    ("hex", "hex"),
    ("base64", "base64"),
    ("int32", "int32"),
    ("int64", "int64"),
    ("float64", "float64"),
)
"""The forms in which a page shows keys and values."""
WRITTEN_FORMS: Final[tuple[tuple[str, str], ...]] = (*FORMS[1:3], ("schema", "schema of a subject"), *FORMS[4:])
"""The forms in which a page takes them."""


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A key or value as text. `kind` is null, json, schema, internal, text or binary; `problem` why a form failed."""

    kind: str
    text: str
    size: int
    cut: bool = False
    problem: str = ""
    tree: Any = None
    """The decoded value, if it has parts."""


class ValueReader:
    """Decodes keys and values; with a registry, also those that a schema describes."""

    def __init__(self, registry: str | None = None) -> None:
        self._registry = None if registry is None else RegistryClient(registry, timeout=5)
        self._decoder: Decoder | None = None

    @property
    def has_registry(self) -> bool:
        """Whether a schema registry is known."""
        return self._registry is not None

    def show(
        self,
        data: bytes | None,
        form: str = "auto",
        *,
        headers: Mapping[str, bytes | None] | None = None,
        is_key: bool = False,
        limit: int = PREVIEW,
    ) -> ShownValue:
        """Return a key or value in a form; `auto` takes the first that fits."""
        if data is None:
            return ShownValue("null", "null", 0)
        if form == "schema" or (form == "auto" and self._registry is not None and data[:1] in (b"\x00", b"\x01")):
            try:
                return _tree_value("schema", self._decode(data, headers, is_key), len(data), limit)
            except (ValueError, RegistryRefusedError, RegistryUnreachableError) as error:
                if form == "schema":
                    return _cut("binary", data[:limit].hex(), len(data), limit, len(data) > limit, str(error))
        if form in ("hex", "base64", "int32", "int64", "float64"):
            part = data[:limit] if form in ("hex", "base64") else data
            return _cut("binary", show_form(part, Form(form)).decode(), len(data), limit, len(part) < len(data))
        if form in ("auto", "json") and data[:1] in b'{["0123456789-tfn \n' and data:
            try:
                tree = json.loads(data)
            except (ValueError, RecursionError) as error:
                if form == "json":
                    return _text(data, limit, problem=f"not JSON: {error}")
            else:
                if form == "json" or isinstance(tree, dict | list):
                    return _tree_value("json", tree, len(data), limit)
        return _text(data, limit)

    def show_internal(
        self, topic: str, key: bytes | None, value: bytes | None, limit: int = PREVIEW
    ) -> ShownValue | None:
        """Return a record of one of Kafka's internal topics as data; None for other topics."""
        kind = KINDS.get(topic)
        if kind is None:
            return None
        return _tree_value("internal", explain(kind, key, value), len(value or b""), limit)

    def encode(self, text: str, form: str, subject: str) -> bytes:
        """Return the bytes that a user wrote in a form; ValueError if they are not in it."""
        if form == "schema":
            if self._registry is None:
                raise ValueError("no schema registry is known: start the console with --registry URL")
            from ottla.schemas.values import Encoder

            try:
                return Encoder(self._registry, subject).encode(json.loads(text))
            except (RegistryRefusedError, RegistryUnreachableError) as error:
                raise ValueError(str(error)) from error
        if form == "json":
            json.loads(text)
        raw = text.encode("utf-8", "surrogateescape")
        return raw if form in ("text", "json") else read_form(raw.strip(), Form(form))

    def _decode(self, data: bytes, headers: Mapping[str, bytes | None] | None, is_key: bool) -> Any:
        if self._registry is None:
            raise ValueError("no schema registry is known: start the console with --registry URL")
        if self._decoder is None:
            from ottla.schemas.values import Decoder

            self._decoder = Decoder(self._registry)
        return self._decoder.decode(data, headers, is_key=is_key)


def _text(data: bytes, limit: int, *, problem: str = "") -> ShownValue:
    part = data[: limit * 4]
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(part) < len(data) and error.start >= len(part) - 4:
            text = part[: error.start].decode("utf-8")  # a character is cut
        else:
            return _cut("binary", data[:limit].hex(" "), len(data), limit, len(data) > limit, problem)
    controls = sum(ord(character) < 32 and character not in "\t\n\r" for character in text)
    if "\0" in text or controls > len(text) // 10:  # a few control characters are shown escaped
        return _cut("binary", data[:limit].hex(" "), len(data), limit, len(data) > limit, problem)
    return _cut("text", text, len(data), limit, len(text) > limit or len(part) < len(data), problem)


def _tree_value(kind: str, tree: Any, size: int, limit: int) -> ShownValue:
    text = json.dumps(tree, ensure_ascii=False, default=_plain, indent=None if limit <= PREVIEW else 2)
    shown = _cut(kind, text, size, limit, len(text) > limit)
    return ShownValue(kind, shown.text, size, shown.cut, "", tree)


def _cut(kind: str, text: str, size: int, limit: int, cut: bool, problem: str = "") -> ShownValue:
    return ShownValue(kind, text[:limit], size, cut, problem)


def _plain(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A line of a JSON tree: a leaf, or the beginning or end of an object or array."""

    depth: int
    name: str
    kind: str
    """open, close, string, number, bool, null, more."""
    text: str


def tree_lines(tree: Any) -> list[TreeLine]:
    """Return the lines of a tree; after TREE_NODES lines, one that says how it continues."""
    lines: list[TreeLine] = []
    for line in _lines(tree, "", 0):
        if len(lines) >= TREE_NODES:
            lines.append(TreeLine(0, "", "more", "the rest is in the text form"))
            break
        lines.append(line)
    return lines


def _lines(tree: Any, name: str, depth: int) -> Iterator[TreeLine]:
    if isinstance(tree, dict | list) and tree and depth < 60:
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        yield TreeLine(depth, name, "open", f"{{{len(tree)}}}" if isinstance(tree, dict) else f"[{len(tree)}]")
        for key, value in items:
            yield from _lines(value, str(key), depth + 1)
        yield TreeLine(depth, "", "close", "")
        return
    if isinstance(tree, bool):
        kind = "bool"
    elif tree is None:
        kind = "null"
    elif isinstance(tree, int | float):
        kind = "number"
    else:
        kind = "string"
    yield TreeLine(depth, name, kind, json.dumps(tree, ensure_ascii=False, default=_plain)[:2000])


def hexdump(data: bytes) -> str:
    """Return the first bytes as offset, hexadecimal and text."""
    lines = []
    for start in range(0, min(len(data), HEX_BYTES), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
