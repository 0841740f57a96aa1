"""What ottla asks of a file system: byte ranges of files, names in folders, and durability.

Paths are plain strings with `/`. Failures are `OSError` with an errno, from the real disk and the simulated
ones alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
SyncDone = Callable[[OSError | None], None]
TEMPORARY_SUFFIX = ".tmp"


class File(Protocol):
    """One open file. Positions count bytes from its start. One writer; readers may be on other threads."""

    path: str

    def size(self) -> int:
        """Its length in bytes, as the writer sees it."""
        ...

    def append(self, *parts: Buffer) -> int:
        """Write all parts at the end, in one vectored call where the platform has one, and return how many bytes.

        One that fails leaves the file as long as it was, if the disk still lets it be cut. Views are of
        bytes.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite (or extend) at a position."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only where the file ends."""
        ...

    def truncate(self, size: int) -> None:
        """Cut (or extend with zeros) to `size`."""
        ...

    def sync(self) -> None:
        """Return when what was written is durable. Blocks; the loop uses `Disk.sync`."""
        ...

    def close(self) -> None:
        """Give the descriptor back, after the syncs that still need it. Closing twice is fine."""
        ...


class Lock(Protocol):
    """A held lock on a data directory."""

    def release(self) -> None:
        """Let another process have it."""
        ...


class Disk(Protocol):
    """A tree of files."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file for reading and, if `writable`, writing; `create` makes it if it is not there."""
        ...

    def read(self, path: str) -> bytes:
        """A whole (small) file."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder has that name."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether it is a folder."""
        ...

    def size(self, path: str) -> int:
        """Length of a file by name."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """How many bytes there is room for in all, and how many of them are free."""
        ...

    def modified_ms(self, path: str) -> int:
        """When it was last written, in milliseconds since 1970."""
        ...

    def set_modified_ms(self, path: str, when: int) -> None:
        """Say when it was last written (a cleaned segment keeps the time of what it was made from)."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and those above it; fine if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder over `new`, atomically."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a folder and all in it."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""
        ...

    def sync_tree(self, path: str) -> None:
        """Make all files and names below a folder durable, in one system call where the platform has one."""
        ...

    def sync(self, files: Sequence[File], done: SyncDone) -> None:
        """Make files durable without blocking; `done(error)` is called on the loop, in order of the calls.

        Calls made while an fsync is running are served together by the next one (group commit).
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file of a data directory, against other processes and in this one.

        `BlockingIOError` if it is held.
        """
        ...

    def close(self) -> None:
        """Finish the syncs that were asked for and give back what the disk itself holds."""
        ...


def write_atomic(disk: Disk, path: str, data: Buffer, *, sync: bool = True) -> None:
    """Replace a small file through a temporary file and a rename: a killed process leaves the old or the new one.

    With `sync` the file and its name are fsynced, so that a power loss leaves the old or the new one as well. Without
    it a power loss may leave the file empty: use that only for files that the next start can rebuild.
    """
    temporary = path + TEMPORARY_SUFFIX
    file = disk.open(temporary, create=True)
    try:
        try:
            if file.size():
                file.truncate(0)
            if len(data):
                file.append(data)
            if sync:
                file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    if sync:
        disk.sync_dir(path.rpartition("/")[0] or "/")
