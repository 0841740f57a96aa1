from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import ottla.world
from ottla.world import MemoryDisk, RealDisk, SeededRandom, SystemRandom, VirtualClock, World

if TYPE_CHECKING:
    from pathlib import Path

# Use every part of a world as a broker does, and print a trace.
SIMULATION = """
import asyncio, hashlib, sys
from ottla.world import SimulatedCrash, World, run

world = World.simulated(int(sys.argv[1]))
trace = hashlib.sha256()

def note(*what):
    trace.update(repr((world.clock.now_ms(), world.clock.monotonic(), *what)).encode())

class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        note("made", transport.get_extra_info("peername"))
    def data_received(self, data):
        note("server", data)
        log.append(data)
        world.disk.sync([log], lambda error: self.transport.write(data[::-1]))
    def connection_lost(self, error):
        note("lost", repr(error))

class Client(asyncio.Protocol):
    def data_received(self, data):
        note("client", data)

async def client(name):
    here = world.transport.at(name)
    random = world.random.fork(name)
    while True:
        try:
            transport, _ = await here.connect(Client, "broker", 9092)
            for _ in range(random.below(20)):
                transport.write(random.bytes(random.below(3_000)))
                await asyncio.sleep(random.float())
            transport.close()
        except OSError as error:
            note(name, repr(error))
        await asyncio.sleep(random.float())

async def trouble():
    while True:
        await asyncio.sleep(world.random.float() * 10)
        world.transport.partition(world.random.choice(names), "broker")
        world.transport.drop(world.random.choice(names))
        await asyncio.sleep(world.random.float() * 10)
        world.transport.heal()
        note("uuid", world.random.uuid())

names = ["client-%d" % number for number in range(5)]
log = world.disk.open("log", create=True)

async def main():
    await world.transport.at("broker").listen(Server, None, 9092)
    world.disk.crash_after(400)
    tasks = [asyncio.create_task(client(name)) for name in names] + [asyncio.create_task(trouble())]
    await asyncio.sleep(3_600)

try:
    run(world, main())
    note("end")
except SimulatedCrash:
    note("crash")
world.disk.crash()
disk = world.disk.reopen()
note([(name, disk.read(name)) for name in disk.list("/")])
print(trace.hexdigest(), world.disk.writes, world.clock.now_ms())
"""


def test_same_seed_gives_same_run_for_any_hash_seed() -> None:
    def start(seed: int, hash_seed: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", SIMULATION, str(seed)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )

    processes = [start(7, "0"), start(7, "1"), start(7, "4242"), start(8, "0")]
    traces = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert traces[0].split()[1] == "400", "the run did not get to its crash"
    assert len(set(traces[:3])) == 1
    assert traces[3] != traces[0]


def test_public_names_are_exported_once() -> None:
    assert sorted(ottla.world._HOME) == sorted(ottla.world.__all__)
    for name in ottla.world.__all__:
        assert getattr(ottla.world, name) is not None


def test_importing_disk_does_not_load_asyncio() -> None:
    code = "import sys; from ottla.world import MemoryDisk, RealDisk, SeededRandom; print('asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_simulated_world_has_only_simulated_parts() -> None:
    world = World.simulated("a name will do")
    assert isinstance(world, World)
    assert isinstance(world.clock, VirtualClock)
    assert isinstance(world.random, SeededRandom)
    assert world.transport.host == "localhost"
    world.disk.make_dirs("/data")
    world.clock.advance(1)


async def test_real_world_accepts_other_disk(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    world = World.real(loop)
    assert isinstance(world.disk, RealDisk)
    assert isinstance(world.random, SystemRandom)
    file = world.disk.open(str(tmp_path / "a"), create=True)
    done: asyncio.Future[OSError | None] = loop.create_future()
    world.disk.sync([file], done.set_result)
    assert await done is None
    file.close()
    world.disk.close()
    memory = MemoryDisk(clock=world.clock)
    assert World.real(loop, memory).disk is memory
