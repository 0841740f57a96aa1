from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.world.disk_faulty import FaultyDisk
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ottla.world.disk import Disk


@pytest.fixture(params=["real", "memory", "faulty"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    made: Disk
    if request.param == "real":
        made = RealDisk()
    elif request.param == "memory":
        made = MemoryDisk()
    else:
        made = FaultyDisk(SeededRandom(1))
    yield made
    made.close()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    """Return an existing folder on the disk under test."""
    path = tmp_path.as_posix()
    disk.make_dirs(path)
    return path
