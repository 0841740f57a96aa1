"""Frames: a length, a header, a message. Cuts them out of a stream, encodes and decodes them.

No I/O; the handlers decide which versions a broker serves.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, Any

from ottla.protocol.api import (
    find_api,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages.header import RequestHeader, ResponseHeader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ottla.protocol.schema import Buffer, Message

_LENGTH = Layout(">i")
_KEY_AND_VERSION = Layout(">hh")
_LENGTH_AND_CORRELATION = (Layout(">ii"), Layout(">iix"))

# The default of Kafka's socket.request.max.bytes.
MAX_FRAME_SIZE = 104857600


# -- requests ------------------------------------------------------------------------------------------------------


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """Decode the header of a request (a frame without its length); return it and the position of the request.

    Raise for an unknown API, but not for an unknown version: ApiVersions must be answered in any version.
    """
    if len(frame) < 4:
        raise ProtocolError(
            f"expected an API key and a version of 4 bytes, got {len(frame)}", message="RequestHeader", position=0
        )
    key, version = _KEY_AND_VERSION.unpack_from(frame)
    if find_api(key) is None:
        raise ProtocolError(
            f"expected the key of an API, got {key}", message="RequestHeader", path="request_api_key", position=0
        )
    return RequestHeader.decode_from(frame, 0, request_header_version(key, version))


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """Read a request with its header (a frame without its length)."""
    header, position = decode_request_header(frame)
    request = request_class(header.request_api_key)
    return header, request.decode(frame, header.request_api_version, position)


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message) -> bytes:
    """Write a request as a frame, length first."""
    return b"".join(encode_request_parts(api_key, version, correlation_id, client_id, message))


def encode_request_parts(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Message
) -> list[Any]:
    """Write a request as the parts of a frame, large records uncopied."""
    header = RequestHeader(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    ).encode(request_header_version(api_key, version))
    parts = message.encode_parts(version)
    size = len(header) + sum(map(len, parts))
    return _prepend(_LENGTH.pack(size) + header, parts)


# -- responses -----------------------------------------------------------------------------------------------------


def encode_response(api_key: int, version: int, correlation_id: int, message: Message) -> bytes:
    """Write a response as a frame, length first."""
    return b"".join(encode_response_parts(api_key, version, correlation_id, message))


def encode_response_parts(api_key: int, version: int, correlation_id: int, message: Message) -> list[Any]:
    """Write a response as the parts of a frame, large records uncopied."""
    parts = message.encode_parts(version)
    flexible = response_header_version(api_key, version)
    size = 4 + flexible + sum(map(len, parts))
    return _prepend(_LENGTH_AND_CORRELATION[flexible].pack(size, correlation_id), parts)


def decode_response(frame: Buffer, api_key: int, version: int) -> tuple[ResponseHeader, Message]:
    """Read a response with its header (a frame without its length)."""
    header, position = ResponseHeader.decode_from(frame, 0, response_header_version(api_key, version))
    return header, response_class(api_key).decode(frame, version, position)


def _prepend(prefix: bytes, parts: list[Any]) -> list[Any]:
    if parts and type(parts[0]) is bytes and len(parts[0]) < 4096:
        parts[0] = prefix + parts[0]
    else:
        parts.insert(0, prefix)
    return parts


# -- the stream ----------------------------------------------------------------------------------------------------


class FrameCutter:
    """Takes bytes as they arrive and yields whole frames, without their length.

    Memory grows with the bytes received, not with the announced length. A frame received in one piece is a view of it.
    """

    __slots__ = ("_unfinished", "max_size")

    def __init__(self, max_size: int = MAX_FRAME_SIZE) -> None:
        self.max_size = max_size
        self._unfinished = bytearray()

    @property
    def waiting(self) -> int:
        """The bytes of an unfinished frame."""
        return len(self._unfinished)

    def feed(self, data: Buffer) -> Iterator[memoryview]:
        """Yield the frames that end in these bytes; raise ProtocolError for an invalid length.

        Iterate to the end to consume the bytes. After an error the stream cannot be used.
        """
        view = memoryview(data)
        if self._unfinished:
            view = yield from self._complete_unfinished(view)
        position, end = 0, len(view)
        while end - position >= 4:
            size = self._size(view, position)
            stop = position + 4 + size
            if stop > end:
                break
            yield view[position + 4 : stop]
            position = stop
        self._unfinished += view[position:]

    def _complete_unfinished(self, view: memoryview) -> Generator[memoryview, None, memoryview]:
        """Complete the unfinished frame; return the view of what follows it."""
        unfinished = self._unfinished
        if len(unfinished) < 4:
            missing = 4 - len(unfinished)
            unfinished += view[:missing]
            view = view[missing:]
            if len(unfinished) < 4:
                return view
        stop = 4 + self._size(unfinished, 0)
        missing = stop - len(unfinished)
        unfinished += view[:missing]
        if len(unfinished) == stop:
            self._unfinished = bytearray()
            yield memoryview(unfinished)[4:]
            return view[missing:]
        return view[:0]

    def _size(self, buffer: Buffer, position: int) -> int:
        size: int = _LENGTH.unpack_from(buffer, position)[0]
        if size < 0 or size > self.max_size:
            raise ProtocolError(
                f"expected a frame of 0 to {self.max_size} bytes, got a length of {size}", message="Frame"
            )
        return size
