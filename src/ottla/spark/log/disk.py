"""Where a log directory lies: on this machine, or behind a URL that fsspec knows (s3://, gs://, abfs://, hdfs://, ...).

Only reads. Credentials and endpoints of remote stores are fsspec's affair: its configuration files and environment
variables hold for the driver and for each executor.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ottla.spark.options import OptionError
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from ottla.world.disk import Disk

_REMOTE_FILE = 0  # stands for an inode: a store does not say whether a name holds another file by now


def plain_path(given: str) -> str:
    """A path as it was given, without the prefix of local files and slashes at the end."""
    path = given.strip()
    if path.startswith("file:"):
        path = path.removeprefix("file:")
        path = path[2:] if path.startswith("//") else path
    return path.rstrip("/") or path


def disk_of(path: str) -> Disk:
    """The disk that has a path."""
    protocol, separator, _ = path.partition("://")
    return cast("Disk", _remote(protocol)) if separator else _local()


def identity(path: str) -> int:
    """What changes when a name stands for another file; raises FileNotFoundError."""
    return _REMOTE_FILE if "://" in path else os.stat(path).st_ino


@lru_cache(maxsize=1)
def _local() -> RealDisk:
    return RealDisk()


@lru_cache(maxsize=8)
def _remote(protocol: str) -> RemoteDisk:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise OptionError(f"{protocol}:// paths are read through fsspec, on all machines: pip install fsspec") from None
    try:
        return RemoteDisk(fsspec.filesystem(protocol))
    except (ImportError, ValueError, OSError) as error:
        why = str(error).strip().partition("\n")[0]
        raise OptionError(f"fsspec cannot read {protocol}:// paths here: {why}") from error


class RemoteFile:
    """A file of a store, read by ranges."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def size(self) -> int:
        """Its length."""
        return int(self._file.seek(0, os.SEEK_END))

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only where the file ends."""
        self._file.seek(position)
        return bytes(self._file.read(length))

    def close(self) -> None:
        """Let go of it."""
        self._file.close()


class RemoteDisk:
    """What reading needs of a disk, of one of fsspec's file systems."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> RemoteFile:
        """Open for reading; big reads are made as they are asked for, with nothing read ahead."""
        assert not create
        assert not writable
        return RemoteFile(self._system.open(path, "rb", cache_type="none"))

    def read(self, path: str) -> bytes:
        """A whole file."""
        return bytes(self._system.cat_file(path))

    def exists(self, path: str) -> bool:
        """Whether a file or folder has that name."""
        return bool(self._system.exists(path))

    def is_dir(self, path: str) -> bool:
        """Whether it is a folder."""
        return bool(self._system.isdir(path))

    def size(self, path: str) -> int:
        """Length of a file by name."""
        return int(self._system.size(path))

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; asked anew each time, because somebody may be writing."""
        self._system.invalidate_cache()
        found = self._system.ls(path, detail=False)
        return sorted({str(each).rstrip("/").rpartition("/")[2] for each in found})
