"""One request and its response, as rules see them: independent of sockets, and of who serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ottla.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.testing.control.requests import ReceivedRequest
    from ottla.world.clock import Clock

    Answer = Sequence[Part] | Pending[Sequence[Part]] | None
    """A response frame in parts, a response to come, or None: no response is sent."""

Edit = Callable[[Any], Any]
"""Takes a response message and returns the one to send."""


class Exchange(Protocol):
    """One request, and what a rule can do with it."""

    received: ReceivedRequest
    request: Any

    def keep(self) -> None:
        """Copy borrowed bytes: the request is needed after this iteration of the event loop."""
        ...

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Let the broker handle the request; `edit` may change the response before it is encoded."""
        ...

    def encode(self, response: Message) -> Sequence[Part]:
        """Return the frame of a response."""
        ...

    def error_response(self, request: Any, code: ErrorCode) -> Any:
        """Return the response that reports an error for the whole request."""
        ...

    def close(self, *, abort: bool) -> None:
        """Close the connection: at once with `abort`, else after responses in progress have been sent."""
        ...

    def topic_name(self, topic_id: Any) -> str | None:
        """Return the name of the topic with this id, or None."""
        ...

    def topic_id(self, name: str) -> Any:
        """Return the id of the topic with this name, or None."""
        ...

    def session_partitions(self) -> list[tuple[str, int]]:
        """Return the partitions of the request's fetch session (KIP-227)."""
        ...


def then(response: Answer, change: Callable[[Sequence[Part]], Any]) -> Answer:
    """Return the answer after `change`, now or when it is complete; `change` returns None to send nothing."""
    if response is None:
        return None
    if not isinstance(response, Pending):
        changed: Answer = change(response)
        return changed
    result: Pending[Sequence[Part]] = Pending(response.cancel, effect_applied=response.effect_applied)

    def on_complete(parts: Sequence[Part]) -> None:
        complete(result, change(parts))

    response.on_complete(on_complete)
    return result


def complete(pending: Pending[Sequence[Part]], response: Answer) -> None:
    """Complete a pending answer with another one, which may itself be pending."""
    if isinstance(response, Pending):
        response.on_complete(pending.complete)
    elif not pending.settled:
        pending.complete(() if response is None else response)


def release_parts(parts: Sequence[Part]) -> None:
    """Release the file ranges of a response that is not sent."""
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            part.release()


def join_parts(parts: Sequence[Part]) -> bytes:
    """Return a response as bytes; file ranges are read and released."""
    pieces = []
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            pieces.append(bytes(part))
        else:
            pieces.append(part.read(0, len(part)))
            part.release()
    return b"".join(pieces)


def lose_response(exchange: Exchange) -> Answer:
    """Let the broker handle the request, and close the connection without a response."""

    def close(parts: Sequence[Part]) -> None:
        release_parts(parts)
        exchange.close(abort=True)

    return then(exchange.serve(exchange.request), close)


def cut_response(exchange: Exchange, after: int | None = None) -> Answer:
    """Send only the first `after` bytes of the response (half of it by default), and close the connection."""

    def shorten(parts: Sequence[Part]) -> Sequence[Part]:
        frame = join_parts(parts)
        exchange.close(abort=False)
        return [frame[: len(frame) // 2 if after is None else after]]

    return then(exchange.serve(exchange.request), shorten)


def delay_response(exchange: Exchange, clock: Clock, seconds: float) -> Answer:
    """Let the broker handle the request at once, and send its response later."""

    def delay(parts: Sequence[Part]) -> Pending[Sequence[Part]]:
        pending: Pending[Sequence[Part]] = Pending(effect_applied=True)
        clock.call_later(seconds, complete, pending, parts)
        return pending

    return then(exchange.serve(exchange.request), delay)
