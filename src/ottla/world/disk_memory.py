"""A disk in memory: the default of a broker without a log directory on disk.

Behaves as `disk_real`, including errnos; everything written is durable at once.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ottla.world.clock import Clock
    from ottla.world.disk import Buffer, File, SyncDone

CHUNK = 1 << 20
DEFAULT_CAP_BYTES = 1 << 30
_FIRST_CHUNK = 256


class Contents:
    """Bytes of a file in chunks of fixed length.

    Only the first chunk grows, because most files are small, and it is replaced to grow: a reader on another
    thread keeps the old chunk.
    """

    __slots__ = ("chunks", "length", "linked", "modified_ms")

    def __init__(self) -> None:
        self.chunks: list[bytearray] = []
        self.length = 0
        self.linked = True
        self.modified_ms = 0

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from a position."""
        try:
            return self._read(position, length)
        except IndexError:  # the writer truncated the file after this thread read its length
            return self.read(position, length)

    def _read(self, position: int, length: int) -> bytes:
        end = min(position + length, self.length)
        if position >= end:
            return b""
        index, start = divmod(position, CHUNK)
        stop = start + end - position
        if stop <= CHUNK:
            return bytes(memoryview(self.chunks[index])[start:stop])
        pieces = [memoryview(self.chunks[index])[start:]]
        remaining = stop - CHUNK
        while remaining > 0:
            index += 1
            pieces.append(memoryview(self.chunks[index])[:remaining])
            remaining -= CHUNK
        return b"".join(pieces)

    def write(self, position: int, data: Buffer) -> None:
        """Write bytes at a position; fill a gap after the old end with zeros."""
        count = len(data)
        if not count:
            return
        end = position + count
        if end > self.length:
            self._reserve(end)
        index, start = divmod(position, CHUNK)
        stop = start + count
        if stop <= CHUNK:
            self.chunks[index][start:stop] = data
        else:
            view = memoryview(data)
            done = 0
            while done < count:
                step = min(CHUNK - start, count - done)
                self.chunks[index][start : start + step] = view[done : done + step]
                done += step
                index += 1
                start = 0
        if end > self.length:
            self.length = end

    def resize(self, length: int) -> None:
        """Truncate, or extend with zeros."""
        if length < self.length:
            self.length = length
            keep = -(-length // CHUNK)
            del self.chunks[keep:]
            # Zero the truncated bytes in case the file grows again; in a new chunk, as readers may hold the old one.
            if keep:
                last = self.chunks[-1]
                fresh = bytearray(len(last))
                used = length - (keep - 1) * CHUNK
                fresh[:used] = memoryview(last)[:used]
                self.chunks[-1] = fresh
        elif length > self.length:
            self._reserve(length)
            self.length = length

    def copy(self) -> Contents:
        """Return a copy."""
        twin = Contents()
        twin.chunks = [bytearray(chunk) for chunk in self.chunks]
        twin.length = self.length
        twin.modified_ms = self.modified_ms
        return twin

    def _reserve(self, end: int) -> None:
        chunks = self.chunks
        if end <= CHUNK:
            have = len(chunks[0]) if chunks else 0
            if end > have:
                grown = bytearray(min(CHUNK, max(_FIRST_CHUNK, 1 << (end - 1).bit_length())))
                if chunks:
                    grown[:have] = chunks[0]
                    chunks[0] = grown
                else:
                    chunks.append(grown)
            return
        if chunks and len(chunks[0]) < CHUNK:
            grown = bytearray(CHUNK)
            grown[: len(chunks[0])] = chunks[0]
            chunks[0] = grown
        while len(chunks) * CHUNK < end:
            chunks.append(bytearray(CHUNK))


class Folder:
    """A folder: names and their entries."""

    __slots__ = ("entries", "modified_ms")

    def __init__(self) -> None:
        self.entries: dict[str, Folder | Contents] = {}
        self.modified_ms = 0

    def files(self) -> Iterator[Contents]:
        """Yield all files below the folder."""
        for entry in self.entries.values():
            if isinstance(entry, Folder):
                yield from entry.files()
            else:
                yield entry


class MemoryFile:
    """An open file; the contents of a removed file stay readable through it."""

    __slots__ = ("_disk", "_open", "_writable", "contents", "path")

    def __init__(self, disk: MemoryDisk, path: str, contents: Contents, writable: bool) -> None:
        self.path = path
        self.contents = contents
        self._disk = disk
        self._writable = writable
        self._open = True

    def __repr__(self) -> str:
        return f"MemoryFile({self.path!r})"

    def size(self) -> int:
        """Return the length in bytes."""
        self._check(False)
        return self.contents.length

    def append(self, *parts: Buffer) -> int:
        """Append all parts, or none of them."""
        self._check(True)
        total = 0
        for part in parts:
            total += len(part)
        contents = self.contents
        self._disk._grow(contents, contents.length + total, self.path)
        for part in parts:
            contents.write(contents.length, part)
        return total

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite (or extend) at a position."""
        self._check(True, position)
        if len(data):
            self._disk._grow(self.contents, position + len(data), self.path)
            self.contents.write(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        if position < 0 or length < 0 or not self._open:
            self._check(False, min(position, length))
        return self.contents.read(position, length)

    def truncate(self, size: int) -> None:
        """Truncate (or extend with zeros) to `size`."""
        self._check(True, size)
        self._disk._grow(self.contents, size, self.path)
        self._disk._shrink(self.contents, size)
        self.contents.resize(size)

    def sync(self) -> None:
        """Do nothing: memory has no durability."""
        self._check(False)

    def close(self) -> None:
        """Close the handle."""
        self._open = False

    def _check(self, writes: bool, position: int = 0) -> None:
        if not self._open or (writes and not self._writable):
            raise _error(errno.EBADF, self.path)
        if position < 0:
            raise _error(errno.EINVAL, self.path)


class MemoryDisk:
    """A file system in memory; writes beyond `cap_bytes` fail with ENOSPC.

    With a clock, `sync` calls back on the clock's next turn, as a real disk does on the loop; without one, at
    once.
    """

    def __init__(
        self,
        cap_bytes: int | None = DEFAULT_CAP_BYTES,
        clock: Clock | None = None,
        *,
        limit_bytes: int | None = None,
    ) -> None:
        self.cap_bytes = cap_bytes
        self.limit_bytes = limit_bytes
        """Bytes at which the broker refuses appends; the disk itself takes them."""
        self.used_bytes = 0
        self.root = Folder()
        self._clock = clock
        self._locked: set[str] = set()
        self._closed = False

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> MemoryFile:
        """Open a file for reading and, if `writable`, writing; `create` creates a missing one."""
        folder, name = self._parent(path)
        entry = folder.entries.get(name) if name else folder
        if entry is None:
            if not create:
                raise _error(errno.ENOENT, path)
            entry = folder.entries[name] = Contents()
            entry.modified_ms = folder.modified_ms = self._now_ms()
        elif isinstance(entry, Folder):
            raise _error(errno.EISDIR, path)
        return MemoryFile(self, path, entry, writable)

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""
        contents = self._file(path)
        return contents.read(0, contents.length)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder."""
        return isinstance(self._find(path), Folder)

    def size(self, path: str) -> int:
        """Return the length of a file."""
        return self._file(path).length

    def space(self, path: str) -> tuple[int, int]:
        """Return total and free bytes of the file system."""
        self._entry(path)
        total = self.limit_bytes or self.cap_bytes or 2**63 - 1
        return total, max(total - self.used_bytes, 0)

    def modified_ms(self, path: str) -> int:
        """Return the modification time in milliseconds since 1970."""
        return self._entry(path).modified_ms

    def set_modified_ms(self, path: str, when: int) -> None:
        """Set the modification time."""
        self._entry(path).modified_ms = when

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(self._folder(path).entries)

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, if they do not exist."""
        folder = self.root
        names = _split(path)
        for depth, name in enumerate(names, 1):
            entry = folder.entries.get(name)
            if entry is None:
                entry = folder.entries[name] = Folder()
                entry.modified_ms = folder.modified_ms = self._now_ms()
            elif not isinstance(entry, Folder):
                raise _error(errno.EEXIST if depth == len(names) else errno.ENOTDIR, path)
            folder = entry

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder atomically, replacing `new`."""
        from_folder, from_name = self._parent(old)
        to_folder, to_name = self._parent(new)
        moved = from_folder.entries.get(from_name)
        if moved is None:
            raise _error(errno.ENOENT, old)
        target = to_folder.entries.get(to_name)
        if target is moved:
            return
        if isinstance(moved, Folder):
            if isinstance(target, Contents):
                raise _error(errno.ENOTDIR, new)
            if target is not None and target.entries:
                raise _error(errno.ENOTEMPTY, new)
            if _split(new)[: len(_split(old))] == _split(old):
                raise _error(errno.EINVAL, new)
        elif isinstance(target, Folder):
            raise _error(errno.EISDIR, new)
        if isinstance(target, Contents):
            self._unlink(target)
        del from_folder.entries[from_name]
        to_folder.entries[to_name] = moved
        from_folder.modified_ms = to_folder.modified_ms = self._now_ms()

    def remove(self, path: str) -> None:
        """Delete a file."""
        contents = self._file(path)
        folder, name = self._parent(path)
        del folder.entries[name]
        folder.modified_ms = self._now_ms()
        self._unlink(contents)

    def remove_tree(self, path: str) -> None:
        """Delete a folder with its contents."""
        folder = self._folder(path)
        for contents in folder.files():
            self._unlink(contents)
        parent, name = self._parent(path)
        if name:
            del parent.entries[name]
            parent.modified_ms = self._now_ms()
        else:
            folder.entries.clear()

    def sync_dir(self, path: str) -> None:
        """Check that the folder exists."""
        self._folder(path)

    def sync_tree(self, path: str) -> None:
        """Check that the folder exists; memory has nothing to make durable."""
        self._folder(path)

    def sync(self, files: Sequence[File], done: SyncDone) -> None:
        """Call `done` at once or on the clock's next turn."""
        if self._closed:
            raise OSError(errno.EBADF, "the disk is closed")
        failure: OSError | None = None
        for file in files:
            try:
                file.sync()
            except OSError as error:
                failure = failure or error
        if self._clock is None:
            done(failure)
        else:
            self._clock.call_soon(done, failure)

    def lock(self, path: str) -> MemoryLock:
        """Lock the lock file of a log directory."""
        name = "/".join(_split(path))
        if name in self._locked:
            raise BlockingIOError(errno.EAGAIN, "the directory is in use by this process", path)
        self.open(path, create=True).close()
        self._locked.add(name)
        return MemoryLock(self._locked, name)

    def close(self) -> None:
        """Refuse further syncs. The files stay, so that the same disk can be opened again."""
        self._closed = True

    def _now_ms(self) -> int:
        return self._clock.now_ms() if self._clock is not None else time.time_ns() // 1_000_000

    def _grow(self, contents: Contents, length: int, path: str) -> None:
        """Account for a file that grows to at least `length` bytes."""
        contents.modified_ms = self._now_ms()
        added = length - contents.length
        if added > 0 and contents.linked:
            if self.cap_bytes is not None and self.used_bytes + added > self.cap_bytes:
                raise _error(errno.ENOSPC, path)
            self.used_bytes += added

    def _shrink(self, contents: Contents, length: int) -> None:
        if length < contents.length and contents.linked:
            self.used_bytes -= contents.length - length

    def _unlink(self, contents: Contents) -> None:
        contents.linked = False
        self.used_bytes -= contents.length

    def _find(self, path: str) -> Folder | Contents | None:
        entry: Folder | Contents | None = self.root
        for name in _split(path):
            if not isinstance(entry, Folder):
                return None
            entry = entry.entries.get(name)
        return entry

    def _entry(self, path: str) -> Folder | Contents:
        folder, name = self._parent(path)
        entry = folder.entries.get(name) if name else folder
        if entry is None:
            raise _error(errno.ENOENT, path)
        return entry

    def _file(self, path: str) -> Contents:
        entry = self._entry(path)
        if isinstance(entry, Folder):
            raise _error(errno.EISDIR, path)
        return entry

    def _folder(self, path: str) -> Folder:
        entry = self._entry(path)
        if not isinstance(entry, Folder):
            raise _error(errno.ENOTDIR, path)
        return entry

    def _parent(self, path: str) -> tuple[Folder, str]:
        """Return the parent folder of a path and its last part (empty for the root)."""
        names = _split(path)
        folder = self.root
        for name in names[:-1]:
            entry = folder.entries.get(name)
            if entry is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(entry, Folder):
                raise _error(errno.ENOTDIR, path)
            folder = entry
        return folder, names[-1] if names else ""


class MemoryLock:
    """A lock within this process, which alone can see the disk."""

    __slots__ = ("_locked", "_name")

    def __init__(self, locked: set[str], name: str) -> None:
        self._locked = locked
        self._name: str | None = name

    def release(self) -> None:
        """Release the lock. Releasing twice does nothing."""
        if self._name is not None:
            self._locked.discard(self._name)
            self._name = None


def _split(path: str) -> list[str]:
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if names:
                names.pop()
        elif name and name != ".":
            names.append(name)
    return names


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
