"""One client connection: frames in, responses out in request order, with back-pressure both ways.

Reads and writes frames; the dispatcher interprets them. Frames are views of the receive buffer and are valid only
during `handle`. As in Kafka, one request of a connection is in progress: the next frame is taken when the last response
is known, or when the last request has taken effect and only its response waits (`Pending.effect_applied`).
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from ottla.broker.session import LARGE_FRAME
from ottla.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.session import Session
    from ottla.server.frame_memory import FrameMemory
    from ottla.world.clock import Clock, Timer

log = logging.getLogger(__name__)

LENGTH = Struct(">i")
INITIAL_BUFFER = 16 * 1024
WRITE_PIECE = 1024 * 1024
COPIED = 16 * 1024  # smaller parts are copied together: cheaper than a vector of small pieces
MAX_UNANSWERED = 64
MAX_PER_TURN = 64  # requests of one connection per turn of the loop


class BadFrameError(Exception):
    """Bytes that are not a request; the connection closes."""


class Slice(Protocol):
    """A range of a file that is read while the socket drains."""

    def __len__(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Return bytes of the range."""
        ...

    def release(self) -> None:
        """Release the range."""
        ...


Part = bytes | bytearray | memoryview | Slice
Answer = "Sequence[Part] | Pending[Sequence[Part]] | None"


class Dispatcher(Protocol):
    """The node as a connection uses it."""

    clock: Clock
    memory: FrameMemory

    @property
    def max_frame_size(self) -> int:
        """The largest request of an authenticated client."""
        ...

    @property
    def max_sasl_frame_size(self) -> int:
        """The largest request of a client that is not authenticated yet."""
        ...

    def connected(self, connection: Connection) -> Session | None:
        """Return the session of a new connection; None refuses it."""
        ...

    def disconnected(self, connection: Connection, session: Session) -> None:
        """Remove a closed connection."""
        ...

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Handle one frame; return the parts of the response, a Pending, or None if there is no response (acks=0)."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol of one socket; Kafka's KafkaChannel with its part of the Processor."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._buffer = bytearray(INITIAL_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._responses: deque[Sequence[Part] | Pending[Sequence[Part]]] = deque()
        self._out: deque[Part] = deque()
        self._slice_position = 0
        self._writable = True
        self._reading = True
        self._busy = False
        self._draining = False
        self._held = False
        self._mute: Timer | None = None
        self._always_allowed = min(dispatcher.max_frame_size, dispatcher.max_sasl_frame_size)
        self._memory = dispatcher.memory
        self._reserved = 0
        self._waits_for_memory = False
        self._frame: memoryview | None = None  # a large frame while it is received
        self._frame_end = 0
        self._continuation: Timer | None = None
        self._transport: asyncio.Transport | None = None
        self.session: Session | None = None
        self.reason: str | None = None
        self.last_active = self._clock.monotonic()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open a session for a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_PIECE, low=WRITE_PIECE // 4)
        self.session = self._dispatcher.connected(self)
        if self.session is None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel pending responses, release file ranges and memory, and end the session."""
        self._transport = None
        responses, self._responses = self._responses, deque()
        for response in responses:
            if isinstance(response, Pending):
                if response.done:
                    _release(response.response)
                response.cancel()
            else:
                _release(response)
        _release(self._out)
        self._out.clear()
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        self._frame = None
        self._release_memory()
        if self._waits_for_memory:
            self._memory.forget(self._memory_available)
        if self.session is not None:
            session, self.session = self.session, None
            self._dispatcher.disconnected(self, session)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._frame is not None:
            return self._frame[self._frame_end :]
        if self._end == len(self._buffer):
            self._make_space()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the frames that are complete with these bytes."""
        if self._frame is None:
            self._end += nbytes
        else:
            self._frame_end += nbytes
        self.last_active = self._clock.monotonic()
        self._work()

    def eof_received(self) -> bool:
        """Close the socket, also with responses pending, as Kafka does."""
        return False

    def pause_writing(self) -> None:
        """Take no requests while the client reads too slowly."""
        self._writable = False

    def resume_writing(self) -> None:
        """Take requests again."""
        self._writable = True
        self._work()

    # Called by the server

    @property
    def peer_address(self) -> tuple[str, int]:
        """Return the client's host and port."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (name[0], name[1]) if name else ("unknown", 0)

    @property
    def own_host(self) -> str:
        """Return the local address that the client connected to."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else "localhost"

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the verified TLS certificate of the client; None without one."""
        tls_object = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return None if tls_object is None else tls_object.getpeercert()

    @property
    def peer(self) -> str:
        """Return the client's address as text."""
        if self.session is not None:
            return f"{self.session.host}:{self.session.port}"
        return "{}:{}".format(*self.peer_address)

    def mute(self, seconds: float) -> None:
        """Take no requests for some seconds (a quota was exceeded, KIP-219)."""
        if self._mute is not None:
            self._mute.cancel()
        self._mute = self._clock.call_later(seconds, self._unmute)

    def hold(self) -> None:
        """Read and write nothing until `resume`, as a broker that hangs."""
        self._held = True
        self._settle_reading()

    def resume(self) -> None:
        """Continue after `hold`."""
        self._held = False
        self._work()

    def drain(self) -> None:
        """Take no new requests; close after the responses in progress."""
        self._draining = True
        self._work()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str) -> None:
        """Close at once and log the reason."""
        log.warning("closing connection of %s: %s", self.peer, reason)
        self.reason = reason
        self.abort()

    def trim(self) -> None:
        """Shrink the receive buffer after a large request."""
        if self._start == self._end and len(self._buffer) > INITIAL_BUFFER:
            self._replace_buffer(INITIAL_BUFFER)

    @property
    def unanswered(self) -> int:
        """Return the number of requests without a response."""
        return len(self._responses)

    # Private parts

    def _unmute(self) -> None:
        self._mute = None
        self._work()

    def _work(self) -> None:
        """Take frames, move responses to the output, and write."""
        if self._busy or self._held or self._transport is None:
            return
        self._busy = True
        try:
            while True:
                self._take_frames()
                if not self._collect_responses():
                    break
            self._write()
        except BadFrameError as error:
            self.close(str(error))
        finally:
            self._busy = False
        self._settle_reading()
        leaving = self._draining or (self.session is not None and self.session.closing)
        if leaving and not self._responses and not self._out and self._transport is not None:
            self._transport.close()

    def _may_take(self) -> bool:
        if self.session is None or self.session.closing:
            return False
        if self._draining or self._mute is not None or not self._writable or self._transport is None:
            return False
        if not self._responses:
            return True
        last = self._responses[-1]
        if isinstance(last, Pending) and not last.done and not last.effect_applied:
            return False
        return len(self._responses) < MAX_UNANSWERED

    def _largest_frame(self) -> int:
        assert self.session is not None
        dispatcher = self._dispatcher
        return dispatcher.max_frame_size if self.session.authenticated else dispatcher.max_sasl_frame_size

    def _take_frames(self) -> None:
        if self._continuation is not None:
            return
        handled = 0
        while self._may_take():
            if handled == MAX_PER_TURN:
                self._continuation = self._clock.call_soon(self._continue)
                return
            frame = self._next_frame()
            if frame is None:
                break
            handled += 1
            assert self.session is not None
            response = self._dispatcher.handle(self.session, frame)
            if self._reserved:
                self._frame_handled(response)
            if response is None:
                continue
            if isinstance(response, Pending):
                self._responses.append(response)
                if response.done:
                    self._collect_responses()
                else:
                    response.on_complete(self._completed)
            elif self._responses:
                self._responses.append(response)
            else:
                self._out.extend(response)
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > INITIAL_BUFFER and self._memory.scarce:
                self._replace_buffer(INITIAL_BUFFER)

    def _continue(self) -> None:
        self._continuation = None
        self._work()

    def _next_frame(self) -> memoryview | None:
        """Return the next whole frame; None, after making space for it, if it is not complete."""
        if self._frame is not None:
            if self._frame_end < len(self._frame):
                return None
            frame, self._frame = self._frame, None
            return frame
        available = self._end - self._start
        if available < 4:
            return None
        size = LENGTH.unpack_from(self._buffer, self._start)[0]
        if not 0 <= size <= self._always_allowed and not 0 <= size <= self._largest_frame():
            raise BadFrameError(f"a frame of {size} bytes, allowed are 0 to {self._largest_frame()}")
        if available < 4 + size:
            if size > INITIAL_BUFFER - 4:
                self._prepare(size)
            return None
        begin = self._start + 4
        self._start = begin + size
        return self._view[begin : self._start]

    def _prepare(self, size: int) -> None:
        """Reserve memory and a buffer for a frame larger than the first buffer; wait if no memory is left."""
        if not self._reserved:
            if not self._memory.take(size):
                if not self._waits_for_memory:
                    self._waits_for_memory = True
                    self._memory.wait(self._memory_available)
                return
            self._reserved = size
        if size > LARGE_FRAME:
            # A mapping costs nothing before bytes arrive, and a handler may keep the frame.
            self._frame = memoryview(mmap.mmap(-1, size))
            self._frame_end = self._end - self._start - 4
            self._frame[: self._frame_end] = self._view[self._start + 4 : self._end]
            self._start = self._end = 0
        elif len(self._buffer) < 4 + size:
            # In steps: a client that only announces a frame must not cost its whole size.
            arrived = self._end - self._start
            self._replace_buffer(min(4 + size, max(4 * arrived, 4 * INITIAL_BUFFER)))

    def _frame_handled(self, response: Sequence[Part] | Pending[Sequence[Part]] | None) -> None:
        """Release the memory of a frame, unless its handler uses it after this turn."""
        if not isinstance(response, Pending) or response.done or response.effect_applied:
            self._release_memory()

    def _release_memory(self) -> None:
        if self._reserved:
            released, self._reserved = self._reserved, 0
            self._memory.release(released)

    def _memory_available(self) -> None:
        self._waits_for_memory = False
        self._work()

    def _completed(self, _: Sequence[Part]) -> None:
        if self._reserved:
            self._release_memory()
        self._work()

    def _collect_responses(self) -> bool:
        """Move known responses to the output in request order; return whether there were any."""
        moved = False
        while self._responses:
            head = self._responses[0]
            if isinstance(head, Pending):
                if not head.done:
                    break
                head = head.response
            self._responses.popleft()
            self._out.extend(head)
            moved = True
        return moved

    def _write(self) -> None:
        while self._out and self._writable and self._transport is not None:
            pieces: list[bytes | bytearray | memoryview] = []
            size = 0
            while self._out and size < WRITE_PIECE:
                part = self._out[0]
                if isinstance(part, bytes | bytearray | memoryview):
                    self._out.popleft()
                    pieces.append(part)
                    size += len(part)
                else:
                    length = min(WRITE_PIECE - size, len(part) - self._slice_position)
                    if length > 0:
                        try:
                            pieces.append(part.read(self._slice_position, length))
                        except OSError as error:
                            raise BadFrameError(f"the records of a response cannot be read: {error}") from error
                        self._slice_position += length
                        size += length
                    if self._slice_position >= len(part):
                        self._slice_position = 0
                        self._out.popleft()
                        part.release()
            if len(pieces) == 1:
                self._transport.write(pieces[0])
            elif size < COPIED:
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)

    def _settle_reading(self) -> None:
        """Pause reading while requests are not taken: the TCP window is the back-pressure to the client."""
        if self._transport is None:
            return
        if self._held or self._waits_for_memory:
            reading = False
        elif self._frame is not None:
            reading = self._frame_end < len(self._frame)
        else:
            reading = self._end < len(self._buffer) or (self._continuation is None and self._may_take())
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _make_space(self) -> None:
        if self._start > 0:
            unread = self._end - self._start
            self._buffer[:unread] = self._buffer[self._start : self._end]
            self._start, self._end = 0, unread
        if self._end == len(self._buffer):
            self._replace_buffer(2 * len(self._buffer))

    def _replace_buffer(self, size: int) -> None:
        buffer = bytearray(size)
        unread = self._end - self._start
        buffer[:unread] = self._buffer[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, unread


def _release(parts: Sequence[Part] | deque[Part]) -> None:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            part.release()
