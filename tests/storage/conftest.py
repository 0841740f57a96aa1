from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.environment import StorageEnvironment
from ottla.storage.log.log import Log
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ottla.world.disk import Disk


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", "real"])
def location(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[tuple[Disk, str]]:
    """Return a disk and a folder on it; the test runs on every kind of disk."""
    disk: Disk
    if request.param == "memory":
        disk = MemoryDisk(clock=clock)
        disk.make_dirs("/data")
        yield disk, "/data"
    else:
        disk = RealDisk()
        yield disk, str(tmp_path)
    disk.close()


class Opener:
    """Open logs on a disk as a broker does, restart after restart."""

    def __init__(self, disk: Disk, clock: VirtualClock, root: str) -> None:
        self.disk = disk
        self.clock = clock
        self.root = root

    def environment(self) -> StorageEnvironment:
        return StorageEnvironment(self.disk, self.clock, SeededRandom(1))

    def log(self, config: LogConfig | None = None, *, clean: bool = True, name: str = "t-0", **options: int) -> Log:
        return Log.open(
            self.environment(),
            f"{self.root}/{name}",
            TopicPartition("t", 0),
            config or LogConfig(),
            clean=clean,
            **options,
        )

    def directory(self, *, sync: bool = False, max_open_files: int = 512) -> LogDirectory:
        return LogDirectory(self.disk, self.clock, SeededRandom(1), self.root, sync=sync, max_open_files=max_open_files)


@pytest.fixture
def opener(location: tuple[Disk, str], clock: VirtualClock) -> Opener:
    return Opener(location[0], clock, location[1])


@pytest.fixture
def memory_opener(clock: VirtualClock) -> Opener:
    disk = MemoryDisk(clock=clock)
    disk.make_dirs("/data")
    return Opener(disk, clock, "/data")
