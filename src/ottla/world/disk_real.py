"""The real file system behind the interface of `disk`.

Responsible for complete writes, group commit and the lock that Java respects; not for the number of open
files, which `storage` bounds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import threading
from typing import TYPE_CHECKING

from ottla.world.lock_real import RealLock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from ottla.world.disk import Buffer, File, SyncDone

_MAX_PARTS = 1024  # IOV_MAX on Linux and macOS
_UNCHECKED_READ = 1 << 16
_FOLDERS_CAN_SYNC = sys.platform != "win32"


class RealFile:
    """A file descriptor. Every call has a position, so that readers on other threads do not interfere."""

    __slots__ = ("_closing", "_disk", "_failed", "_fd", "_pins", "path")

    def __init__(self, disk: RealDisk, path: str, fd: int) -> None:
        self.path = path
        self._disk = disk
        self._fd = fd
        self._pins = 0
        self._closing = False
        self._failed: OSError | None = None

    def __repr__(self) -> str:
        return f"RealFile({self.path!r})"

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def size(self) -> int:
        """Return the length from the descriptor, because another handle may have written."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def append(self, *parts: Buffer) -> int:
        """Append all parts; if that fails, truncate the file to its previous length, if possible."""
        fd = self._fd
        end = os.lseek(fd, 0, os.SEEK_END)
        try:
            return _write_all(fd, parts, end)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, end)
            raise

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite (or extend) at a position."""
        if position < 0:  # pwritev uses the descriptor's position for -1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        _write_all(self._fd, (data,), position)

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        fd = self._fd
        if length > _UNCHECKED_READ:  # pread allocates `length` bytes, so limit it to the file's size
            length = max(min(length, os.lseek(fd, 0, os.SEEK_END) - position), 0)
        data = _pread(fd, length, position)
        missing = length - len(data)
        if missing == 0 or not data:
            return data
        pieces = [data]
        while missing and data:
            data = _pread(fd, missing, position + length - missing)
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def truncate(self, size: int) -> None:
        """Truncate (or extend with zeros) to `size`."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Fsync; after one failure every later fsync fails.

        After a failed fsync the kernel may drop the pages, and the next fsync succeeds although data was
        lost.
        """
        if self._failed is not None:
            raise self._failed
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        try:
            _fsync(self._fd)
        except OSError as error:
            self._failed = error
            self._disk._remember_failure(self._fd, error)
            raise

    def close(self) -> None:
        """Close the descriptor, after pending syncs."""
        if self._fd < 0:
            return
        with self._disk._wake:
            if self._pins:
                self._closing = True
            else:
                self._close_now()

    def _close_now(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The real file system. With a loop `sync` runs in a flusher thread, without one synchronously."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._wake = threading.Condition()
        self._queue: list[tuple[list[RealFile], SyncDone]] = []
        self._flusher: threading.Thread | None = None
        self._closed = False
        self._failed: dict[tuple[int, int], OSError] = {}

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        """Open a file for reading and, if `writable`, writing; `create` creates a missing one."""
        flags = os.O_RDWR if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        fd = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0), 0o644)
        file = RealFile(self, path, fd)
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            file.close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        file._failed = self._failed.get((status.st_dev, status.st_ino))
        return file

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            data = os.read(
                fd, _UNCHECKED_READ
            )  # without the overhead of `open`: a start reads thousands of small files
            if len(data) < _UNCHECKED_READ:
                return data
            pieces = [data]
            while data := os.read(fd, max(os.fstat(fd).st_size, _UNCHECKED_READ)):
                pieces.append(data)
            return b"".join(pieces)
        except IsADirectoryError as error:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from error
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """Return the length of a file."""
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return status.st_size

    def space(self, path: str) -> tuple[int, int]:
        """Return total and free bytes of the file system."""
        usage = shutil.disk_usage(path)
        return usage.total, usage.free

    def modified_ms(self, path: str) -> int:
        """Return the modification time in milliseconds since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, when: int) -> None:
        """Set the modification time."""
        os.utime(path, ns=(when * 1_000_000, when * 1_000_000))

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, if they do not exist."""
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder atomically, replacing `new`."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Delete a file."""
        # the errno of unlink for a folder differs between platforms
        if os.path.isdir(path) and not os.path.islink(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Delete a folder with its contents."""
        shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Fsync a folder, which makes the names in it durable."""
        if not _FOLDERS_CAN_SYNC:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_tree(self, path: str) -> None:
        """Make everything below a folder durable: one `syncfs` on Linux, an fsync for each file elsewhere."""
        syncfs = _find_syncfs()
        if syncfs is not None:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syncfs(fd)
            finally:
                os.close(fd)
            return
        for folder, _, names in os.walk(path):
            for name in names:
                file = self.open(f"{folder}/{name}")
                try:
                    file.sync()
                finally:
                    file.close()
            self.sync_dir(folder)

    def sync(self, files: Sequence[File], done: SyncDone) -> None:
        """Fsync files without blocking; `done(error)` is called on the loop, in the order of the calls."""
        mine: list[RealFile] = []
        for file in files:
            if not isinstance(file, RealFile):
                raise TypeError(f"{file!r} is not a file of this disk")
            mine.append(file)
        if self._loop is None:
            results = _sync_each([mine])
            done(results[0])
            return
        with self._wake:
            if self._closed:
                raise OSError(errno.EBADF, "the disk is closed")
            for real in mine:
                real._pins += 1
            self._queue.append((mine, done))
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush, name="ottla-flusher", daemon=True)
                self._flusher.start()
            else:
                self._wake.notify()

    def lock(self, path: str) -> RealLock:
        """Lock the lock file of a log directory against other processes and within this one."""
        return RealLock(path)

    def close(self) -> None:
        """Finish pending syncs and end the flusher thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.join()

    def _flush(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                batch, self._queue = self._queue, []
            if not batch:
                return
            results = _sync_each([files for files, _ in batch])
            with self._wake:
                for files, _ in batch:
                    for file in files:
                        file._pins -= 1
                        if file._closing and not file._pins:
                            file._close_now()
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._deliver, [done for _, done in batch], results)

    def _deliver(self, dones: Sequence[SyncDone], results: Sequence[OSError | None]) -> None:
        assert self._loop is not None
        for done, result in zip(dones, results, strict=True):
            try:
                done(result)
            except Exception as error:
                self._loop.call_exception_handler({"message": "after a sync", "exception": error})

    def _remember_failure(self, fd: int, error: OSError) -> None:
        """Remember a failed fsync by inode, so that other handles of the file fail as well."""
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            self._failed[status.st_dev, status.st_ino] = error


def _sync_each(requests: list[list[RealFile]]) -> list[OSError | None]:
    """Fsync each file once; return for each request the first error among its files."""
    outcome: dict[RealFile, OSError | None] = {}
    for files in requests:
        for file in files:
            if file not in outcome:
                try:
                    file.sync()
                    outcome[file] = None
                except OSError as error:
                    outcome[file] = error
    return [next((outcome[f] for f in files if outcome[f] is not None), None) for files in requests]


def _write_all(fd: int, parts: Sequence[Buffer], position: int) -> int:
    """Write all parts at a position, repeating short writes; return the number of bytes."""
    total = 0
    for part in parts:
        total += len(part)
    written = _pwritev(fd, parts[:_MAX_PARTS], position)
    if written == total:
        return total
    remaining = total
    rest = [memoryview(part) for part in parts]
    while written < remaining:
        position += written
        remaining -= written
        rest = _without(rest, written)
        written = _pwritev(fd, rest[:_MAX_PARTS], position)
    return total


def _without(parts: list[memoryview], count: int) -> list[memoryview]:
    """Return the parts without their first `count` bytes."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [part[count:], *parts[index + 1 :]]
        count -= len(part)
    return []


if sys.platform != "win32":
    import fcntl

    def _pread(fd: int, length: int, position: int) -> bytes:
        return os.pread(fd, length, position)

    def _pwritev(fd: int, parts: Sequence[Buffer], position: int) -> int:
        return os.pwritev(fd, parts, position)

    if sys.platform == "darwin":

        def _fsync(fd: int) -> None:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync on macOS stops at the drive's cache
    else:

        def _fsync(fd: int) -> None:
            os.fdatasync(fd)  # fdatasync covers the data and the length

else:
    # Windows lacks positioned reads and writes: the position belongs to the descriptor, so one call at a
    # time.
    _seeking = threading.Lock()

    def _pread(fd: int, length: int, position: int) -> bytes:
        with _seeking:
            os.lseek(fd, position, os.SEEK_SET)
            return os.read(fd, length)

    def _pwritev(fd: int, parts: Sequence[Buffer], position: int) -> int:
        with _seeking:
            os.lseek(fd, position, os.SEEK_SET)
            return os.write(fd, b"".join(parts))

    def _fsync(fd: int) -> None:
        os.fsync(fd)


def _find_syncfs() -> Callable[[int], None] | None:
    """Return `syncfs(2)` from the C library, which Python does not wrap, or None where there is none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    def syncfs(fd: int) -> None:
        if function(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    return syncfs
