"""Listeners and connections of one node: connection limits, idle connections, certificate renewal, draining."""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.session import Session
from ottla.cluster.configs.effective import BrokerLayers
from ottla.security.tls import TlsError
from ottla.server.connection import Connection
from ottla.server.dispatch import Dispatch
from ottla.server.frame_memory import UNLIMITED, FrameMemory
from ottla.server.tls import TLS_PROTOCOLS, ListenerTls

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ottla.broker.broker import Broker
    from ottla.cluster.server_config import Endpoint
    from ottla.pending import Pending
    from ottla.server.connection import Part
    from ottla.world.clock import Clock, Timer
    from ottla.world.transport import Listener, Transport

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
TRIM_SECONDS = 10.0  # an idle connection then returns to its first, small buffer


class NodeServer:
    """The listeners and connections of one node; Kafka's SocketServer."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._broker: Broker | None = None
        self.clock = clock
        self.connections: dict[Connection, None] = {}
        self.per_host: dict[str, int] = {}
        self._transport = transport
        self._listeners: dict[str, Listener] = {}
        self._tls: dict[str, ListenerTls] = {}
        self.dispatch: Dispatch | None = None
        self._dispatchers: dict[str, ListenerDispatcher] = {}
        self._ids = itertools.count(1)
        self.memory = FrameMemory(clock, self._queued_max_request_bytes)
        self.accepted = 0
        self.paused = False
        self._sweeper: Timer | None = None
        self._empty: asyncio.Event | None = None

    async def bind(self, endpoints: Sequence[Endpoint], layers: BrokerLayers | None = None) -> dict[str, int]:
        """Open the listeners and return the port of each. Connections are refused until `serve`."""
        ports = {}
        for endpoint in endpoints:
            dispatcher = self._dispatchers[endpoint.listener] = ListenerDispatcher(self, endpoint.listener)
            connect = partial(Connection, dispatcher)
            context = None
            if endpoint.security_protocol in TLS_PROTOCOLS:
                self._tls[endpoint.listener] = ListenerTls(endpoint, layers or BrokerLayers())
                context = self._tls[endpoint.listener].context
            listener = await self._transport.listen(connect, endpoint.host, endpoint.port, ssl=context)
            self._listeners[endpoint.listener] = listener
            ports[endpoint.listener] = listener.port
        return ports

    @property
    def broker(self) -> Broker:
        """Return the node; only after `serve`."""
        assert self._broker is not None
        return self._broker

    def serve(self, broker: Broker) -> None:
        """Accept clients."""
        self._broker = broker
        self.dispatch = Dispatch(broker)
        for dispatcher in self._dispatchers.values():
            dispatcher.handle = self.dispatch.handle
        broker.events.emit("node.started")
        self._sweeper = self.clock.call_later(SWEEP_SECONDS, self._sweep)

    async def attach(self, connected: socket.socket, listener: str, principal: str) -> None:
        """Serve a socket of this process as an authorized client of a listener, without TLS and login."""
        if listener not in self._listeners:
            raise ConnectionRefusedError(f"the node does not listen on {listener}")
        dispatcher = ListenerDispatcher(self, listener, principal)
        dispatcher.handle = self._dispatchers[listener].handle
        await asyncio.get_running_loop().connect_accepted_socket(partial(Connection, dispatcher), connected)

    def stop_listening(self) -> None:
        """Close all listeners; open connections stay."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def pause(self) -> None:
        """Stop reading and writing, as a stopped process does: clients can connect but get no response."""
        self.paused = True
        for listener in self._listeners.values():
            listener.pause()
        for connection in self.connections:
            connection.hold()

    def resume(self) -> None:
        """Continue after `pause`, with the bytes that arrived meanwhile."""
        self.paused = False
        for listener in self._listeners.values():
            listener.resume()
        for connection in list(self.connections):
            connection.resume()

    async def drain(self, seconds: float) -> None:
        """Let connections finish requests in progress, then close them; close them anyway after `seconds`."""
        self.stop_listening()
        self.resume()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.drain()
        if self.connections and seconds > 0:
            self._empty = asyncio.Event()
            timer = self.clock.call_later(seconds, self._empty.set)
            await self._empty.wait()
            timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    # Called by connections

    def _queued_max_request_bytes(self) -> int:
        return UNLIMITED if self._broker is None else self._broker.config_int("queued.max.request.bytes")

    def connected(self, connection: Connection, listener: str, internal: str | None = None) -> Session | None:
        """Return the session of a new connection; None if max.connections or max.connections.per.ip is reached.

        `internal` is the principal of a connection from within this process, which has no limits.
        """
        if self.dispatch is None:
            return None
        host, port = connection.peer_address
        if internal is not None:
            session = Session(next(self._ids), listener, "127.0.0.1", 0, mute=connection.mute, close=connection.close)
            session.principal, session.internal = internal, True
            return self._opened(connection, session)
        most = self.broker.config_int("max.connections")
        most_per_host = self.broker.max_connections_per_ip(host)
        if len(self.connections) >= most:
            log.warning("refusing %s:%d: %d connections are open (max.connections)", host, port, most)
            self._emit("connection.refused", listener=listener, host=host, port=port, reason="max.connections")
            return None
        if self.per_host.get(host, 0) >= most_per_host:
            log.warning("refusing %s:%d: it has %d connections (max.connections.per.ip)", host, port, most_per_host)
            self._emit("connection.refused", listener=listener, host=host, port=port, reason="max.connections.per.ip")
            return None
        session = Session(next(self._ids), listener, host, port, mute=connection.mute, close=connection.close)
        if not self._identify_client(session, connection):
            return None
        if self.broker.quotas.active:
            self._throttle_connection(connection, host)
        return self._opened(connection, session)

    def _opened(self, connection: Connection, session: Session) -> Session:
        host = session.host
        self.accepted += 1
        self.connections[connection] = None
        self.per_host[host] = self.per_host.get(host, 0) + 1
        if self.paused:
            connection.hold()
        self._emit("connection.opened", connection=session.id, listener=session.listener, host=host, port=session.port)
        return session

    def _identify_client(self, session: Session, connection: Connection) -> bool:
        """Set the principal of a client certificate, or start SASL; return False if no rule maps the certificate."""
        tls = self._tls.get(session.listener)
        if tls is not None and tls.names_clients:
            try:
                session.principal = tls.principal(connection.peer_certificate) or session.principal
            except TlsError as error:
                log.warning("refusing %s:%d: %s", session.host, session.port, error)
                return False
        authentication = self.broker.authentication.get(session.listener)
        if authentication is not None:
            session.conversation = authentication.conversation()
            session.authenticated = False
        return True

    def _throttle_connection(self, connection: Connection, host: str) -> None:
        """Pause a connection from an address above its connection rate, and close it after the throttle time."""
        seconds = self.broker.quotas.connection_wait(host)
        if seconds > 0:
            connection.mute(seconds + 1)
            self.clock.call_later(seconds, connection.abort)

    def _renew_certificates(self) -> None:
        """Reload changed certificates of all listeners."""
        layers = self.broker.layers
        for name, tls in self._tls.items():
            context = tls.refreshed(layers)
            if context is not None and name in self._listeners:
                self._listeners[name].renew(context)

    def disconnected(self, connection: Connection, session: Session) -> None:
        """Remove a closed connection."""
        self.connections.pop(connection, None)
        self.broker.share_partitions.disconnected(session.id)
        self._emit(
            "connection.closed",
            connection=session.id,
            host=session.host,
            port=session.port,
            client_id=session.client_id,
            principal=session.principal,
            **({} if connection.reason is None else {"reason": connection.reason}),
        )
        count = self.per_host.get(session.host, 0) - 1
        if count > 0:
            self.per_host[session.host] = count
        else:
            self.per_host.pop(session.host, None)
        if not self.connections and self._empty is not None:
            self._empty.set()

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._broker is not None:
            self._broker.events.emit(kind, **fields)

    def _sweep(self) -> None:
        """Close connections idle for `connections.max.idle.ms`; reload changed certificates."""
        self._sweeper = self.clock.call_later(SWEEP_SECONDS, self._sweep)
        if self.paused:
            return
        if self._tls:
            self._renew_certificates()
        now = self.clock.monotonic()
        oldest = now - self.broker.config_int("connections.max.idle.ms") / 1000
        for connection in list(self.connections):
            if connection.last_active < now - TRIM_SECONDS:
                connection.trim()
            if connection.last_active < oldest and not connection.unanswered:
                log.info("closing idle connection of %s", connection.peer)
                connection.reason = "idle for too long"
                connection.abort()


class ListenerDispatcher:
    """The node for the connections of one listener; implements `connection.Dispatcher`."""

    __slots__ = ("_internal", "_server", "clock", "disconnected", "handle", "listener", "memory")

    def __init__(self, server: NodeServer, listener: str, internal: str | None = None) -> None:
        self._server = server
        self._internal = internal
        self.listener = listener
        self.clock = server.clock
        self.memory = server.memory
        self.disconnected = server.disconnected
        self.handle: Callable[[Session, memoryview], Sequence[Part] | Pending[Sequence[Part]] | None] = _not_serving

    @property
    def max_frame_size(self) -> int:
        """The largest request of an authenticated client."""
        return self._server.broker.config_int("socket.request.max.bytes")

    @property
    def max_sasl_frame_size(self) -> int:
        """The largest request of a client that is not authenticated yet."""
        return self._server.broker.config_int("sasl.server.max.receive.size")

    def connected(self, connection: Connection) -> Session | None:
        """Return the session of a new connection, or None to refuse it."""
        return self._server.connected(connection, self.listener, self._internal)


def _not_serving(session: Session, frame: memoryview) -> None:
    raise AssertionError("no connection has a session before the node serves")
