"""A raw socket with Kafka's framing, for requests that no ordinary client sends."""

from __future__ import annotations

import socket
from struct import Struct
from typing import TYPE_CHECKING, TypeVar, cast

from ottla.protocol.api import response_header_version
from ottla.protocol.framing import encode_request
from ottla.protocol.messages.header import ResponseHeader

if TYPE_CHECKING:
    from types import TracebackType

    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
LENGTH = Struct(">i")
SECONDS = 120.0


class Wire:
    """One connection."""

    def __init__(self, bootstrap: str, *, receive_buffer: int | None = None) -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(SECONDS)
        self.socket.connect((host, int(port)))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def frame(self, body: bytes) -> None:
        """Send bytes with their length."""
        self.send(LENGTH.pack(len(body)) + body)

    def request(self, request: Message, version: int, correlation_id: int = 1) -> None:
        """Send a request."""
        key = request.__schema__.api_key
        assert key is not None
        self.send(encode_request(key, version, correlation_id, "wire", request))

    def read_frame(self) -> bytes:
        """Return the next frame without its length."""
        return self._exactly(LENGTH.unpack(self._exactly(4))[0])

    def answer(self, response: type[R], version: int, correlation_id: int = 1) -> R:
        """Return the next response, which must have the correlation id."""
        frame = self.read_frame()
        key = response.__schema__.api_key
        assert key is not None
        header, position = ResponseHeader.decode_from(frame, 0, response_header_version(key, version))
        assert header.correlation_id == correlation_id
        decoded, end = response.decode_from(frame, position, version)
        assert end == len(frame)
        return cast("R", decoded)

    def ask(self, request: Message, response: type[R], version: int) -> R:
        """Send a request and return its response."""
        self.request(request, version)
        return self.answer(response, version)

    def closed(self) -> bool:
        """Return whether the broker closes the connection without sending more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        result = b""
        while len(result) < count:
            piece = self.socket.recv(count - len(result))
            if not piece:
                raise ConnectionError("the broker hung up")
            result += piece
        return result
