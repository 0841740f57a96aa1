"""Resolve a path argument of `ottla log`: a log directory, a partition's folder in it, or one of its files."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from ottla.cli.terminal.output import usage
from ottla.storage.check.verify import is_partition
from ottla.storage.names import (
    CHECKPOINTS,
    LOCK_FILE,
    META_PROPERTIES,
    METADATA_TOPIC,
    PARTITION_METADATA,
    parse_numbered,
    parse_partition_dir,
)

_DIRECTORY_FILES = (META_PROPERTIES, *CHECKPOINTS, METADATA_TOPIC, f"{METADATA_TOPIC}-0")


def existing(path: str) -> str:
    """Return the absolute path of a file or folder, which must exist."""
    resolved = Path(path).expanduser()
    if not resolved.exists():
        raise usage(f"{path}: no such file or directory")
    return str(resolved.resolve())


def directory(path: str) -> str:
    """Return the absolute path of a log directory or of a partition's folder; anything else is refused."""
    full = existing(path)
    if not Path(full).is_dir():
        raise usage(f"{path} is a file; give a log directory or a partition's folder")
    if not (_is_log_directory(Path(full)) or _is_partition_folder(Path(full))):
        raise usage(
            f"{path} is not a Kafka log directory: it has neither {META_PROPERTIES} nor partitions with segment files"
        )
    return full


def _is_log_directory(folder: Path) -> bool:
    if any((folder / name).exists() for name in _DIRECTORY_FILES):
        return True
    return any(_is_partition_folder(child) for child in folder.iterdir())


def _is_partition_folder(folder: Path) -> bool:
    """Return whether a folder is named like a partition's and holds one of its files."""
    if folder.name != METADATA_TOPIC and parse_partition_dir(folder.name) is None:
        return False
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError:
        return False
    return any(name == PARTITION_METADATA or parse_numbered(name) is not None for name in names)


def root_of(path: str) -> str:
    """Return the log directory that a path is or is in."""
    folder = Path(path)
    if folder.is_file():
        folder = folder.parent
    return str(folder.parent if is_partition(str(folder)) else folder)


def lock_holder(path: str) -> int | None:
    """Return the id of the process that holds a log directory's lock, without taking it; only Linux can tell."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    try:
        with (Path(path) / LOCK_FILE).open("rb") as file:
            # struct flock: type, whence, start, length, process
            query = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            kind, _, _, _, process = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
    except (OSError, struct.error):
        return None
    return None if kind == fcntl.F_UNLCK else int(process)
