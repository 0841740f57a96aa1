"""A network in memory: bytes arrive late and in pieces, hosts are partitioned, connections break.

The seed decides every delay and piece. TLS is simulated: both ends must use it or neither, and nothing is
encrypted.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable, Iterable

    from ottla.world.clock import Clock, Timer
    from ottla.world.random import Random
    from ottla.world.transport import Address, P, ProtocolFactory

T = TypeVar("T")
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_FIRST_FREE_PORT = 40_000
_FIRST_CLIENT_PORT = 50_000


@dataclass(slots=True)
class Conditions:
    """The quality of the network."""

    latency: tuple[float, float] = (0.000_05, 0.002)
    piece_bytes: int = 65_536
    tiny_pieces: float = 0.25  # share of pieces with only a few bytes
    window_bytes: int = 65_536  # bytes that the hosts buffer beside the transport
    connect_timeout: float = 20.0


class SimulatedListener:
    """A listening port."""

    __slots__ = ("_network", "addresses", "factory", "owner", "ssl")

    def __init__(
        self,
        network: _Network,
        owner: str,
        address: Address,
        factory: ProtocolFactory,
        ssl: tls.SSLContext | None,
    ) -> None:
        self.owner = owner
        self.addresses = [address]
        self.factory = factory
        self.ssl = ssl
        self._network = network

    @property
    def port(self) -> int:
        """Return the port."""
        return self.addresses[0][1]

    def renew(self, ssl: tls.SSLContext) -> None:
        """Accept with another TLS context."""
        self.ssl = ssl

    def pause(self) -> None:
        """Do nothing: there are no handshakes."""

    resume = pause

    def close(self) -> None:
        """Stop accepting."""
        self._network.listeners.pop(self.addresses[0], None)


class SimulatedConnection(asyncio.Transport):
    """One end of a connection; owns the bytes in flight to the other end."""

    def __init__(self, network: _Network, owner: str, sockname: Address, peername: Address, secure: bool) -> None:
        super().__init__({"sockname": sockname, "peername": peername})
        self.owner = owner
        self.peer: SimulatedConnection
        self.secure = secure
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._delivery: Timer | None = None
        self._reading = True
        self._closing = False  # this end has stopped sending and receiving
        self._told_lost = False
        self._eof_wanted = False
        self._reset_wanted = False
        self._ended = False  # nothing more will be delivered from this end
        self._writing_paused = False
        self._high, self._low = 65_536, 16_384
        self._cut_after: int | None = None

    def __repr__(self) -> str:
        return f"<SimulatedConnection {self.get_extra_info('sockname')} to {self.get_extra_info('peername')}>"

    def cut_after(self, count: int) -> None:
        """Break the connection after that many more bytes from this end were delivered."""
        self._cut_after = count
        if count == 0:
            self._network.drop(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol."""
        self._protocol = protocol

    def is_reading(self) -> bool:
        """Return whether received bytes are delivered to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Hold received bytes back."""
        self._reading = False

    def resume_reading(self) -> None:
        """Deliver received bytes again."""
        if not self._reading:
            self._reading = True
            self.peer._schedule()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes."""
        if self._eof_wanted and not self._closing:
            raise RuntimeError("nothing can be written after write_eof")
        if self._closing or not len(data):
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(self._unsent[-1])
        self._schedule()
        self._tell_pressure()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Send several pieces as one."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return True, except for simulated TLS, as asyncio does."""
        return not self.secure

    def write_eof(self) -> None:
        """Half-close: send nothing more."""
        if not self._closing:
            self._eof_wanted = True
            self._schedule()

    def is_closing(self) -> bool:
        """Return whether this end is closed or closing."""
        return self._closing

    def close(self) -> None:
        """Close after sending buffered bytes."""
        if not self._closing:
            self._closing = self._eof_wanted = True
            self._schedule()
            self.peer._schedule()
            self._tell_lost_if_flushed()

    def abort(self) -> None:
        """Close at once; the other end sees a reset."""
        if not self._ended:
            self._closing = self._reset_wanted = True
            self._forget_unsent()
            self._schedule()
            self._tell_lost(None)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that have not left this process."""
        return max(0, self._unsent_bytes - self._network.conditions.window_bytes)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the limits (low, high) at which writing resumes and pauses."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits at which writing pauses and resumes."""
        if high is None:
            high = 65_536 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be at least low ({low}), and low at least 0")
        self._high, self._low = high, low
        self._tell_pressure()

    def _begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._guard(protocol.connection_made, self)
        self.peer._schedule()

    def _schedule(self) -> None:
        """Schedule the delivery of the next piece, unless it is held up."""
        if self._delivery is None and not self._ended and self._can_deliver():
            self._delivery = self._network.after_latency(self._deliver)

    def _can_deliver(self) -> bool:
        peer = self.peer
        if peer._protocol is None or not self._network.connected(self.owner, peer.owner):
            return False
        if self._reset_wanted:
            return True
        return bool(self._unsent or self._eof_wanted) and (peer._reading or peer._closing)

    def _deliver(self) -> None:
        self._delivery = None
        if self._ended or not self._can_deliver():
            return
        peer = self.peer
        if self._reset_wanted:
            self._ended = True
            peer._break(_error(ConnectionResetError, errno.ECONNRESET))
        elif self._unsent:
            if peer._closing:  # bytes for a closed end are answered with a reset
                self._forget_unsent()
                self._ended = True
                self._network.after_latency(self._break, _error(ConnectionResetError, errno.ECONNRESET))
            else:
                self._deliver_piece(peer)
        else:
            self._ended = True
            if not peer._closing and not peer._guard(peer._receive_eof):
                peer.close()
        self._tell_pressure()
        self._tell_lost_if_flushed()
        self._schedule()
        self._network.forget_if_over(self)

    def _deliver_piece(self, peer: SimulatedConnection) -> None:
        piece = self._unsent.popleft()
        size = min(len(piece), self._network.piece_size())
        if self._cut_after is not None:
            size = min(size, self._cut_after)
            self._cut_after -= size
        if size < len(piece):
            self._unsent.appendleft(piece[size:])
        self._unsent_bytes -= size
        peer._guard(peer._receive, piece[:size])
        if self._cut_after == 0:
            self._cut_after = None
            self._network.drop(self)

    def _receive(self, piece: bytes) -> None:
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(piece)
            return
        view = memoryview(piece)
        while view and not self._closing:
            buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
            count = min(len(buffer), len(view))
            if not count:
                raise RuntimeError("get_buffer() returned an empty buffer")
            buffer[:count] = view[:count]
            buffer.release()
            protocol.buffer_updated(count)
            view = view[count:]

    def _receive_eof(self) -> bool:
        assert isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        return bool(self._protocol.eof_received()) and not self.secure

    def _guard(self, callback: Callable[..., T], *args: Any) -> T | None:
        """Call a protocol; an exception breaks its connection, as in asyncio."""
        try:
            return callback(*args)
        except Exception as error:
            self._network.failures.append(error)
            self._reset_wanted = True
            self._forget_unsent()
            self._schedule()
            self._closing = True
            self._tell_lost(error)
            return None

    def _tell_pressure(self) -> None:
        if self._protocol is None or self._told_lost:
            return
        size = self.get_write_buffer_size()
        if size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif size <= self._low and self._writing_paused:
            self._writing_paused = False
            self._protocol.resume_writing()

    def _tell_lost_if_flushed(self) -> None:
        if self._closing and self.get_write_buffer_size() == 0:
            self._tell_lost(None)

    def _break(self, error: Exception) -> None:
        """Break the connection: drop bytes in flight and notify the protocol."""
        self._forget_unsent()
        self._ended = True
        self._closing = True
        self._tell_lost(error)
        self._network.forget_if_over(self)

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    def _tell_lost(self, error: Exception | None) -> None:
        if not self._told_lost and self._protocol is not None:
            self._told_lost = True
            self._network.clock.call_soon(self._protocol.connection_lost, error)


class _Network:
    """State that all hosts of a simulation share."""

    def __init__(self, clock: Clock, random: Random, conditions: Conditions) -> None:
        self.clock = clock
        self.random = random
        self.conditions = conditions
        self.listeners: dict[Address, SimulatedListener] = {}
        self.connections: dict[SimulatedConnection, None] = {}  # the dialling ends, in order
        self.failures: list[Exception] = []
        self.parted: dict[tuple[str, str], None] = {}
        self.cuts: list[tuple[str, str, int]] = []
        self._next_port = _FIRST_FREE_PORT
        self._next_client_port = _FIRST_CLIENT_PORT

    def after_latency(self, callback: Callable[..., object], *args: Any) -> Timer:
        low, high = self.conditions.latency
        return self.clock.call_later(low + (high - low) * self.random.float(), callback, *args)

    def piece_size(self) -> int:
        if self.random.float() < self.conditions.tiny_pieces:
            return 1 + self.random.below(16)
        return 1 + self.random.below(self.conditions.piece_bytes)

    def connected(self, sender: str, receiver: str) -> bool:
        parted = self.parted
        if not parted or (sender, receiver) in parted:
            return not parted
        return sender == receiver or ((sender, "*") not in parted and ("*", receiver) not in parted)

    def listen(self, listener: SimulatedListener) -> None:
        host, port = listener.addresses[0]
        while port == 0:
            if (host, self._next_port) not in self.listeners:
                port = self._next_port
            self._next_port += 1
        if (host, port) in self.listeners:
            raise _error(OSError, errno.EADDRINUSE, f"{host}:{port}")
        listener.addresses[0] = (host, port)
        self.listeners[host, port] = listener

    def find(self, host: str, port: int) -> SimulatedListener | None:
        exact = self.listeners.get((host, port))
        if exact is not None:
            return exact
        for (_, bound_port), listener in self.listeners.items():
            if bound_port == port and (listener.owner == host or host in _LOCAL):
                return listener
        return None

    def client_port(self) -> int:
        self._next_client_port += 1
        return self._next_client_port

    def join(self, client: SimulatedConnection, server: SimulatedConnection) -> None:
        client.peer, server.peer = server, client
        self.connections[client] = None
        for index, (sender, receiver, count) in enumerate(self.cuts):
            for end, other in ((client, server), (server, client)):
                if sender in ("*", end.owner) and receiver in ("*", other.owner):
                    del self.cuts[index]
                    end._cut_after = count
                    return

    def forget_if_over(self, end: SimulatedConnection) -> None:
        if end._ended and end.peer._ended:
            self.connections.pop(end, None)
            self.connections.pop(end.peer, None)

    def drop(self, end: SimulatedConnection) -> None:
        for connection in (end, end.peer):
            connection._break(_error(ConnectionResetError, errno.ECONNRESET))

    def wake(self) -> None:
        for client in list(self.connections):
            client._schedule()
            client.peer._schedule()


class SimulatedTransport:
    """The network from one host; `at` returns it from another host."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        host: str = "localhost",
        *,
        conditions: Conditions | None = None,
        _network: _Network | None = None,
    ) -> None:
        self.host = host
        self._network = _network or _Network(clock, random, conditions or Conditions())

    def at(self, host: str) -> SimulatedTransport:
        """Return the same network with another host as the local one."""
        return SimulatedTransport(self._network.clock, self._network.random, host, _network=self._network)

    @property
    def conditions(self) -> Conditions:
        """The quality of the network; may be changed at any time."""
        return self._network.conditions

    @property
    def connections(self) -> list[SimulatedConnection]:
        """Return the open connections by their dialling ends, oldest first."""
        return list(self._network.connections)

    @property
    def failures(self) -> list[Exception]:
        """Return the exceptions of protocols; each broke its connection."""
        return self._network.failures

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str | None,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        backlog: int = 1024,
        reuse_port: bool = False,
    ) -> SimulatedListener:
        """Accept connections. Port 0 takes a free one; no host means all addresses of this host."""
        bound = self.host if host is None or host in _EVERYWHERE else host
        listener = SimulatedListener(self._network, self.host, (bound, port), factory, ssl)
        self._network.listen(listener)
        return listener

    async def connect(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, P]:
        """Connect to an address; raise OSError on failure."""
        future: asyncio.Future[tuple[asyncio.Transport, P]] = asyncio.get_running_loop().create_future()

        def done(made: tuple[SimulatedConnection, P] | OSError) -> None:
            if isinstance(made, OSError):
                if not future.done():
                    future.set_exception(made)
            elif future.done():
                made[0].abort()
            else:
                future.set_result(made)

        self.dial(factory, host, port, done, secure=ssl is not None)
        return await future

    def dial(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        done: Callable[[tuple[SimulatedConnection, P] | OSError], object] = lambda made: None,
        *,
        secure: bool = False,
    ) -> None:
        """Connect without a loop; call `done` with the connection or the error."""
        network = self._network
        start = network.clock.monotonic()
        sockname = (self.host, network.client_port())

        def arrive(retry_seconds: float) -> None:
            listener = network.find(host, port)
            owner = host if listener is None else listener.owner
            if not (network.connected(self.host, owner) and network.connected(owner, self.host)):
                remaining = start + network.conditions.connect_timeout - network.clock.monotonic()
                if remaining <= 0:
                    done(_error(TimeoutError, errno.ETIMEDOUT, f"{host}:{port}"))
                else:
                    network.clock.call_later(min(retry_seconds, remaining), arrive, retry_seconds * 2)
            elif listener is None:
                network.after_latency(done, _error(ConnectionRefusedError, errno.ECONNREFUSED, f"{host}:{port}"))
            elif (listener.ssl is not None) != secure:
                network.after_latency(done, _error(ConnectionResetError, errno.ECONNRESET, f"{host}:{port}"))
            else:
                client = SimulatedConnection(network, self.host, sockname, (host, port), secure)
                server = SimulatedConnection(network, owner, (host, port), sockname, secure)
                network.join(client, server)
                server._begin(listener.factory())
                network.after_latency(established, client)

        def established(client: SimulatedConnection) -> None:
            if client._ended:
                done(_error(ConnectionResetError, errno.ECONNRESET, f"{host}:{port}"))
                return
            protocol = factory()
            client._begin(protocol)
            done((client, protocol))

        network.after_latency(arrive, 1.0)

    def partition(self, one: str, other: str = "*", *, one_way: bool = False) -> None:
        """Deliver no bytes between two hosts until `heal`; they wait, as with TCP."""
        self._network.parted[one, other] = None
        if not one_way:
            self._network.parted[other, one] = None

    def heal(self) -> None:
        """End all partitions."""
        self._network.parted.clear()
        self._network.wake()

    def drop(self, one: str = "*", other: str = "*") -> int:
        """Reset the connections between two hosts (any, if not named); return their number."""
        dropped = 0
        for client in self.connections:
            owners = (client.owner, client.peer.owner)
            if any(one in ("*", a) and other in ("*", b) for a, b in (owners, owners[::-1])):
                self._network.drop(client)
                dropped += 1
        return dropped

    def cut_next(self, after_bytes: int, sender: str = "*", receiver: str = "*") -> None:
        """Break the next connection between two hosts after that many bytes reached the receiver."""
        self._network.cuts.append((sender, receiver, after_bytes))


E = TypeVar("E", bound=OSError)


def _error(kind: type[E], code: int, where: str | None = None) -> E:
    return kind(code, os.strerror(code)) if where is None else kind(code, os.strerror(code), where)
