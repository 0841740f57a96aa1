"""The simulated network. Tests run with many seeds; most advance the clock without an event loop."""

from __future__ import annotations

import asyncio
import errno
import ssl
from typing import Any

import pytest

from ottla.world import SeededRandom, SimulatedConnection, SimulatedTransport, VirtualClock, World, run

SEEDS = range(30)


class Recorder(asyncio.Protocol):
    """A protocol that records its callbacks."""

    def __init__(self) -> None:
        self.transport: SimulatedConnection
        self.got = bytearray()
        self.pieces = 0
        self.events: list[str] = []
        self.error: Exception | None = None
        self.stay_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedConnection)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert data
        assert self.events
        assert "lost" not in self.events
        self.got += data
        self.pieces += 1

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.stay_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc


class Buffered(Recorder, asyncio.BufferedProtocol):
    """A Recorder that receives through `get_buffer` with a small buffer."""

    def get_buffer(self, sizehint: int) -> memoryview:
        assert sizehint > 0
        self.buffer = bytearray(777)
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer[:nbytes]))


class Net:
    """A server on `broker`, clients on `client`, and a clock."""

    def __init__(self, seed: int, factory: type[Recorder] = Recorder) -> None:
        self.clock = VirtualClock()
        self.network = SimulatedTransport(self.clock, SeededRandom(seed))
        self.servers: list[Recorder] = []
        self.errors: list[OSError] = []
        self.factory = factory
        self.listener = _finish(self.network.at("broker").listen(self._accept, "0.0.0.0", 9092))

    def _accept(self) -> Recorder:
        self.servers.append(self.factory())
        return self.servers[-1]

    def dial(self, host: str = "client", port: int = 9092) -> Recorder:
        client = self.factory()

        def done(made: tuple[SimulatedConnection, Recorder] | OSError) -> None:
            if isinstance(made, OSError):
                self.errors.append(made)

        self.network.at(host).dial(lambda: client, "broker", port, done)
        return client

    def pair(self) -> tuple[Recorder, Recorder]:
        client = self.dial()
        self.clock.advance(1)
        return client, self.servers[-1]


def _finish(coroutine: Any) -> Any:
    """Return the result of a coroutine that never suspends."""
    with pytest.raises(StopIteration) as caught:
        coroutine.send(None)
    return caught.value.value


@pytest.mark.parametrize("factory", [Recorder, Buffered])
def test_bytes_arrive_complete_in_order_delayed_and_split(factory: type[Recorder]) -> None:
    for seed in SEEDS:
        net = Net(seed, factory)
        client, server = net.pair()
        data = bytes(number % 251 for number in range(100_000))
        client.transport.write(data[:70_000])
        client.transport.writelines([data[70_000:80_000], memoryview(data)[80_000:]])
        server.transport.write(b"meanwhile")
        assert server.got == b""
        net.clock.advance(60)
        assert server.got == data
        assert client.got == b"meanwhile"
        assert server.pieces > 2
        assert client.transport.get_extra_info("peername") == server.transport.get_extra_info("sockname")
        assert server.transport.get_extra_info("peername") == client.transport.get_extra_info("sockname")


def test_write_copies_its_input() -> None:
    net = Net(1)
    client, server = net.pair()
    data = bytearray(b"before")
    client.transport.write(data)
    data[:] = b"after!"
    net.clock.advance(1)
    assert server.got == b"before"


def test_close_delivers_written_bytes_before_eof() -> None:
    for seed in SEEDS:
        net = Net(seed)
        client, server = net.pair()
        client.transport.write(b"x" * 200_000)
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"ignored")
        net.clock.advance(60)
        assert server.got == b"x" * 200_000
        assert server.events == ["made", "eof", "lost"]
        assert (server.error, client.error) == (None, None)
        assert client.events[-1] == "lost"
        assert client.events.count("lost") == 1
        assert net.network.connections == []
        assert len(net.clock) == 0


def test_half_closed_connection_can_respond() -> None:
    net = Net(1)
    client, server = net.pair()
    server.stay_open = True
    client.transport.write(b"question")
    client.transport.write_eof()
    with pytest.raises(RuntimeError):
        client.transport.write(b"more")
    net.clock.advance(1)
    server.transport.write(b"answer")
    server.transport.close()
    net.clock.advance(1)
    assert client.got == b"answer"
    assert (client.error, server.error) == (None, None)
    assert client.events == ["made", "eof", "lost"]
    assert net.network.connections == []


def test_abort_resets_peer() -> None:
    for seed in SEEDS:
        net = Net(seed)
        client, server = net.pair()
        client.transport.write(b"x" * 100_000)
        client.transport.abort()
        client.transport.abort()
        net.clock.advance(1)
        assert (client.events, client.error) == (["made", "lost"], None)
        assert server.events == ["made", "lost"]
        assert isinstance(server.error, ConnectionResetError)
        assert net.network.connections == []


def test_write_to_closed_peer_resets() -> None:
    net = Net(1)
    client, server = net.pair()
    client.stay_open = True
    server.transport.close()
    net.clock.advance(1)
    assert client.events == ["made", "eof"]
    client.transport.write(b"hello?")
    net.clock.advance(1)
    assert isinstance(client.error, ConnectionResetError)
    assert net.network.connections == []


def test_paused_reader_pauses_writer_until_resumed() -> None:
    for seed in SEEDS:
        net = Net(seed)
        client, server = net.pair()
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.write(b"x" * 65_536)
        assert client.transport.get_write_buffer_size() == 0, "the machines themselves hold this much"
        client.transport.write(b"x" * 65_536)
        assert client.events == ["made"]
        client.transport.write(b"x")
        assert client.events == ["made", "pause"]
        net.clock.advance(60)
        assert (server.got, client.events) == (b"", ["made", "pause"])
        server.transport.resume_reading()
        net.clock.advance(60)
        assert len(server.got) == 2 * 65_536 + 1
        assert client.events == ["made", "pause", "resume"]


def test_write_buffer_limits_are_applied() -> None:
    net = Net(1)
    net.network.conditions.window_bytes = 0
    client, server = net.pair()
    server.transport.pause_reading()
    client.transport.set_write_buffer_limits(high=10, low=2)
    assert client.transport.get_write_buffer_limits() == (2, 10)
    client.transport.write(b"x" * 10)
    assert client.events == ["made"]
    client.transport.write(b"x")
    assert client.events == ["made", "pause"]
    client.transport.set_write_buffer_limits(high=100)
    assert client.transport.get_write_buffer_limits() == (25, 100)
    assert client.events == ["made", "pause", "resume"]
    with pytest.raises(ValueError):
        client.transport.set_write_buffer_limits(high=1, low=2)


def test_connection_lost_is_called_after_close_flushes_buffer() -> None:
    net = Net(1)
    client, server = net.pair()
    server.transport.pause_reading()
    client.transport.write(b"x" * 200_000)
    client.transport.close()
    net.clock.advance(60)
    assert "lost" not in client.events
    server.transport.resume_reading()
    net.clock.advance(60)
    assert "lost" in client.events
    assert len(server.got) == 200_000


def test_partition_delays_bytes_until_healed() -> None:
    for seed in SEEDS:
        net = Net(seed)
        client, server = net.pair()
        client.transport.write(b"x" * 100_000)
        net.clock.advance(0.001)
        net.network.partition("client", "broker")
        net.clock.advance(0.01)
        before = len(server.got)
        server.transport.write(b"y")
        net.clock.advance(1_000)
        assert (len(server.got), client.got) == (before, b"")
        other = net.dial("elsewhere")
        net.clock.advance(1)
        assert other.events == ["made"], "others are not concerned"
        net.network.heal()
        net.clock.advance(60)
        assert len(server.got) == 100_000
        assert client.got == b"y"


def test_partition_may_be_one_way_or_isolate_host() -> None:
    net = Net(1)
    client, server = net.pair()
    net.network.partition("client", "broker", one_way=True)
    client.transport.write(b"x")
    server.transport.write(b"y")
    net.clock.advance(1)
    assert (server.got, client.got) == (b"", b"y")
    net.network.heal()
    net.network.partition("broker")
    server.transport.write(b"z")
    net.clock.advance(1)
    assert (server.got, client.got) == (b"x", b"y") or (server.got, client.got) == (b"", b"y")
    net.network.heal()
    net.clock.advance(1)
    assert (server.got, client.got) == (b"x", b"yz")


def test_reset_does_not_cross_partition() -> None:
    net = Net(1)
    client, server = net.pair()
    net.network.partition("client", "broker")
    client.transport.abort()
    net.clock.advance(100)
    assert server.events == ["made"]
    net.network.heal()
    net.clock.advance(1)
    assert server.events == ["made", "lost"]


def test_connect_through_partition_times_out_unless_healed() -> None:
    net = Net(1)
    net.network.partition("client", "broker")
    net.dial()
    late = net.dial()
    net.clock.advance(19)
    assert net.errors == []
    net.clock.advance(2)
    assert [type(error) for error in net.errors] == [TimeoutError, TimeoutError]
    assert late.events == []
    patient = net.dial()
    net.clock.advance(5)
    net.network.heal()
    net.clock.advance(10)
    assert patient.events == ["made"]


def test_connect_without_listener_is_refused() -> None:
    net = Net(1)
    client, server = net.pair()
    net.listener.close()
    net.listener.close()
    net.dial()
    net.dial(port=1)
    net.clock.advance(1)
    assert [type(error) for error in net.errors] == [ConnectionRefusedError] * 2
    client.transport.write(b"still here")
    net.clock.advance(1)
    assert server.got == b"still here"


def test_dropped_connection_resets_both_ends() -> None:
    net = Net(1)
    client, server = net.pair()
    other = net.dial("elsewhere")
    net.clock.advance(1)
    assert len(net.network.connections) == 2
    assert net.network.drop("client", "broker") == 1
    net.clock.advance(1)
    for end in (client, server):
        assert isinstance(end.error, ConnectionResetError)
    assert other.events == ["made"]
    assert net.network.drop() == 1
    net.clock.advance(1)
    assert net.network.connections == []


def test_connection_can_be_cut_at_any_byte() -> None:
    for count in range(12):
        net = Net(count)
        net.network.cut_next(count, sender="client", receiver="broker")
        client, server = net.pair()
        client.transport.write(b"0123456789")
        net.clock.advance(1)
        if count <= 10:
            assert server.got == b"0123456789"[:count]
        cut = count <= 10
        assert (server.events, client.events) == ((["made", "lost"],) * 2 if cut else (["made"],) * 2)
    net = Net(1)
    client, server = net.pair()
    server.transport.cut_after(2)
    server.transport.write(b"abc")
    net.clock.advance(1)
    assert client.got == b"ab"
    assert isinstance(client.error, ConnectionResetError)


def test_protocol_error_closes_connection_and_is_reported() -> None:
    class Broken(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    net = Net(1, Broken)
    client, server = net.pair()
    client.transport.write(b"x")
    net.clock.advance(1)
    assert isinstance(server.error, ZeroDivisionError)
    assert isinstance(client.error, ConnectionResetError)
    assert [type(error) for error in net.network.failures] == [ZeroDivisionError]
    assert net.network.connections == []


def test_free_ports_differ_and_port_in_use_is_refused() -> None:
    network = SimulatedTransport(VirtualClock(), SeededRandom(1))
    ports = {_finish(network.listen(Recorder, None, 0)).port for _ in range(10)}
    assert len(ports) == 10
    with pytest.raises(OSError) as caught:
        network.listen(Recorder, None, ports.pop()).send(None)
    assert caught.value.errno == errno.EADDRINUSE
    first, second = (_finish(network.at(host).listen(Recorder, None, 9092)) for host in ("a", "b"))
    assert (first.addresses, second.addresses) == ([("a", 9092)], [("b", 9092)])


def test_server_bytes_arrive_after_connection_made() -> None:
    class Greeter(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.write(b"hello")

    for seed in SEEDS:
        net = Net(seed, Greeter)
        client, server = net.pair()
        assert (client.got, server.got) == (b"hello", b"hello")


def test_immediate_close_by_server_is_eof_for_client() -> None:
    class Rude(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            if len(net.servers) == 1 and self is net.servers[0]:
                self.transport.abort()

    for seed in SEEDS:
        net = Net(seed, Rude)
        client = net.dial()
        net.clock.advance(1)
        assert client.events in ([], ["made", "lost"])
        assert net.network.connections == []


def test_simulated_tls_requires_both_ends() -> None:
    world = World.simulated(1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def main() -> None:
        plain = await world.transport.listen(Recorder, "127.0.0.1", 0)
        secure = await world.transport.listen(Recorder, "127.0.0.1", 0, ssl=context)
        transport, _ = await world.transport.connect(Recorder, "127.0.0.1", secure.port, ssl=context)
        assert not transport.can_write_eof()
        for port, wrong in ((plain.port, context), (secure.port, None)):
            with pytest.raises(ConnectionResetError):
                await world.transport.connect(Recorder, "127.0.0.1", port, ssl=wrong)

    run(world, main())


def test_asyncio_streams_work() -> None:
    world = World.simulated(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def main() -> bytes:
        loop = asyncio.get_running_loop()

        def factory() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(loop=loop), serve, loop=loop)

        listener = await world.transport.at("broker").listen(factory, None, 0)
        reader = asyncio.StreamReader()
        transport, protocol = await world.transport.connect(
            lambda: asyncio.StreamReaderProtocol(reader), "broker", listener.port
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        reading = asyncio.create_task(reader.read())
        for number in range(2_000):
            writer.write(b"line %d\n" % number)
            await writer.drain()
        writer.write_eof()
        got = await reading
        writer.close()
        return got

    assert run(world, main()) == b"".join(b"LINE %d\n" % number for number in range(2_000))


def test_cancelled_connect_leaves_no_connection() -> None:
    for seed in SEEDS:
        world = World.simulated(seed)

        async def main(world: Any = world, seed: int = seed) -> None:
            listener = await world.transport.listen(Recorder, "127.0.0.1", 0)
            connecting = asyncio.create_task(world.transport.connect(Recorder, "127.0.0.1", listener.port))
            await asyncio.sleep(0.0001 * seed)
            given_up = connecting.cancel()
            await asyncio.sleep(1)
            assert len(world.transport.connections) == (0 if given_up else 1)

        run(world, main())
