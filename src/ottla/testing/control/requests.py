"""The requests that a cluster or a tap received last: kept as bytes, decoded on access."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.protocol.api import request_class
from ottla.protocol.framing import decode_request_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.protocol.schema import Message

MAX_REQUESTS = 10_000
MAX_BYTES = 32 * 1024 * 1024


@dataclass(slots=True, eq=False)
class ReceivedRequest:
    """One request as it was received. `client` is the client's `host:port`, `connection` a number on its node."""

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
        """The decoded request, of its API's message class (`ottla.protocol.messages`)."""
        if self._request is None:
            self._request = read_request(self.frame)
        return self._request


def read_request(frame: bytes | memoryview) -> Message:
    """Decode a request frame. Trailing bytes are ignored, as Kafka does: librdkafka sends some."""
    header, position = decode_request_header(frame)
    request: Message = request_class(header.request_api_key).decode_from(frame, position, header.request_api_version)[0]
    return request


class ReceivedRequests:
    """The last requests; the oldest are discarded beyond `max_requests` or `max_bytes`."""

    def __init__(self, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES) -> None:
        self._requests: deque[ReceivedRequest] = deque()
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._bytes = 0
        self.total = 0
        """The number of requests received, discarded ones included."""

    def add(self, received: ReceivedRequest) -> None:
        """Append a request, and discard the oldest ones beyond the limits."""
        self.total += 1
        self._requests.append(received)
        self._bytes += len(received.frame)
        while len(self._requests) > self._max_requests or (self._bytes > self._max_bytes and len(self._requests) > 1):
            self._bytes -= len(self._requests.popleft().frame)

    def select(
        self, api_keys: frozenset[int] | None = None, node: int | None = None, client_id: str | None = None
    ) -> list[ReceivedRequest]:
        """Return the requests that match all conditions, oldest first; None matches every request."""
        return [
            received
            for received in self._requests
            if (api_keys is None or received.api_key in api_keys)
            and (node is None or received.node == node)
            and (client_id is None or received.client_id == client_id)
        ]

    def __iter__(self) -> Iterator[ReceivedRequest]:
        return iter(list(self._requests))

    def __len__(self) -> int:
        return len(self._requests)

    def clear(self) -> None:
        """Discard all requests."""
        self._requests.clear()
        self._bytes = 0
