"""The lock on a data directory that Java's `FileChannel.tryLock` takes and respects.

It is a POSIX record lock over the whole file. It excludes other processes only, and closing any descriptor of the file
releases it, so this process records its locks before it could open a second descriptor.
"""

from __future__ import annotations

import errno
import os
import sys
import threading

_registry_guard = threading.Lock()
# (device, inode) -> process; a forked child inherits the table but not the locks
_held: dict[tuple[int, int], int] = {}


class RealLock:
    """A held lock, until `release` or the end of the process."""

    __slots__ = ("_fd", "_key", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        with _registry_guard:
            try:
                status = os.stat(path)
            except FileNotFoundError:
                pass
            else:
                if _held.get((status.st_dev, status.st_ino)) == os.getpid():
                    raise _refused(path, "this process")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
            try:
                _lock(fd)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    raise _refused(path, "another process") from None
                raise
            status = os.fstat(fd)
            self._fd = fd
            self._key = (status.st_dev, status.st_ino)
            _held[self._key] = os.getpid()

    def release(self) -> None:
        """Release the lock. Releasing twice does nothing. The file stays, as in Kafka."""
        with _registry_guard:
            if self._fd < 0:
                return
            _held.pop(self._key, None)
            fd, self._fd = self._fd, -1
            os.close(fd)


def _refused(path: str, holder: str) -> BlockingIOError:
    return BlockingIOError(errno.EAGAIN, f"the directory is in use by {holder}", path)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
