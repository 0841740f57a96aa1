"""The broker's environment: time, randomness, files, sockets and threads, each real and simulated.

Code above gets these as parameters and never uses `time`, `random`, `os` or `socket` itself, which makes virtual time,
injected faults and seeded runs possible. Names load on first use, so that a tool that only reads files does not import
asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.world.clock import Clock, LoopClock, Timer, VirtualClock
    from ottla.world.disk import Buffer, Disk, File, Lock, SyncDone
    from ottla.world.disk_faulty import FaultyDisk, SimulatedCrash
    from ottla.world.disk_memory import MemoryDisk
    from ottla.world.disk_real import RealDisk
    from ottla.world.random import Random, SeededRandom, SystemRandom
    from ottla.world.simulated_loop import SimulatedLoop, run
    from ottla.world.transport import Address, Listener, LoopTransport, Transport
    from ottla.world.transport_simulated import SimulatedConnection, SimulatedTransport
    from ottla.world.workers import InlineWorkers, ThreadWorkers, Workers
    from ottla.world.world import SimulatedWorld, World

_HOMES = {
    "clock": ("Clock", "LoopClock", "Timer", "VirtualClock"),
    "disk": ("Buffer", "Disk", "File", "Lock", "SyncDone"),
    "disk_faulty": ("FaultyDisk", "SimulatedCrash"),
    "disk_memory": ("MemoryDisk",),
    "disk_real": ("RealDisk",),
    "random": ("Random", "SeededRandom", "SystemRandom"),
    "simulated_loop": ("SimulatedLoop", "run"),
    "transport": ("Address", "Listener", "LoopTransport", "Transport"),
    "transport_simulated": ("SimulatedConnection", "SimulatedTransport"),
    "workers": ("InlineWorkers", "ThreadWorkers", "Workers"),
    "world": ("SimulatedWorld", "World"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Address",
    "Buffer",
    "Clock",
    "Disk",
    "FaultyDisk",
    "File",
    "InlineWorkers",
    "Listener",
    "Lock",
    "LoopClock",
    "LoopTransport",
    "MemoryDisk",
    "Random",
    "RealDisk",
    "SeededRandom",
    "SimulatedConnection",
    "SimulatedCrash",
    "SimulatedLoop",
    "SimulatedTransport",
    "SimulatedWorld",
    "SyncDone",
    "SystemRandom",
    "ThreadWorkers",
    "Timer",
    "Transport",
    "VirtualClock",
    "Workers",
    "World",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
