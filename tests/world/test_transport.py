"""Real sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import datetime
import errno
import socket
import ssl
import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from ottla.world import LoopTransport
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[LoopTransport], Coroutine[Any, Any, None]]], None]:
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop
    else:
        factory = asyncio.new_event_loop

    def run(main: Callable[[LoopTransport], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(120):
                await main(LoopTransport(asyncio.get_running_loop()))

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return run


class Echo(asyncio.Protocol):
    """A protocol that returns received bytes in upper case."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's have the shape, not the base class

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Collect(asyncio.BufferedProtocol):
    """A buffered protocol that collects received bytes through a small buffer."""

    def __init__(self, expected: int) -> None:
        self.buffer = bytearray(1_000)
        self.got = bytearray()
        self.expected = expected
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]
        if len(self.got) >= self.expected and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def test_connection_carries_bytes_both_ways(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        listener = await world.listen(Echo, "127.0.0.1", 0)
        assert listener.addresses == [("127.0.0.1", listener.port)]
        assert listener.port > 0
        transport, client = await world.connect(lambda: Collect(50_000), "127.0.0.1", listener.port)
        transport.writelines([b"hello"] * 10_000)
        await client.done
        assert client.got == b"HELLO" * 10_000
        assert transport.get_extra_info("peername") == ("127.0.0.1", listener.port)
        transport.close()
        assert await client.lost is None
        listener.close()
        listener.close()

    run(main)


def test_both_ends_send_without_delay(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        servers: list[Echo] = []

        def factory() -> Echo:
            servers.append(Echo())
            return servers[-1]

        listener = await world.listen(factory, "127.0.0.1", 0)
        transport, client = await world.connect(lambda: Collect(1), "127.0.0.1", listener.port)
        transport.write(b"x")
        await client.done
        for end in (transport, servers[0].transport):
            no_delay = end.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert no_delay != 0
        transport.abort()
        listener.close()

    run(main)


def test_free_port_is_shared_by_all_host_addresses(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        for host in ("localhost", None):
            listener = await world.listen(Echo, host, 0)
            assert len({port for _, port in listener.addresses}) == 1
            transport, client = await world.connect(lambda: Collect(1), "127.0.0.1", listener.port)
            transport.write(b"x")
            await client.done
            transport.close()
            await client.lost
            listener.close()

    run(main)


def test_port_in_use_error_names_port_and_released_port_is_free(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        first = await world.listen(Echo, "127.0.0.1", free_ports(1)[0])
        with pytest.raises(OSError, match=str(first.port)) as caught:
            await world.listen(Echo, "127.0.0.1", first.port)
        assert caught.value.errno == errno.EADDRINUSE
        transport, client = await world.connect(lambda: Collect(1), "127.0.0.1", first.port)
        transport.write(b"x")
        await client.done
        first.close()
        transport.abort()
        await client.lost
        again = await world.listen(Echo, "127.0.0.1", first.port)
        assert again.port == first.port
        again.close()

    run(main)


@pytest.mark.skipif(sys.platform != "linux", reason="port sharing is Linux's")
def test_port_can_be_shared_on_request(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        first = await world.listen(Echo, "127.0.0.1", 0, reuse_port=True)
        second = await world.listen(Echo, "127.0.0.1", first.port, reuse_port=True)
        first.close()
        second.close()

    run(main)


def test_connect_without_listener_is_refused(run: Any) -> None:
    async def main(world: LoopTransport) -> None:
        listener = await world.listen(Echo, "127.0.0.1", free_ports(1)[0])
        listener.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await world.connect(lambda: Collect(1), "127.0.0.1", listener.port)

    run(main)


def test_tls_connection_carries_bytes(run: Any, tmp_path: Path) -> None:
    server, client_context = _contexts(tmp_path)

    async def main(world: LoopTransport) -> None:
        listener = await world.listen(Echo, "127.0.0.1", 0, ssl=server)
        transport, client = await world.connect(
            lambda: Collect(5), "127.0.0.1", listener.port, ssl=client_context, server_hostname="localhost"
        )
        transport.write(b"hello")
        await client.done
        assert client.got == b"HELLO"
        assert transport.get_extra_info("ssl_object").version().startswith("TLS")
        with pytest.raises(ssl.SSLError):
            await world.connect(
                lambda: Collect(5), "127.0.0.1", listener.port, ssl=client_context, server_hostname="other"
            )
        transport.close()
        await client.lost
        listener.close()

    run(main)


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts: a server with a self-signed certificate for localhost, and a client that trusts it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "both.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))
