"""The proxy of a tap: forwards frames between clients and any Kafka cluster, and passes requests to rules.

Broker addresses in responses are replaced by addresses of the tap, so that clients keep using it. Frames are forwarded
as received: only headers are decoded, and responses that contain addresses; records never. TLS is terminated on both
sides; SASL exchanges are forwarded.
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
from ottla.testing.control.requests import ReceivedRequest, read_request

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from ottla.protocol.error_codes import ErrorCode
    from ottla.protocol.schema import Message
    from ottla.server.connection import Part
    from ottla.testing.control.exchange import Answer, Edit
    from ottla.testing.control.rules import Rules
    from ottla.world.clock import Clock
    from ottla.world.transport import Listener, Transport

    FrameSink = Callable[[CapturedFrame], None]

log = logging.getLogger(__name__)

LENGTH = Layout(">i")
PREFIX = Layout(">hhi")
SHORT = Layout(">h")
MAX_FRAME_SIZE = 2**31 - 1
SMALL_FRAME_SIZE = 65536  # up to here, copying a frame behind its length is cheaper than a second write
WILDCARD_HOSTS = ("", "0.0.0.0", "::")
Address = tuple[str, int]

# The first versions whose responses contain addresses: of brokers, of coordinators, or (KIP-951) of the new leader.
ADDRESS_VERSIONS = {
    ApiKey.METADATA: 0,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.DESCRIBE_CLUSTER: 0,
    ApiKey.PRODUCE: 10,
    ApiKey.FETCH: 16,
    ApiKey.SHARE_FETCH: 0,
    ApiKey.SHARE_ACKNOWLEDGE: 0,
}


class ForwardedHeader(NamedTuple):
    """The header of a request that the tap forwards."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def api(self) -> str:
        """The API's name; its key as text if it is unknown."""
        api = find_api(self.api_key)
        return str(self.api_key) if api is None else api.name


NO_HEADER = ForwardedHeader(-1, -1, -1, None)


class TapEngine:
    """Listens in place of a Kafka cluster's brokers and forwards everything. Runs on one event loop."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        target: Address,
        rules: Rules | None = None,
        *,
        listen_tls: ssl.SSLContext | None = None,
        connect_tls: ssl.SSLContext | None = None,
    ) -> None:
        self.clock = clock
        self.listen_tls = listen_tls
        self.connect_tls = connect_tls
        self.transport = transport
        self.target = target
        self.rules = rules
        self.sinks: list[FrameSink] = []
        self.listeners: dict[Address, BrokerListener] = {}
        self.topics: dict[Any, str] = {}
        self.bytes_passed = 0
        self._host = ""
        self._next_port = 0
        self._connection_ids = itertools.count(1)
        self._opening: dict[Address, asyncio.Task[BrokerListener]] = {}

    async def open(self, host: str, port: int) -> Address:
        """Listen for clients, and return the address."""
        self._host = host
        listener = BrokerListener(self, self.target)
        bound = await listener.open(host, port)
        self._next_port = 0 if port == 0 else bound + 1
        self.listeners[self.target] = listener
        return host, bound

    def close(self) -> None:
        """Close all listeners and connections."""
        for task in self._opening.values():
            task.cancel()
        for listener in self.listeners.values():
            listener.close()

    def next_connection_id(self) -> int:
        """Return a new number for a connection."""
        return next(self._connection_ids)

    async def address_for(self, broker: Address, node: int, own_host: str) -> Address:
        """Return the address at which a client that connected to `own_host` reaches a broker through the tap."""
        listener = self.listeners.get(broker)
        if listener is None:
            task = self._opening.get(broker)
            if task is None:
                task = self._opening[broker] = asyncio.ensure_future(self._open_listener(broker))
            listener = await asyncio.shield(task)
        if node >= 0:
            listener.node = node
        return own_host if self._host in WILDCARD_HOSTS else self._host, listener.port

    async def _open_listener(self, broker: Address) -> BrokerListener:
        listener = BrokerListener(self, broker)
        try:
            port = await listener.open(self._host, self._next_port)
        except OSError:
            port = await listener.open(self._host, 0)
        if self._next_port:
            self._next_port = port + 1
        self.listeners[broker] = listener
        return listener

    async def replace_addresses(self, response: Any, own_host: str) -> bool:
        """Replace the brokers' addresses in a response by the tap's; return whether there were any."""
        endpoints = [
            endpoint
            for name in ("brokers", "coordinators", "node_endpoints")
            for endpoint in getattr(response, name, None) or ()
        ]
        if getattr(response, "host", ""):
            endpoints.append(response)  # FindCoordinator before v4
        replaced = False
        for endpoint in endpoints:
            if endpoint.host:
                node = getattr(endpoint, "node_id", getattr(endpoint, "broker_id", -1))
                broker = (endpoint.host, endpoint.port)
                endpoint.host, endpoint.port = await self.address_for(broker, node, own_host)
                replaced = True
        for topic in getattr(response, "topics", None) or ():
            if getattr(topic, "topic_id", None) and getattr(topic, "name", None):
                self.topics[topic.topic_id] = topic.name
        return replaced


class BrokerListener:
    """One of the tap's listeners: its clients are connected to one broker."""

    def __init__(self, tap: TapEngine, target: Address) -> None:
        self.tap = tap
        self.clock = tap.clock
        self.memory = FrameMemory(tap.clock, lambda: UNLIMITED)
        self.target = target
        self.node: int | None = None
        self.port = 0
        self._upstreams: dict[Connection, BrokerConnection] = {}
        self._by_session: dict[int, BrokerConnection] = {}
        self._listener: Listener | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        self._listener = await self.tap.transport.listen(partial(Connection, self), host, port, ssl=self.tap.listen_tls)
        self.port = self._listener.port
        return self.port

    def close(self) -> None:
        """Close the listener and its connections."""
        if self._listener is not None:
            self._listener.close()
        for connection, upstream in list(self._upstreams.items()):
            upstream.close()
            connection.abort()

    # The interface that `Connection` expects of a server

    @property
    def max_frame_size(self) -> int:
        """The largest frame that is forwarded; the broker applies its own limit."""
        return MAX_FRAME_SIZE

    max_sasl_frame_size = max_frame_size

    def connected(self, connection: Connection) -> Session | None:
        """Connect to the broker for a new client."""
        host, port = connection.peer_address
        session = Session(self.tap.next_connection_id(), "TAP", host, port)
        self._by_session[session.id] = self._upstreams[connection] = BrokerConnection(self, connection, session)
        return session

    def disconnected(self, connection: Connection, session: Session) -> None:
        """Close the connection to the broker of a client that disconnected."""
        upstream = self._upstreams.pop(connection, None)
        self._by_session.pop(session.id, None)
        if upstream is not None:
            upstream.close()

    def handle(self, session: Session, frame: memoryview) -> Sequence[Part] | Pending[Sequence[Part]] | None:
        """Forward a frame, and return its response."""
        return self._by_session[session.id].handle(frame)


class BrokerConnection(asyncio.Protocol):
    """The connection to the broker that belongs to one client's connection."""

    def __init__(self, listener: BrokerListener, connection: Connection, session: Session) -> None:
        self.listener = listener
        self.tap = listener.tap
        self.connection = connection
        self.session = session
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._in_flight: deque[Pending[memoryview]] = deque()
        self._cutter = FrameCutter(MAX_FRAME_SIZE)
        self._expects_raw_tokens = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._connect())

    # The broker's side

    async def _connect(self) -> None:
        host, port = self.listener.target
        try:
            await self.tap.transport.connect(lambda: self, host, port, ssl=self.tap.connect_tls, server_hostname=host)
        except OSError as error:
            self.connection.reason = f"cannot connect to {host}:{port}: {error}"
            log.warning(self.connection.reason)
            self.connection.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the requests that were received while connecting."""
        self._transport = transport  # type: ignore[assignment]
        for data in self._unsent:
            self._transport.write(data)  # type: ignore[union-attr]
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Complete the requests in flight with the received responses."""
        try:
            for frame in self._cutter.feed(data):
                if not self._in_flight:
                    raise ProtocolError("the broker sent a response without a request")
                self._in_flight.popleft().complete(frame)
        except ProtocolError as error:
            self.connection.reason = str(error)
            self.connection.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's connection too."""
        self._transport = None
        self.connection.reason = self.connection.reason or "the broker closed the connection"
        self.connection.abort()

    def close(self) -> None:
        """Close the connection to the broker."""
        for task in self._tasks:
            task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # The client's side

    def handle(self, frame: memoryview) -> Answer:
        """Forward a request of the client, or pass it to the rules, and return its response."""
        header, position = read_header(frame)
        if self._expects_raw_tokens:
            if not is_request(frame):
                return self._forward_token(bytes(frame))
            self._expects_raw_tokens = False
        elif header.api_key == ApiKey.SASL_HANDSHAKE and header.version == 0:
            self._expects_raw_tokens = True
        self.session.client_id = header.client_id
        if self.tap.sinks:
            self._capture(REQUEST, header, frame)
        rules = self.tap.rules
        if rules is not None and rules.active and is_request(frame):
            return rules.handle(TapExchange(self, header, frame))
        return self.forward(header, bytes(frame), has_response=expects_response(header, frame, position))

    def _forward_token(self, token: bytes) -> Answer:
        """Forward a SASL token without a request header (after SaslHandshake v0); secrets are not captured."""
        self._send(LENGTH.pack(len(token)) + token, token)
        pending: Pending[Sequence[Part]] = Pending(effect_applied=True)
        response: Pending[memoryview] = Pending()
        self._in_flight.append(response)
        response.on_complete(lambda data: _complete(pending, [LENGTH.pack(len(data)), data]))
        return pending

    def forward(
        self, header: ForwardedHeader, frame: bytes, *, has_response: bool = True, edit: Edit | None = None
    ) -> Answer:
        """Send a request to the broker, and return its response to come, with addresses replaced."""
        self.tap.bytes_passed += len(frame)
        self._send(LENGTH.pack(len(frame)) + frame if len(frame) < SMALL_FRAME_SIZE else LENGTH.pack(len(frame)), frame)
        if not has_response:
            return None
        pending: Pending[Sequence[Part]] = Pending(effect_applied=True)
        response: Pending[memoryview] = Pending()
        self._in_flight.append(response)
        response.on_complete(lambda data: self._on_response(header, data, pending, edit))
        return pending

    def _send(self, head: bytes, frame: bytes) -> None:
        parts = [head] if len(head) > LENGTH.size else [head, frame]
        if self._transport is None:
            self._unsent += parts
        else:
            for part in parts:
                self._transport.write(part)

    def _on_response(
        self, header: ForwardedHeader, frame: memoryview, answer: Pending[Sequence[Part]], edit: Edit | None
    ) -> None:
        self.tap.bytes_passed += len(frame)
        if self.tap.sinks:
            self._capture(RESPONSE, header, frame)
        has_addresses = header.version >= ADDRESS_VERSIONS.get(header.api_key, 1 << 15)  # type: ignore[call-overload]
        if edit is None and not has_addresses:
            _complete(answer, [LENGTH.pack(len(frame)), frame])
            return
        try:
            _, response = decode_response(frame, header.api_key, header.version)
        except (ProtocolError, KeyError):
            _complete(answer, [LENGTH.pack(len(frame)), frame])  # forward unknown versions unchanged
            return
        if edit is None and header.api_key in (ApiKey.PRODUCE, ApiKey.FETCH) and not response.node_endpoints:  # type: ignore[attr-defined]
            _complete(answer, [LENGTH.pack(len(frame)), frame])
            return
        self._spawn(self._send_changed(header, frame, response, answer, edit))

    async def _send_changed(
        self,
        header: ForwardedHeader,
        frame: memoryview,
        response: Any,
        answer: Pending[Sequence[Part]],
        edit: Edit | None,
    ) -> None:
        replaced = await self.tap.replace_addresses(response, self.connection.own_host)
        if edit is not None:
            response = edit(response)
        if replaced or edit is not None:
            _complete(answer, encode_response_parts(header.api_key, header.version, header.correlation_id, response))
        else:
            _complete(answer, [LENGTH.pack(len(frame)), frame])

    def _capture(self, direction: str, header: ForwardedHeader, frame: memoryview) -> None:
        captured = CapturedFrame(
            time.time_ns() // 1000,
            self.session.id,
            direction,
            f"{self.session.host}:{self.session.port}",
            "{}:{}".format(*self.listener.target),
            self.listener.node,
            header.api_key,
            header.api,
            header.version,
            header.correlation_id,
            header.client_id,
            len(frame),
            bytes(frame),
        )
        for sink in self.tap.sinks:
            sink(captured)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.connection.reason = f"the tap failed: {task.exception()}"
            self.connection.abort()


class TapExchange:
    """One request that passes the tap; implements `Exchange` for the rules."""

    def __init__(self, upstream: BrokerConnection, header: ForwardedHeader, frame: memoryview) -> None:
        session = upstream.session
        self._upstream = upstream
        self._header = header
        self.received = ReceivedRequest(
            upstream.tap.clock.now_ms(),
            upstream.listener.node or 0,
            session.id,
            f"{session.host}:{session.port}",
            header.client_id,
            session.principal,
            header.api_key,
            header.api,
            header.version,
            header.correlation_id,
            bytes(frame),
        )
        self.request: Any = self.received.request

    def keep(self) -> None:
        """Do nothing: the request owns its bytes."""

    def serve(self, request: Any, edit: Edit | None = None) -> Answer:
        """Let the broker behind the tap handle the request."""
        frame = self.received.frame
        header = self._header
        if request is not self.request:
            parts = encode_request_parts(
                header.api_key, header.version, header.correlation_id, header.client_id, request
            )
            frame = b"".join(parts)[LENGTH.size :]
        has_response = header.api_key != ApiKey.PRODUCE or request.acks != 0
        return self._upstream.forward(header, frame, has_response=has_response, edit=edit)

    def encode(self, response: Message) -> Sequence[Part]:
        """Return the frame of a response."""
        header = self._header
        return encode_response_parts(header.api_key, header.version, header.correlation_id, response)

    def error_response(self, request: Any, code: ErrorCode) -> Any:
        """Return the response that reports an error for the whole request."""
        api = apis().get(self._header.api_key)
        if api is None:
            raise ValueError(f"ottla has no error response for {self._header.api}")
        return api.on_error(request, self._header.version, code, None)

    def close(self, *, abort: bool) -> None:
        """Close the client's connection."""
        self._upstream.connection.reason = "a rule of a test"
        if abort:
            self._upstream.connection.abort()
        else:
            self._upstream.connection.drain()

    def topic_name(self, topic_id: Any) -> str | None:
        """Return the name of a topic, if a Metadata response with it has passed."""
        return self._upstream.tap.topics.get(topic_id)

    def topic_id(self, name: str) -> Any:
        """Return the id of a topic, if a Metadata response with it has passed."""
        return next((key for key, topic in self._upstream.tap.topics.items() if topic == name), None)

    def session_partitions(self) -> list[tuple[str, int]]:
        """Return nothing: the tap does not track the broker's fetch sessions."""
        return []


def _complete(response: Pending[Sequence[Part]], parts: Sequence[Part]) -> None:
    if not response.settled:
        response.complete(parts)


def read_header(frame: memoryview) -> tuple[ForwardedHeader, int]:
    """Return a request's header and where its body begins; of an unknown API only the fixed fields are read."""
    if len(frame) < PREFIX.size:
        raise BadFrameError(f"a request of {len(frame)} bytes is shorter than its header")
    key, version, correlation_id = PREFIX.unpack_from(frame)
    with contextlib.suppress(ProtocolError):
        header, position = decode_request_header(frame)
        return ForwardedHeader(key, version, correlation_id, header.client_id), position
    return ForwardedHeader(key, version, correlation_id, None), PREFIX.size


def is_request(frame: memoryview) -> bool:
    """Return whether a frame is a complete request of a known API, not a SASL token."""
    try:
        read_request(frame)
    except (ProtocolError, KeyError, ValueError):
        return False
    return True


def expects_response(header: ForwardedHeader, frame: memoryview, position: int) -> bool:
    """Return whether the broker responds: always, except to Produce with acks=0. Records are not decoded."""
    if header.api_key != ApiKey.PRODUCE:
        return True
    if header.version >= 9:
        length = frame[position] - 1  # the length of a transactional id of 127 bytes or more takes two bytes
        if length >= 127:
            length = (frame[position] & 0x7F) + (frame[position + 1] << 7) - 1
            position += 1
        position += 1 + max(length, 0)
    else:
        (length,) = SHORT.unpack_from(frame, position)
        position += 2 + max(length, 0)
    acks: int = SHORT.unpack_from(frame, position)[0]
    return acks != 0
