"""Interface of a file system: byte ranges of files, names in folders, durability.

Paths are plain strings with `/`. Failures are `OSError` with an errno, on the real disk and on the simulated
ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview
SyncDone = Callable[[OSError | None], None]
TEMPORARY_SUFFIX = ".tmp"


class File(Protocol):
    """An open file. One writer; readers may be on other threads."""

    path: str

    def size(self) -> int:
        """Return the length in bytes, as the writer sees it."""
        ...

    def append(self, *parts: Buffer) -> int:
        """Append all parts, in one vectored call where the platform has one; return the number of bytes.

        A failed append truncates the file to its previous length, if the disk allows that. Views are of
        bytes.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite (or extend) at a position."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate (or extend with zeros) to `size`."""
        ...

    def sync(self) -> None:
        """Fsync, and block until it is done; the loop uses `Disk.sync` instead."""
        ...

    def close(self) -> None:
        """Close the descriptor, after pending syncs. Closing twice does nothing."""
        ...


class Lock(Protocol):
    """The lock of a log directory."""

    def release(self) -> None:
        """Release the lock."""
        ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Open a file for reading and, if `writable`, writing; `create` creates a missing one."""
        ...

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        ...

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder."""
        ...

    def size(self, path: str) -> int:
        """Return the length of a file."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """Return total and free bytes of the file system."""
        ...

    def modified_ms(self, path: str) -> int:
        """Return the modification time in milliseconds since 1970."""
        ...

    def set_modified_ms(self, path: str, when: int) -> None:
        """Set the modification time (a cleaned segment keeps that of its source)."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, if they do not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder atomically, replacing `new`."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a folder with its contents."""
        ...

    def sync_dir(self, path: str) -> None:
        """Fsync a folder, which makes the names in it durable."""
        ...

    def sync_tree(self, path: str) -> None:
        """Make all files and names below a folder durable, in one system call where the platform has one."""
        ...

    def sync(self, files: Sequence[File], done: SyncDone) -> None:
        """Fsync files without blocking; `done(error)` is called on the loop, in the order of the calls.

        Calls during an fsync are combined into the next one (group commit).
        """
        ...

    def lock(self, path: str) -> Lock:
        """Lock the lock file of a log directory against other processes and within this one.

        `BlockingIOError` if it is held.
        """
        ...

    def close(self) -> None:
        """Finish pending syncs and release resources."""
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
