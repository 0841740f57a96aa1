"""One client connection: frames in, answers out, in order and with back-pressure both ways.

It knows sockets and framing; what a frame means is the dispatcher's business. Frames are cut out of the receive buffer
as views, so whoever handles one must not keep it. Like in Apache Kafka, one request of a connection is in progress:
the next frame waits until the answer to the last is known, unless the last has taken effect and only its answer is
awaited.
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
COPIED = 16 * 1024  # what is smaller is copied together: that is cheaper than a vector of small pieces
MOST_UNANSWERED = 64
MOST_PER_TURN = 64  # requests of one connection that are handled before other connections have their turn


class BadFrameError(Exception):
    """The bytes on a connection are not a request that can be answered; the connection ends, alone."""


class Slice(Protocol):
    """A range of a file that is read while the socket drains."""

    def __len__(self) -> int: ...

    def read(self, position: int, length: int) -> bytes:
        """Bytes of the range."""
        ...

    def release(self) -> None:
        """The range is no longer needed."""
        ...


Part = bytes | bytearray | memoryview | Slice
Answer = "Sequence[Part] | Pending[Sequence[Part]] | None"


class Dispatcher(Protocol):
    """What a connection asks of the broker behind it."""

    clock: Clock
    memory: FrameMemory

    @property
    def max_frame_size(self) -> int:
        """The largest request that is taken."""
        ...

    @property
    def max_sasl_frame_size(self) -> int:
        """The largest request of a client that is not authenticated yet."""
        ...

    def connected(self, connection: Connection) -> Session | None:
        """A client came; None refuses it."""
        ...

    def disconnected(self, connection: Connection, session: Session) -> None:
        """A client is gone."""
        ...

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Answer one frame: the parts of a response, a promise of them, or None where Kafka sends none."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object behind one socket."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._clock = dispatcher.clock
        self._buffer = bytearray(INITIAL_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._answers: deque[Sequence[Part] | Pending[Sequence[Part]]] = deque()
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
        self._frame: memoryview | None = None  # a large frame that is being received
        self._frame_end = 0
        self._continuation: Timer | None = None
        self._transport: asyncio.Transport | None = None
        self.session: Session | None = None
        self.reason: str | None = None
        self.last_active = self._clock.monotonic()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_PIECE, low=WRITE_PIECE // 4)
        self.session = self._dispatcher.connected(self)
        if self.session is None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: what it waited for is cancelled, what was being sent is let go."""
        self._transport = None
        answers, self._answers = self._answers, deque()
        for answer in answers:
            if isinstance(answer, Pending):
                if answer.done:
                    _release(answer.response)
                answer.cancel()
            else:
                _release(answer)
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
        """Where the next bytes go."""
        if self._frame is not None:
            return self._frame[self._frame_end :]
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes arrived."""
        if self._frame is None:
            self._end += nbytes
        else:
            self._frame_end += nbytes
        self.last_active = self._clock.monotonic()
        self._work()

    def eof_received(self) -> bool:
        """The client sends no more; its socket is closed with whatever it still waited for, as Kafka does."""
        return False

    def pause_writing(self) -> None:
        """The client reads too slowly: take no more from it until it does."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        self._work()

    # What the server calls.

    @property
    def peer_address(self) -> tuple[str, int]:
        """The client's host and port."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return (name[0], name[1]) if name else ("unknown", 0)

    @property
    def own_host(self) -> str:
        """The address of this machine that the client connected to."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else "localhost"

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """What the client showed of itself over TLS, once it was checked."""
        found = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return None if found is None else found.getpeercert()

    @property
    def peer(self) -> str:
        """The client's address, for people."""
        if self.session is not None:
            return f"{self.session.host}:{self.session.port}"
        return "{}:{}".format(*self.peer_address)

    def mute(self, seconds: float) -> None:
        """Take nothing from this client for a while (a quota was passed, KIP-219)."""
        if self._mute is not None:
            self._mute.cancel()
        self._mute = self._clock.call_later(seconds, self._unmute)

    def hold(self) -> None:
        """Read and write nothing until `let_go`: the broker hangs, and its client is to see just that."""
        self._held = True
        self._settle_reading()

    def let_go(self) -> None:
        """Go on, with what has come in meanwhile."""
        self._held = False
        self._work()

    def drain(self) -> None:
        """Take no new request; finish what is in progress, then close."""
        self._draining = True
        self._work()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def close(self, reason: str) -> None:
        """Close at once and log the reason."""
        log.warning("closing the connection of %s: %s", self.peer, reason)
        self.reason = reason
        self.abort()

    def trim(self) -> None:
        """Give back the memory of a buffer that a past request needed."""
        if self._start == self._end and len(self._buffer) > INITIAL_BUFFER:
            self._replace_buffer(INITIAL_BUFFER)

    @property
    def unanswered(self) -> int:
        """Requests whose answer is not known yet."""
        return len(self._answers)

    # Inside.

    def _unmute(self) -> None:
        self._mute = None
        self._work()

    def _work(self) -> None:
        """Take frames while it may, pass answers on, and write."""
        if self._busy or self._held or self._transport is None:
            return
        self._busy = True
        try:
            while True:
                self._take_frames()
                if not self._pass_answers_on():
                    break
            self._write()
        except BadFrameError as error:
            self.close(str(error))
        finally:
            self._busy = False
        self._settle_reading()
        leaving = self._draining or (self.session is not None and self.session.closing)
        if leaving and not self._answers and not self._out and self._transport is not None:
            self._transport.close()

    def _may_take(self) -> bool:
        if self.session is None or self.session.closing:
            return False
        if self._draining or self._mute is not None or not self._writable or self._transport is None:
            return False
        if not self._answers:
            return True
        last = self._answers[-1]
        if isinstance(last, Pending) and not last.done and not last.effect_applied:
            return False
        return len(self._answers) < MOST_UNANSWERED

    def _largest_frame(self) -> int:
        assert self.session is not None
        dispatcher = self._dispatcher
        return dispatcher.max_frame_size if self.session.authenticated else dispatcher.max_sasl_frame_size

    def _take_frames(self) -> None:
        if self._continuation is not None:
            return
        handled = 0
        while self._may_take():
            if handled == MOST_PER_TURN:
                self._continuation = self._clock.call_soon(self._continue)
                return
            frame = self._next_frame()
            if frame is None:
                break
            handled += 1
            assert self.session is not None
            answer = self._dispatcher.handle(self.session, frame)
            if self._reserved:
                self._frame_handled(answer)
            if answer is None:
                continue
            if isinstance(answer, Pending):
                self._answers.append(answer)
                if answer.done:
                    self._pass_answers_on()
                else:
                    answer.on_complete(self._completed)
            elif self._answers:
                self._answers.append(answer)
            else:
                self._out.extend(answer)
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > INITIAL_BUFFER and self._memory.scarce:
                self._replace_buffer(INITIAL_BUFFER)

    def _continue(self) -> None:
        self._continuation = None
        self._work()

    def _next_frame(self) -> memoryview | None:
        """Cut the next whole frame; None if it has not arrived, and make room for it."""
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
        """Reserve memory and a buffer for a frame that the first buffer does not hold; wait if none is left."""
        if not self._reserved:
            if not self._memory.take(size):
                if not self._waits_for_memory:
                    self._waits_for_memory = True
                    self._memory.wait(self._memory_available)
                return
            self._reserved = size
        if size > LARGE_FRAME:
            # A mapping costs nothing before bytes arrive, and whoever handles the frame may keep it.
            self._frame = memoryview(mmap.mmap(-1, size))
            self._frame_end = self._end - self._start - 4
            self._frame[: self._frame_end] = self._view[self._start + 4 : self._end]
            self._start = self._end = 0
        elif len(self._buffer) < 4 + size:
            self._replace_buffer(4 + size)

    def _frame_handled(self, answer: Sequence[Part] | Pending[Sequence[Part]] | None) -> None:
        """Release the memory of a frame, unless its handler goes on with it after this turn."""
        if not isinstance(answer, Pending) or answer.done or answer.effect_applied:
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

    def _pass_answers_on(self) -> bool:
        """Move known answers, in the order of their requests, to what is written; whether there were any."""
        moved = False
        while self._answers:
            head = self._answers[0]
            if isinstance(head, Pending):
                if not head.done:
                    break
                head = head.response
            self._answers.popleft()
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
                            raise BadFrameError(f"what was to be sent cannot be read: {error}") from error
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
        """Read on only while there is a use for the bytes: the kernel's window is the client's back-pressure."""
        if self._transport is None:
            return
        if self._held or self._waits_for_memory:
            wanted = False
        elif self._frame is not None:
            wanted = self._frame_end < len(self._frame)
        else:
            wanted = self._end < len(self._buffer) or (self._continuation is None and self._may_take())
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _make_room(self) -> None:
        if self._start > 0:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        if self._end == len(self._buffer):
            self._replace_buffer(2 * len(self._buffer))

    def _replace_buffer(self, size: int) -> None:
        buffer = bytearray(size)
        left = self._end - self._start
        buffer[:left] = self._buffer[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, left


def _release(parts: Sequence[Part] | deque[Part]) -> None:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            part.release()
