"""Many TLS handshakes at once, incomplete handshakes, and silent clients."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client import Client
from ottla.client.auth import security_from_properties
from ottla.security.dev_tls import Authority, write_private
from ottla.security.tls import TlsSettings, server_context
from ottla.testing import Cluster
from ottla.world import LoopTransport, transport_tls
from ottla.world.transport_tls import TlsAcceptor
from tests.testing.clients import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CROWD = 50
LOOPS = ["asyncio", "uvloop"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def context(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    write_private(str(tmp_path / "server.pem"), authority.server().pem)
    return server_context(TlsSettings(keystore_location=str(tmp_path / "server.pem")))


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


class Half:
    """A client that sends its first message and finishes the handshake on demand."""

    def __init__(self, port: int, authority: Authority) -> None:
        self.wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.came, self.goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting = ssl.create_default_context(cadata=authority.certificate_pem.decode())
        self.side = trusting.wrap_bio(self.came, self.goes, server_hostname="localhost")
        self._step()
        self.wire.sendall(self.goes.read())

    def finish(self) -> None:
        while not self._step():
            data = self.wire.recv(65536)
            assert data, "the server hung up"
            self.came.write(data)
        self.wire.sendall(self.goes.read())

    def hung_up(self) -> bool:
        try:
            while self.wire.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def _step(self) -> bool:
        try:
            self.side.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


class Noted(asyncio.Protocol):
    """Counts finished handshakes."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        type(self).made += 1


def test_other_requests_run_between_handshakes(
    runner: asyncio.Runner, context: ssl.SSLContext, authority: Authority
) -> None:
    async def main() -> Counter[int]:
        loop = asyncio.get_running_loop()
        Noted.made = turn = 0
        in_turn: Counter[int] = Counter()

        def count(*_: Any) -> None:
            in_turn[turn] += 1

        context.sni_callback = count  # type: ignore[assignment]  # called in the midst of each handshake
        listener = await LoopTransport(loop).listen(Noted, "127.0.0.1", 0, ssl=context)
        crowd = [Half(listener.port, authority) for _ in range(CROWD)]  # the loop is blocked meanwhile
        finishing = asyncio.ensure_future(asyncio.to_thread(lambda: [entry.finish() for entry in crowd]))
        async with asyncio.timeout(300):
            while Noted.made < CROWD:
                turn += 1
                await asyncio.sleep(0)
            await finishing
        listener.close()
        for entry in crowd:
            entry.wire.close()
        return in_turn

    completed = runner.run(main())
    assert sum(completed.values()) == CROWD
    assert max(completed.values()) <= 2


def test_silent_and_incomplete_handshakes_time_out(
    runner: asyncio.Runner, context: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_tls, "HANDSHAKE_SECONDS", 0.1)

    async def main() -> None:
        listener = await LoopTransport(asyncio.get_running_loop()).listen(Noted, "127.0.0.1", 0, ssl=context)
        silent = socket.create_connection(("127.0.0.1", listener.port), timeout=60)
        half = Half(listener.port, authority)
        assert await asyncio.to_thread(silent.recv, 1) == b""
        assert await asyncio.to_thread(half.hung_up)
        listener.close()
        silent.close()
        half.wire.close()

    runner.run(main())


def test_oldest_silent_connection_is_closed_at_the_limit(
    runner: asyncio.Runner, context: ssl.SSLContext, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_tls, "MAX_SILENT", 3)

    async def main() -> None:
        listener = await LoopTransport(asyncio.get_running_loop()).listen(Noted, "127.0.0.1", 0, ssl=context)
        silent = [socket.create_connection(("127.0.0.1", listener.port), timeout=60) for _ in range(5)]
        for wire in silent[:2]:
            assert await asyncio.to_thread(wire.recv, 1) == b""
        half = Half(listener.port, authority)
        await asyncio.to_thread(half.finish)
        listener.close()
        for wire in [*silent, half.wire]:
            wire.close()

    runner.run(main())


def test_close_ends_unfinished_handshakes(
    runner: asyncio.Runner, context: ssl.SSLContext, authority: Authority
) -> None:
    async def main() -> None:
        listener = await LoopTransport(asyncio.get_running_loop()).listen(Noted, "127.0.0.1", 0, ssl=context)
        silent = socket.create_connection(("127.0.0.1", listener.port), timeout=60)
        half = Half(listener.port, authority)
        (door,) = listener._servers
        assert isinstance(door, TlsAcceptor)
        async with asyncio.timeout(300):
            while not (door._silent and door._tasks):  # every handshake has reached its last step
                await asyncio.sleep(0)
        listener.close()
        listener.close()
        assert await asyncio.to_thread(silent.recv, 1) == b""
        assert await asyncio.to_thread(half.hung_up)
        silent.close()
        half.wire.close()

    runner.run(main())


@pytest.mark.parametrize("junk", [b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(100), bytes(5000)])
def test_junk_handshake_does_not_affect_others(authority: Authority, junk: bytes) -> None:
    with Cluster(tls=authority, topics=["orders"]) as cluster:
        port = int(cluster.bootstrap.rpartition(":")[2])
        wires = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
        for wire in wires:
            wire.sendall(junk)
        settings = {"security.protocol": "SSL", "ssl.truststore.certificates": cluster.ca_pem}
        with Client(cluster.bootstrap, timeout=60, security=security_from_properties(settings, {})) as client:
            assert [topic.name for topic in client.topics()] == ["orders"]
        for wire in wires:
            wire.close()
        eventually(lambda: not cluster.connections())
