"""A bounded set of open files: any number of logs share a few hundred descriptors.

For the event loop alone: threads open their own files, or read through a handle that was pinned first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.world.disk import Disk, File

DEFAULT_LIMIT = 512


class OpenFile:
    """An open file of the set, and how many users need it open."""

    __slots__ = ("file", "pins")

    def __init__(self, file: File) -> None:
        self.file = file
        self.pins = 0


class OpenFiles:
    """Open files by path, least recently used first; a pinned file is never closed to make room."""

    __slots__ = ("_disk", "_entries", "limit")

    def __init__(self, disk: Disk, limit: int = DEFAULT_LIMIT) -> None:
        self._disk = disk
        self._entries: OrderedDict[str, OpenFile] = OrderedDict()
        self.limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the file at a path, opening it if needed; the next call may close it."""
        return self._entry(path, create).file

    def pin(self, path: str) -> OpenFile:
        """Return the file at a path, and keep it open until `unpin`."""
        entry = self._entry(path, False)
        entry.pins += 1
        return entry

    def unpin(self, path: str, entry: OpenFile) -> None:
        """Release a pinned file; close it if its path was dropped meanwhile."""
        entry.pins -= 1
        if entry.pins == 0 and self._entries.get(path) is not entry:
            entry.file.close()

    def drop(self, path: str) -> None:
        """Close a file that is about to be renamed or deleted; pinned handles stay valid until released."""
        entry = self._entries.pop(path, None)
        if entry is not None and entry.pins == 0:
            entry.file.close()

    def rename(self, old: str, new: str) -> None:
        """Keep the handle of a file that was renamed."""
        entry = self._entries.pop(old, None)
        if entry is not None:
            self.drop(new)
            self._entries[new] = entry

    def drop_under(self, folder: str) -> None:
        """Close all files of a folder."""
        prefix = folder + "/"
        for path in [path for path in self._entries if path.startswith(prefix)]:
            self.drop(path)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._entries):
            self.drop(path)

    def _entry(self, path: str, create: bool) -> OpenFile:
        entry = self._entries.get(path)
        if entry is not None:
            self._entries.move_to_end(path)
            return entry
        if len(self._entries) >= self.limit:
            self._make_room()
        entry = OpenFile(self._disk.open(path, create=create))
        self._entries[path] = entry
        return entry

    def _make_room(self) -> None:
        for path, entry in self._entries.items():
            if entry.pins == 0:
                del self._entries[path]
                entry.file.close()
                return
