"""Listening and connecting on the machine's sockets. `transport_simulated` has a network in memory.

Transports and protocols have asyncio's interface (uvloop's lack its base class); framing is done above.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.world.transport_tls import TlsAcceptor

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import Callable

    ProtocolFactory = Callable[[], asyncio.BaseProtocol]

Address = tuple[str, int]
P = TypeVar("P", bound=asyncio.BaseProtocol)
_PORT_ATTEMPTS = 20


class Listener(Protocol):
    """Accepts connections."""

    @property
    def addresses(self) -> list[Address]:
        """Return the addresses: one, or several for a host name or for all interfaces."""
        ...

    @property
    def port(self) -> int:
        """Return the port, the same for all addresses."""
        ...

    def close(self) -> None:
        """Stop accepting; open connections stay. Closing twice does nothing."""
        ...

    def renew(self, ssl: tls.SSLContext) -> None:
        """Accept with another TLS context from now on; open connections stay."""
        ...

    def pause(self) -> None:
        """Start no TLS handshakes until `resume`; the protocol itself pauses plain connections."""
        ...

    def resume(self) -> None:
        """Start handshakes again, in the order of arrival."""
        ...


class Transport(Protocol):
    """Opens listeners and connections."""

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str | None,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        backlog: int = 1024,
        reuse_port: bool = False,
    ) -> Listener:
        """Accept connections, each with its own protocol. Port 0 takes a free one; no host means all interfaces."""
        ...

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
        ...


class LoopListener:
    """Listening sockets of a loop."""

    __slots__ = ("_servers", "addresses")

    def __init__(self, servers: list[asyncio.AbstractServer | TlsAcceptor], addresses: list[Address]) -> None:
        self._servers = servers
        self.addresses = addresses

    @property
    def port(self) -> int:
        """Return the port, the same for all addresses."""
        return self.addresses[0][1]

    def close(self) -> None:
        """Stop accepting."""
        for server in self._servers:
            server.close()

    def renew(self, ssl: tls.SSLContext) -> None:
        """Accept with another TLS context; sockets and waiting connections stay."""
        for server in self._servers:
            assert isinstance(server, TlsAcceptor), "only a listener with TLS has a context"
            server.context = ssl

    def pause(self) -> None:
        """Start no TLS handshakes."""
        for server in self._servers:
            if isinstance(server, TlsAcceptor):
                server.pause()

    def resume(self) -> None:
        """Start handshakes again."""
        for server in self._servers:
            if isinstance(server, TlsAcceptor):
                server.resume()


class LoopTransport:
    """TCP sockets on an event loop of asyncio or uvloop, with TCP_NODELAY."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str | None,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        backlog: int = 1024,
        reuse_port: bool = False,
    ) -> LoopListener:
        """Accept connections. With port 0 all addresses of the host get the same free port."""
        resolved = await self._loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses: list[tuple[int, tuple[Any, ...]]] = list(dict.fromkeys((entry[0], entry[4]) for entry in resolved))
        sockets = _bind(addresses, port, reuse_port)
        servers: list[asyncio.AbstractServer | TlsAcceptor] = []
        try:
            for listening in sockets:
                listening.listen(backlog)
                servers.append(
                    await self._loop.create_server(factory, sock=listening, backlog=backlog)
                    if ssl is None
                    else TlsAcceptor(self._loop, listening, factory, ssl)
                )
        except BaseException:
            for server in servers:
                server.close()
            for listening in sockets:
                listening.close()
            raise
        return LoopListener(servers, [listening.getsockname()[:2] for listening in sockets])

    async def connect(
        self,
        factory: Callable[[], P],
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, P]:
        """Connect to an address."""
        transport, protocol = await self._loop.create_connection(
            factory, host, port, ssl=ssl, server_hostname=server_hostname if ssl is not None else None
        )
        connected = transport.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport, protocol


def _bind(addresses: list[tuple[int, tuple[Any, ...]]], port: int, reuse_port: bool) -> list[socket.socket]:
    """Bind every address to one port; retry if a port that is free on one address is taken on another."""
    for attempt in range(_PORT_ATTEMPTS):
        sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                chosen = sockets[0].getsockname()[1] if sockets else port
                bound = _bind_one(family, (address[0], chosen, *address[2:]), reuse_port)
                if bound is not None:
                    sockets.append(bound)
        except OSError as error:
            for bound in sockets:
                bound.close()
            if error.errno == errno.EADDRINUSE and port == 0 and sockets and attempt < _PORT_ATTEMPTS - 1:
                continue
            raise
        if sockets:
            return sockets
        break
    raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL), str(addresses))


def _bind_one(family: int, address: tuple[Any, ...], reuse_port: bool) -> socket.socket | None:
    """Return a bound socket, or None if the machine lacks the address family (IPv6 is often disabled)."""
    try:
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        if sys.platform == "win32":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
        made.setblocking(False)
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:
            return None
        raise OSError(error.errno, error.strerror, f"{address[0]}:{address[1]}") from None
    return made
