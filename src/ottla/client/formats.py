"""Prints records in kcat's format strings; converts keys, values and headers to and from text forms."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.client.reading import Read


class Form(StrEnum):
    """The text forms of a key or value."""

    RAW = "raw"
    HEX = "hex"
    BASE64 = "base64"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    AVRO = "avro"
    JSON_SCHEMA = "json-schema"
    PROTOBUF = "protobuf"
    REGISTRY = "registry"
    """JSON, encoded under a schema of a registry, of the named type or of any."""


_NUMBERS = {Form.INT32: struct.Struct(">i"), Form.INT64: struct.Struct(">q"), Form.FLOAT64: struct.Struct(">d")}
_TOKEN = re.compile(rb"%(?P<letter>.)|\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|(?P<escape>.))", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def show(value: bytes | None, form: Form, null: bytes = b"") -> bytes:
    """Return bytes in a form; bytes that do not have the length of a number form are returned in hexadecimal."""
    if value is None:
        return null
    if form is Form.RAW:
        return value
    if form is Form.BASE64:
        return base64.b64encode(value)
    number = _NUMBERS.get(form)
    if number is not None and len(value) == number.size:
        return str(number.unpack(value)[0]).encode()
    return value.hex().encode()


def read(text: bytes, form: Form) -> bytes:
    """Return the bytes of a text in a form; raise ValueError if it is not in that form."""
    if form is Form.RAW:
        return text
    try:
        if form is Form.HEX:
            return bytes.fromhex(text.decode("ascii"))
        if form is Form.BASE64:
            return base64.b64decode(text, validate=True)
        number = float(text) if form is Form.FLOAT64 else int(text)
        return _NUMBERS[form].pack(number)
    except (ValueError, struct.error, binascii.Error) as error:
        raise ValueError(f"{text.decode(errors='replace')!r} is not {form.value}: {error}") from error


def escaped(text: str) -> bytes:
    r"""Return the bytes of a text whose \n, \t, \r, \0, \\ and \xNN are escapes."""

    def replace(match: re.Match[bytes]) -> bytes:
        return match.group(0) if match["letter"] is not None else _unescape(match)

    return _TOKEN.sub(replace, text.encode("utf-8", "surrogateescape"))


def pattern(text: str, key: Form = Form.RAW, value: Form = Form.RAW, null: bytes = b"") -> Callable[[Read], bytes]:
    """Return a function that formats a record as kcat's -f does; raise ValueError for an unknown letter.

    %s value, %S its length (-1 for none), %R its length as 4 bytes, %k key, %K its length, %t topic, %p partition,
    %o offset, %T timestamp in ms, %h headers as name=value with commas, %% a percent sign.
    """
    fields: dict[bytes, Callable[[Read], bytes]] = {
        b"s": lambda read: show(read.record.value, value, null),
        b"S": lambda read: _length(read.record.value),
        b"R": lambda read: struct.pack(">i", -1 if read.record.value is None else len(read.record.value)),
        b"k": lambda read: show(read.record.key, key, null),
        b"K": lambda read: _length(read.record.key),
        b"t": lambda read: read.topic.encode(),
        b"p": lambda read: b"%d" % read.partition,
        b"o": lambda read: b"%d" % read.record.offset,
        b"T": lambda read: b"%d" % read.record.timestamp,
        b"h": lambda read: b",".join(
            name.encode() + b"=" + show(data, value, null) for name, data in read.record.headers
        ),
    }
    raw = text.encode("utf-8", "surrogateescape")
    parts: list[bytes | Callable[[Read], bytes]] = []
    position = 0
    for match in _TOKEN.finditer(raw):
        parts.append(raw[position : match.start()])
        position = match.end()
        letter = match["letter"]
        if letter is None:
            parts.append(_unescape(match))
        elif letter == b"%":
            parts.append(b"%")
        elif letter in fields:
            parts.append(fields[letter])
        else:
            known = " ".join(f"%{name.decode()}" for name in fields)
            raise ValueError(f"-f {text}: %{letter.decode(errors='replace')} is unknown; use {known} %%")
    parts.append(raw[position:])
    if raw.endswith(b"%") and not raw.endswith(b"%%"):
        raise ValueError(f"-f {text}: write %% for a percent sign")
    return lambda read: b"".join(part if isinstance(part, bytes) else part(read) for part in parts)


def _length(value: bytes | None) -> bytes:
    return b"-1" if value is None else b"%d" % len(value)


def _unescape(match: re.Match[bytes]) -> bytes:
    if match["hex"] is not None:
        return bytes([int(match["hex"], 16)])
    return _ESCAPES.get(match["escape"], match.group(0))
