"""The requests that reached a cluster, kept as bytes in bounded memory and decoded when somebody looks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.protocol.api import request_class
from ottla.protocol.framing import decode_request_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.protocol.schema import Message

MOST_REQUESTS = 10_000
MOST_BYTES = 32 * 1024 * 1024


@dataclass(slots=True, eq=False)
class SeenRequest:
    """One request as it came in."""

    time_ms: int
    node: int
    connection: int
    client: str
    client_id: str | None
    principal: str
    api_key: int
    api: str
    version: int
    correlation_id: int
    frame: bytes = field(repr=False)
    _request: Any = field(default=None, repr=False)

    @property
    def request(self) -> Any:
        """The request, decoded; the message class of its API."""
        if self._request is None:
            self._request = read_request(self.frame)
        return self._request


def read_request(frame: bytes | memoryview) -> Message:
    """The request in a frame. Bytes after it are let be, as brokers let them: librdkafka sends some."""
    header, position = decode_request_header(frame)
    found: Message = request_class(header.request_api_key).decode_from(frame, position, header.request_api_version)[0]
    return found


class RequestsSeen:
    """The last requests; the oldest are forgotten when there are too many, or too much of them."""

    def __init__(self, most: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self._seen: deque[SeenRequest] = deque()
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0

    def add(self, seen: SeenRequest) -> None:
        """Remember one more."""
        self._seen.append(seen)
        self._bytes += len(seen.frame)
        while len(self._seen) > self._most or (self._bytes > self._most_bytes and len(self._seen) > 1):
            self._bytes -= len(self._seen.popleft().frame)

    def __iter__(self) -> Iterator[SeenRequest]:
        return iter(list(self._seen))

    def __len__(self) -> int:
        return len(self._seen)

    def clear(self) -> None:
        """Forget them."""
        self._seen.clear()
        self._bytes = 0
