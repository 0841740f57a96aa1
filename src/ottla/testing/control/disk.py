"""A disk whose directories a test can fill and whose fsyncs it can delay, on top of any other disk."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.world.clock import Clock
    from ottla.world.disk import Buffer, Disk, File, SyncDone


class FaultyFile:
    """A file of a `FaultyDisk`: writing raises ENOSPC while its directory is full."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.path = file.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, *parts: Buffer) -> int:
        """Write at the end and return the number of bytes."""
        self._disk.check_space(self.path)
        return self._file.append(*parts)

    def write_at(self, position: int, data: Buffer) -> None:
        """Write at a position."""
        self._disk.check_space(self.path)
        self._file.write_at(position, data)


class FaultyDisk:
    """A disk with full directories (`full`) and with additional seconds per fsync by directory (`sync_seconds`)."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self.full: set[str] = set()
        self.sync_seconds: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        """Open a file."""
        return FaultyFile(self, self._disk.open(path, create=create, writable=writable))

    def sync(self, files: Sequence[Any], done: SyncDone) -> None:
        """Fsync files, and call `done` after the delay of their directories."""
        seconds = max((self._sync_delay(file.path) for file in files), default=0.0)
        inner = [file._file if isinstance(file, FaultyFile) else file for file in files]
        if seconds <= 0:
            self._disk.sync(inner, done)
        else:

            def delayed(error: OSError | None) -> None:
                self._clock.call_later(seconds, done, error)

            self._disk.sync(inner, delayed)

    def check_space(self, path: str) -> None:
        """Raise ENOSPC if the path is in a full directory."""
        if self.full and any(path.startswith(f"{directory}/") for directory in self.full):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _sync_delay(self, path: str) -> float:
        delays = (seconds for directory, seconds in self.sync_seconds.items() if path.startswith(f"{directory}/"))
        return max(delays, default=0.0)
