"""What a path on the command line is: a log directory, a partition's folder in it, or one of its files."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from ottla.cli.output import usage
from ottla.storage.check.verify import is_partition
from ottla.storage.names import LOCK_FILE


def existing(path: str) -> str:
    """The path in full, which must be there."""
    found = Path(path).expanduser()
    if not found.exists():
        raise usage(f"{path}: no such file or directory")
    return str(found.resolve())


def directory(path: str) -> str:
    """The path of a folder, which must be there."""
    full = existing(path)
    if not Path(full).is_dir():
        raise usage(f"{path} is a file; give a log directory or a partition's folder")
    return full


def root_of(path: str) -> str:
    """The log directory that a path is or lies in."""
    found = Path(path)
    if found.is_file():
        found = found.parent
    return str(found.parent if is_partition(str(found)) else found)


def lock_holder(path: str) -> int | None:
    """The process that has a log directory open, without taking the lock even for a moment; Linux can tell."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    try:
        with (Path(path) / LOCK_FILE).open("rb") as file:
            # struct flock: type, whence, start, length, process
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            kind, _, _, _, process = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except (OSError, struct.error):
        return None
    return None if kind == fcntl.F_UNLCK else int(process)
