"""The whole environment in one object, real or simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.world.clock import Clock, LoopClock, VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import Random, SeededRandom, SystemRandom
from ottla.world.transport import LoopTransport, Transport
from ottla.world.workers import InlineWorkers, ThreadWorkers, Workers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ottla.world.disk import Disk
    from ottla.world.disk_faulty import FaultyDisk
    from ottla.world.transport_simulated import SimulatedTransport


@dataclass(slots=True)
class World:
    """Clock, disk, transport, randomness and workers, passed to everything above."""

    clock: Clock
    disk: Disk
    transport: Transport
    random: Random
    workers: Workers
    memory: MemoryDisk | None = None
    """The in-memory disk beneath `disk`, if files are in memory."""
    clock_of_node: Callable[[int], Clock] | None = None
    """Clocks of single nodes' coordinators, where the test kit pauses a node."""

    def node_clock(self, node_id: int) -> Clock:
        """Return the clock of a node's coordinators."""
        return self.clock if self.clock_of_node is None else self.clock_of_node(node_id)

    @classmethod
    def real(cls, loop: asyncio.AbstractEventLoop, disk: Disk | None = None) -> World:
        """Return this machine's environment on a loop; with a `MemoryDisk` it writes no files."""
        files = disk or RealDisk(loop)
        memory = files if isinstance(files, MemoryDisk) else None
        return cls(LoopClock(loop), files, LoopTransport(loop), SystemRandom(), ThreadWorkers(loop), memory)

    @classmethod
    def simulated(cls, seed: int | str) -> SimulatedWorld:
        """Return an environment with virtual time in which the seed decides everything."""
        return SimulatedWorld(seed)


class SimulatedWorld(World):
    """An environment with simulated parts, so that tests can move time and inject faults."""

    __slots__ = ("seed",)

    clock: VirtualClock
    disk: FaultyDisk
    transport: SimulatedTransport
    random: SeededRandom

    def __init__(self, seed: int | str) -> None:
        # A real broker starts without importing these.
        from ottla.world.disk_faulty import FaultyDisk
        from ottla.world.transport_simulated import SimulatedTransport

        random = SeededRandom(seed)
        clock = VirtualClock()
        self.seed = seed
        World.__init__(
            self,
            clock,
            FaultyDisk(random.fork("disk"), clock, sync_seconds=(0.000_2, 0.01)),
            SimulatedTransport(clock, random.fork("transport")),
            random,
            InlineWorkers(clock),
        )
