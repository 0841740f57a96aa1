"""A disk that a test can fill and slow down, over any other."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.world.clock import Clock
    from ottla.world.disk import Buffer, Disk, File, SyncDone


class ControlledFile:
    """A file of a controlled disk."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, disk: ControlledDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, *parts: Buffer) -> int:
        """Write at the end, if there is room, and return how many bytes."""
        self._disk.check_room(self.path)
        return self._file.append(*parts)

    def write_at(self, position: int, data: Buffer) -> None:
        """Write at a position, if there is room."""
        self._disk.check_room(self.path)
        self._file.write_at(position, data)


class ControlledDisk:
    """A disk whose folders can be full, and whose fsync can take its time."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self.full: set[str] = set()
        self.sync_seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> ControlledFile:
        """Open a file."""
        return ControlledFile(self, self._disk.open(path, create=create, writable=writable))

    def sync(self, files: Sequence[Any], done: SyncDone) -> None:
        """Make files durable, as slowly as was asked for."""
        seconds = max((self._seconds(each.path) for each in files), default=0.0)
        bare = [each._file if isinstance(each, ControlledFile) else each for each in files]
        if seconds <= 0:
            self._disk.sync(bare, done)
        else:

            def later(error: OSError | None) -> None:
                self._clock.call_later(seconds, done, error)

            self._disk.sync(bare, later)

    def check_room(self, path: str) -> None:
        """Refuse to write to a folder that is full."""
        if self.full and any(path.startswith(f"{folder}/") for folder in self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _seconds(self, path: str) -> float:
        found = (seconds for folder, seconds in self.sync_seconds.items() if path.startswith(f"{folder}/"))
        return max(found, default=0.0)
