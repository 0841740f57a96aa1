"""A Kafka-aware proxy: listens in on any Kafka, and lets control functions act on what passes.

Clients stay behind it, because the addresses of brokers in answers are replaced by its own. Frames pass as the bytes
that they are: only headers are read, and of answers that can hold addresses the structure, never the records. TLS ends
here and begins anew; logins (SASL) pass through.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from functools import partial
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.session import Session
from ottla.handlers.registry import apis
from ottla.pending import Pending
from ottla.protocol.api import find_api
from ottla.protocol.api_table import ApiKey
from ottla.protocol.capture import REQUEST, RESPONSE, CapturedFrame
from ottla.protocol.errors import ProtocolError
from ottla.protocol.framing import (
    FrameCutter,
    decode_request_header,
    decode_response,
    encode_request_parts,
    encode_response_parts,
)
from ottla.server.connection import BadFrameError, Connection
from ottla.server.frame_memory import UNLIMITED, FrameMemory
from ottla.testing.control.requests import SeenRequest, read_request

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.testing.control.rules import Answer, Controls, Edit
    from ottla.world.clock import Clock
    from ottla.world.transport import Listener, Transport

    FrameSink = Callable[[CapturedFrame], None]

log = logging.getLogger(__name__)

LENGTH = Layout(">i")
PREFIX = Layout(">hhi")
SHORT = Layout(">h")
LARGEST_FRAME = 2**31 - 1
EVERYWHERE = ("", "0.0.0.0", "::")
Address = tuple[str, int]

# The first versions whose answers hold addresses: of brokers, coordinators, or (KIP-951) of the leader to ask instead.
ADDRESSES = {
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.PRODUCE: 10,
    ApiKey.FETCH: 16,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}


class Asked(NamedTuple):
    """The header of a request that was passed on."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def api(self) -> str:
        """The API's name."""
        api = find_api(self.api_key)
        return str(self.api_key) if api is None else api.name


NO_REQUEST = Asked(-1, -1, -1, None)


class TapEngine:
    """Listens in place of a Kafka's brokers and passes everything on. One loop owns it."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        target: Address,
        controls: Controls | None = None,
        *,
        listen_tls: ssl.SSLContext | None = None,
        connect_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.clock = clock
        self.listen_tls = listen_tls
        self.connect_tls = connect_tls
        self.transport = transport
        self.target = target
        self.controls = controls
        self.sinks: list[FrameSink] = []
        self.doors: dict[Address, Door] = {}
        self.topics: dict[Any, str] = {}
        self.bytes_passed = 0
        self._host = ""
        self._next_port = 0
        self._ids = itertools.count(1)
        self._opening: dict[Address, asyncio.Task[Door]] = {}

    async def open(self, host: str, port: int) -> Address:
        """Listen for clients; returns where."""
        self._host = host
        door = Door(self, self.target)
        bound = await door.open(host, port)
        self._next_port = 0 if port == 0 else bound + 1
        self.doors[self.target] = door
        return host, bound

    def close(self) -> None:
        """Take no more clients, and let go of those there are."""
        for task in self._opening.values():
            task.cancel()
        for door in self.doors.values():
            door.close()

    def next_id(self) -> int:
        """A number for a connection."""
        return next(self._ids)

    async def door_to(self, address: Address, node: int, own_host: str) -> Address:
        """Where a client that came in at `own_host` reaches a broker through this tap."""
        door = self.doors.get(address)
        if door is None:
            task = self._opening.get(address)
            if task is None:
                task = self._opening[address] = asyncio.ensure_future(self._open_door(address))
            door = await asyncio.shield(task)
        if node >= 0:
            door.node = node
        return own_host if self._host in EVERYWHERE else self._host, door.port

    async def _open_door(self, address: Address) -> Door:
        door = Door(self, address)
        try:
            port = await door.open(self._host, self._next_port)
        except OSError:
            port = await door.open(self._host, 0)
        if self._next_port:
            self._next_port = port + 1
        self.doors[address] = door
        return door

    async def rewrite(self, response: Any, own_host: str) -> bool:
        """Put this tap's addresses in the place of brokers'; whether there were any."""
        places = [
            each
            for name in ("brokers", "coordinators", "node_endpoints")
            for each in getattr(response, name, None) or ()
        ]
        if getattr(response, "host", ""):
            places.append(response)  # FindCoordinator before v4
        changed = False
        for each in places:
            if each.host:
                node = getattr(each, "node_id", getattr(each, "broker_id", -1))
                each.host, each.port = await self.door_to((each.host, each.port), node, own_host)
                changed = True
        for topic in getattr(response, "topics", None) or ():
            if getattr(topic, "topic_id", None) and getattr(topic, "name", None):
                self.topics[topic.topic_id] = topic.name
        return changed


class Door:
    """One of the tap's listeners: clients that come in here speak with one broker."""

    def __init__(self, tap: TapEngine, target: Address) -> None:
        self.tap = tap
        self.clock = tap.clock
        self.memory = FrameMemory(tap.clock, lambda: UNLIMITED)
        self.target = target
        self.node: int | None = None
        self.port = 0
        self.pipes: dict[Connection, Pipe] = {}
        self._by_session: dict[int, Pipe] = {}
        self._listener: Listener | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._listener = await self.tap.transport.listen(partial(Connection, self), host, port, ssl=self.tap.listen_tls)
        self.port = self._listener.port
        return self.port

    def close(self) -> None:
        """Listen no more and break what is there."""
        if self._listener is not None:
            self._listener.close()
        for connection, pipe in list(self.pipes.items()):
            pipe.close()
            connection.abort()

    # What connections ask.

    @property
    def max_frame_size(self) -> int:
        """The target decides what is too large."""
        return LARGEST_FRAME

    max_sasl_frame_size = max_frame_size

    def connected(self, connection: Connection) -> Session | None:
        """A client came: connect to the broker for it."""
        host, port = connection.peer_address
        session = Session(self.tap.next_id(), "TAP", host, port)
        self._by_session[session.id] = self.pipes[connection] = Pipe(self, connection, session)
        return session

    def disconnected(self, connection: Connection, session: Session) -> None:
        """A client left."""
        pipe = self.pipes.pop(connection, None)
        self._by_session.pop(session.id, None)
        if pipe is not None:
            pipe.close()

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Pass a frame on."""
        return self._by_session[session.id].handle(frame)


class Pipe(asyncio.Protocol):
    """The broker's side of one client's connection."""

    def __init__(self, door: Door, connection: Connection, session: Session) -> None:
        self.door = door
        self.tap = door.tap
        self.connection = connection
        self.session = session
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._waiting: deque[tuple[Asked, Pending[memoryview]]] = deque()
        self._cutter = FrameCutter(LARGEST_FRAME)
        self._bare_tokens = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._connect())

    # The broker.

    async def _connect(self) -> None:
        host, port = self.door.target
        try:
            await self.tap.transport.connect(lambda: self, host, port, ssl=self.tap.connect_tls, server_hostname=host)
        except OSError as error:
            self.connection.reason = f"{host}:{port} cannot be reached: {error}"
            log.warning(self.connection.reason)
            self.connection.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The broker is there: send what has come meanwhile."""
        self._transport = transport  # type: ignore[assignment]
        for data in self._unsent:
            self._transport.write(data)  # type: ignore[union-attr]
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Answers came."""
        try:
            for frame in self._cutter.feed(data):
                if not self._waiting:
                    raise ProtocolError("an answer that nobody asked for")
                _, pending = self._waiting.popleft()
                pending.complete(frame)
        except ProtocolError as error:
            self.connection.reason = str(error)
            self.connection.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The broker is gone: so is the client's connection."""
        self._transport = None
        self.connection.reason = self.connection.reason or "the broker closed its side"
        self.connection.abort()

    def close(self) -> None:
        """The client is gone."""
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # The client.

    def handle(self, frame: memoryview) -> Answer:
        """One request of the client."""
        asked, position = read_header(frame)
        if self._bare_tokens:
            if not is_request(frame):
                return self._pass_token(bytes(frame))
            self._bare_tokens = False
        elif asked.api_key == ApiKey.SASL_HANDSHAKE and asked.version == 0:
            self._bare_tokens = True
        self.session.client_id = asked.client_id
        if self.tap.sinks:
            self._tell(REQUEST, asked, frame)
        controls = self.tap.controls
        if controls is not None and controls.rules and is_request(frame):
            return controls.handle(TapExchange(self, asked, frame))
        return self.forward(asked, bytes(frame), answers=expects_answer(asked, frame, position))

    def _pass_token(self, token: bytes) -> Answer:
        """Pass a token that has no header (after SaslHandshake v0): no frame of Kafka's, and a secret."""
        self._send(LENGTH.pack(len(token)) + token, token)
        came: Pending[memoryview] = Pending()
        answer: Pending[Sequence[Part]] = Pending(effect_applied=True)
        self._waiting.append((NO_REQUEST, came))
        came.on_complete(lambda data: _complete(answer, [LENGTH.pack(len(data)), data]))
        return answer

    def forward(self, asked: Asked, frame: bytes, *, answers: bool = True, edit: Edit | None = None) -> Answer:
        """Send a request to the broker; its answer comes later, with addresses replaced."""
        self.tap.bytes_passed += len(frame)
        self._send(LENGTH.pack(len(frame)) + frame if len(frame) < 65536 else LENGTH.pack(len(frame)), frame)
        if not answers:
            return None
        came: Pending[memoryview] = Pending()
        answer: Pending[Sequence[Part]] = Pending(effect_applied=True)
        self._waiting.append((asked, came))
        came.on_complete(lambda data: self._answered(asked, data, answer, edit))
        return answer

    def _send(self, head: bytes, frame: bytes) -> None:
        parts = [head] if len(head) > LENGTH.size else [head, frame]
        if self._transport is None:
            self._unsent += parts
        else:
            for part in parts:
                self._transport.write(part)

    def _answered(self, asked: Asked, frame: memoryview, answer: Pending[Sequence[Part]], edit: Edit | None) -> None:
        self.tap.bytes_passed += len(frame)
        if self.tap.sinks:
            self._tell(RESPONSE, asked, frame)
        has_addresses = asked.version >= ADDRESSES.get(asked.api_key, 1 << 15)  # type: ignore[call-overload]
        if edit is None and not has_addresses:
            _complete(answer, [LENGTH.pack(len(frame)), frame])
            return
        try:
            _, response = decode_response(frame, asked.api_key, asked.version)
        except (ProtocolError, KeyError):
            _complete(answer, [LENGTH.pack(len(frame)), frame])  # a version that is not known here passes as it is
            return
        if edit is None and asked.api_key in (ApiKey.PRODUCE, ApiKey.FETCH) and not response.node_endpoints:  # type: ignore[attr-defined]
            _complete(answer, [LENGTH.pack(len(frame)), frame])
            return
        self._spawn(self._rewritten(asked, frame, response, answer, edit))

    async def _rewritten(
        self, asked: Asked, frame: memoryview, response: Any, answer: Pending[Sequence[Part]], edit: Edit | None
    ) -> None:
        changed = await self.tap.rewrite(response, self.connection.own_host)
        if edit is not None:
            response = edit(response)
        if changed or edit is not None:
            _complete(answer, encode_response_parts(asked.api_key, asked.version, asked.correlation_id, response))
        else:
            _complete(answer, [LENGTH.pack(len(frame)), frame])

    def _tell(self, direction: str, asked: Asked, frame: memoryview) -> None:
        captured = CapturedFrame(
            time.time_ns() // 1000,
            self.session.id,
            direction,
            f"{self.session.host}:{self.session.port}",
            "{}:{}".format(*self.door.target),
            self.door.node,
            asked.api_key,
            asked.api,
            asked.version,
            asked.correlation_id,
            asked.client_id,
            len(frame),
            bytes(frame),
        )
        for sink in self.tap.sinks:
            sink(captured)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.connection.reason = f"the tap failed: {task.exception()}"
            self.connection.abort()


class TapExchange:
    """One request that passes the tap, for the control functions."""

    def __init__(self, pipe: Pipe, asked: Asked, frame: memoryview) -> None:
        session = pipe.session
        self._pipe = pipe
        self._asked = asked
        self.seen = SeenRequest(
            pipe.tap.clock.now_ms(),
            pipe.door.node or 0,
            session.id,
            f"{session.host}:{session.port}",
            asked.client_id,
            session.principal,
            asked.api_key,
            asked.api,
            asked.version,
            asked.correlation_id,
            bytes(frame),
        )
        self.request: Any = self.seen.request

    def keep(self) -> None:
        """Nothing is borrowed."""

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Let the broker behind the tap answer."""
        frame = self.seen.frame
        asked = self._asked
        if request is not self.request:
            parts = encode_request_parts(asked.api_key, asked.version, asked.correlation_id, asked.client_id, request)
            frame = b"".join(parts)[LENGTH.size :]
        answers = asked.api_key != ApiKey.PRODUCE or request.acks != 0
        return self._pipe.forward(asked, frame, answers=answers, edit=edit)

    def encode(self, response: Message) -> Sequence[Part]:
        """The frame of a response."""
        asked = self._asked
        return encode_response_parts(asked.api_key, asked.version, asked.correlation_id, response)

    def refusal(self, request: Any, code: ErrorCode) -> Any:
        """The response that carries an error of the whole request."""
        known = apis().get(self._asked.api_key)
        if known is None:
            raise ValueError(f"{self._asked.api} has no error that could be answered here")
        return known.on_error(request, self._asked.version, code, None)

    def close(self, *, at_once: bool) -> None:
        """End the client's connection."""
        self._pipe.connection.reason = "a control function"
        if at_once:
            self._pipe.connection.abort()
        else:
            self._pipe.connection.drain()

    def topic_name(self, topic_id: Any) -> str | None:
        """The name of a topic, as the metadata that passed told it."""
        return self._pipe.tap.topics.get(topic_id)

    def topic_id(self, name: str) -> Any:
        """The id of a topic."""
        return next((key for key, each in self._pipe.tap.topics.items() if each == name), None)

    def fetched(self) -> list[tuple[str, int]]:
        """What is in the sessions of another's broker is not known."""
        return []


def _complete(answer: Pending[Sequence[Part]], parts: Sequence[Part]) -> None:
    if not answer.settled:
        answer.complete(parts)


def read_header(frame: memoryview) -> tuple[Asked, int]:
    """The header of a request, and where the request begins; of an API that is not known the first fields."""
    if len(frame) < PREFIX.size:
        raise BadFrameError(f"a request of {len(frame)} bytes is shorter than its header")
    key, version, correlation_id = PREFIX.unpack_from(frame)
    with contextlib.suppress(ProtocolError):
        header, position = decode_request_header(frame)
        return Asked(key, version, correlation_id, header.client_id), position
    return Asked(key, version, correlation_id, None), PREFIX.size


def is_request(frame: memoryview) -> bool:
    """Whether a frame is a whole request of an API that is known, and not a token."""
    try:
        read_request(frame)
    except (ProtocolError, KeyError, ValueError):
        return False
    return True


def expects_answer(asked: Asked, frame: memoryview, position: int) -> bool:
    """Whether a request is answered: all are, except a produce without acks. Its records are not looked at."""
    if asked.api_key != ApiKey.PRODUCE:
        return True
    if asked.version >= 9:
        length = frame[position] - 1  # a transactional id of 127 bytes and more takes two bytes of length
        if length >= 127:
            length = (frame[position] & 0x7F) + (frame[position + 1] << 7) - 1
            position += 1
        position += 1 + max(length, 0)
    else:
        (length,) = SHORT.unpack_from(frame, position)
        position += 2 + max(length, 0)
    acks: int = SHORT.unpack_from(frame, position)[0]
    return acks != 0
