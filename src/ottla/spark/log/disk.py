"""The disk of a log directory: local, or remote through fsspec (s3://, gs://, abfs://, hdfs://, ...).

Reads only. fsspec's configuration files and environment variables, on the driver and on each executor, hold the
credentials and endpoints of remote stores.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from ottla.spark.options import OptionError
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from ottla.world.disk import Disk

_REMOTE_FILE = 0  # in place of an inode: a remote store does not tell whether a file was replaced


def plain_path(location: str) -> str:
    """Return a path without the prefix `file:` and without trailing slashes; a relative one as the driver sees it."""
    path = location.strip()
    if path.startswith("file:"):
        path = path.removeprefix("file:")
        path = path[2:] if path.startswith("//") else path
    path = path.rstrip("/") or path
    return path if not path or "://" in path else os.path.abspath(path)


def disk_of(path: str) -> Disk:
    """Return the disk of a path."""
    protocol, separator, _ = path.partition("://")
    return cast("Disk", _remote(protocol)) if separator else _local()


def identity(path: str) -> int:
    """Return a number that changes when another file takes this name; raise FileNotFoundError if there is none."""
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
    """A remote file, read by byte ranges."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def size(self) -> int:
        """Return the length in bytes."""
        return int(self._file.seek(0, os.SEEK_END))

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        self._file.seek(position)
        return bytes(self._file.read(length))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RemoteDisk:
    """The reading part of a `Disk`, on a file system of fsspec."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> RemoteFile:
        """Open a file for reading, without read-ahead."""
        assert not create
        assert not writable
        return RemoteFile(self._system.open(path, "rb", cache_type="none"))

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return bytes(self._system.cat_file(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return bool(self._system.exists(path))

    def is_dir(self, path: str) -> bool:
        """Return whether a path is a folder."""
        return bool(self._system.isdir(path))

    def size(self, path: str) -> int:
        """Return the length of a file."""
        return int(self._system.size(path))

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; not cached, because a broker may be writing."""
        self._system.invalidate_cache()
        paths = self._system.ls(path, detail=False)
        return sorted({str(listed).rstrip("/").rpartition("/")[2] for listed in paths})
