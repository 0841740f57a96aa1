"""Compiles codecs on first use and turns their failures into ProtocolError.

Callers use `Message` (decode, decode_from, encode, encode_parts); `compile_decode` and `compile_encode` write the
source of the codecs.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any

from ottla.protocol.codec.decoder_source import DecoderSource
from ottla.protocol.codec.encoder_source import EncoderSource
from ottla.protocol.codec.wire import FIXED, MAX_LENGTH, MAX_STRING, layout
from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspect.walk import find_error, unsupported_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.protocol.schema import Field, Message, Struct

# Exceptions that generated decoders raise on invalid bytes.
_FAILURES = (struct.error, IndexError, ValueError, OverflowError)


def decoder(cls: type[Message], version: int) -> Callable[[Any, int, bool], Any]:
    """Return the decoder of a version for bytes, compiled once."""
    compiled = cls.__schema__.decoders.get(version)
    if compiled is None:
        compiled = cls.__schema__.decoders[version] = _compile_decoder(cls, version, view=False)
    return compiled


def view_decoder(cls: type[Message], version: int) -> Callable[[Any, int, bool], Any]:
    """Return the decoder of a version for a memoryview, compiled once."""
    compiled = cls.__schema__.view_decoders.get(version)
    if compiled is None:
        compiled = cls.__schema__.view_decoders[version] = _compile_decoder(cls, version, view=True)
    return compiled


def encoder(cls: type[Message], version: int) -> Callable[[Any, list[Any], list[int]], None]:
    """Return the encoder of a version, compiled once."""
    compiled = cls.__schema__.encoders.get(version)
    if compiled is None:
        if version not in cls.__schema__.versions:
            raise unsupported_version(cls, version)
        source = EncoderSource(cls, version)
        exec(compile(source.text, f"<encode {cls.__name__} v{version}>", "exec"), source.scope)
        compiled = cls.__schema__.encoders[version] = source.scope["encode"]
    return compiled


def _compile_decoder(cls: type[Message], version: int, view: bool) -> Callable[[Any, int, bool], Any]:
    if version not in cls.__schema__.versions:
        raise unsupported_version(cls, version)

    def explain(buffer: bytes | memoryview, position: int, whole: bool) -> ProtocolError:
        return find_error(cls, buffer, version, position, whole)

    @functools.cache
    def compiled(lenient: bool) -> Callable[[Any, int, bool], Any]:
        source = DecoderSource(cls, version, view, lenient)
        # Invalid UTF-8 is rare: the lenient decoder is compiled when a string needs it.
        source.scope.update(
            failures=_FAILURES,
            explain=explain,
            lenient=lambda buffer, position, whole: compiled(True)(buffer, position, whole),
        )
        exec(compile(source.text, f"<decode {cls.__name__} v{version}>", "exec"), source.scope)
        decode: Callable[[Any, int, bool], Any] = source.scope["decode"]
        return decode

    return compiled(False)


def decoder_source(cls: type[Message], version: int) -> str:
    """Return the generated source of a decoder, for reading."""
    return DecoderSource(cls, version, view=False).text


def encoder_source(cls: type[Message], version: int) -> str:
    """Return the generated source of an encoder, for reading."""
    return EncoderSource(cls, version).text


# -- the error of a message that cannot be encoded -----------------------------------------------------------------


def explain_encode(message: Message, version: int, error: Exception) -> ProtocolError:
    """Return the error of a message that did not encode, with the path of the invalid field."""
    schema = message.__schema__
    if isinstance(error, ProtocolError):
        return error
    try:
        _check_struct(message, version, version in schema.flexible, "")
    except _NotEncodableError as problem:
        return ProtocolError(problem.expected, message=schema.name, version=version, path=problem.path)
    return ProtocolError(f"cannot be encoded: {error}", message=schema.name, version=version)


class _NotEncodableError(Exception):
    def __init__(self, path: str, expected: str) -> None:
        super().__init__(path, expected)
        self.path = path
        self.expected = expected


def _check_struct(value: Struct, version: int, flexible: bool, prefix: str) -> None:
    for field in value.__schema__.fields:
        path = prefix + field.name
        try:
            item = getattr(value, field.name)
        except AttributeError:
            raise _NotEncodableError(path, "expected a value, got none") from None
        if version not in field.versions:
            if not field.ignorable and item != field.new_default():
                raise _NotEncodableError(path, f"expected the default {field.new_default()!r} in this version")
        else:
            _check_field(field, item, version, flexible, path)
    if value.unknown_tags:
        if not flexible:
            raise _NotEncodableError(f"{prefix}unknown_tags", "expected no tagged fields in this version")
        for tag, data in value.unknown_tags.items():
            if not isinstance(tag, int) or not 0 <= tag <= MAX_LENGTH or not isinstance(data, (bytes, bytearray)):
                raise _NotEncodableError(f"{prefix}unknown_tags", "expected tags with bytes")


def _check_field(field: Field, value: Any, version: int, flexible: bool, path: str) -> None:
    if value is None:
        if version not in field.nullable:
            raise _NotEncodableError(path, f"expected {field.kind}, got null, which it may not be")
    elif field.kind == "array":
        if not hasattr(value, "__len__") or isinstance(value, (str, bytes)):
            raise _NotEncodableError(path, f"expected a list, got {value!r:.60}")
        for index, item in enumerate(value):
            if isinstance(field.of, str):
                _check_value(field.of, item, f"{path}[{index}]")
            elif type(item) is not field.of:
                expected = field.of.__name__ if field.of is not None else "a structure"
                raise _NotEncodableError(f"{path}[{index}]", f"expected {expected}, got {item!r:.60}")
            else:
                _check_struct(item, version, flexible, f"{path}[{index}].")
    elif field.kind == "struct":
        assert field.struct is not None
        if type(value) is not field.struct:
            raise _NotEncodableError(path, f"expected {field.struct.__name__}, got {value!r:.60}")
        _check_struct(value, version, flexible, f"{path}.")
    else:
        _check_value(field.kind, value, path)


def _check_value(kind: str, value: Any, path: str) -> None:
    if kind in FIXED:
        try:
            layout(FIXED[kind][0]).pack(value)
        except struct.error:
            raise _NotEncodableError(path, f"expected {kind}, got {value!r:.60}") from None
    elif kind == "string":
        try:
            size = len(value.encode())
        except (AttributeError, ValueError):
            raise _NotEncodableError(path, f"expected string, got {value!r:.60}") from None
        if size > MAX_STRING:
            raise _NotEncodableError(path, f"expected string of at most {MAX_STRING} bytes, got {size}")
    elif kind == "bytes":
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise _NotEncodableError(path, f"expected bytes, got {value!r:.60}")
    elif not isinstance(value, (bytes, bytearray, memoryview)):
        if hasattr(value, "__len__") and not isinstance(value, (str, list, tuple, dict)):
            raise _NotEncodableError(path, "expected bytes; an object with only a length needs encode_parts")
        raise _NotEncodableError(path, f"expected records, got {value!r:.60}")
