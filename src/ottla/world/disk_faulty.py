"""A simulated disk with faults: crashes during writes, lost unsynced data, ENOSPC, bit flips, failing calls.

Its bytes are in a `Platter`, which computes what a power loss leaves. Faults are injected by calls or drawn from
the seed.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ottla.world.disk_memory import Folder
from ottla.world.power_loss import Platter

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Sequence

    from ottla.world.clock import Clock
    from ottla.world.disk import Buffer, File, SyncDone
    from ottla.world.disk_memory import Contents, MemoryFile
    from ottla.world.power_loss import Assignment
    from ottla.world.random import Random

Operation = Literal["read", "write", "sync"]


class SimulatedCrash(BaseException):
    """The simulated process has crashed. A BaseException, so that no handler continues after it."""


@dataclass(slots=True)
class Fault:
    """An injected fault: the `nth` call on a matching path fails, and the `times - 1` after it (None: all)."""

    operation: Operation
    path: str
    nth: int
    times: int | None
    code: int
    calls: int = 0

    def hits(self, operation: Operation, path: str) -> bool:
        """Count a call, and return whether it fails."""
        if operation != self.operation or not fnmatch.fnmatchcase(path, self.path):
            return False
        self.calls += 1
        return self.calls >= self.nth and (self.times is None or self.calls < self.nth + self.times)


class FaultyFile:
    """A file of a faulty disk; after a crash every use raises `SimulatedCrash`."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, disk: FaultyDisk, file: MemoryFile) -> None:
        self.path = file.path
        self._disk = disk
        self._file = file

    def __repr__(self) -> str:
        return f"FaultyFile({self.path!r})"

    def size(self) -> int:
        """Return the length in bytes."""
        self._disk._check_alive()
        return self._file.size()

    def append(self, *parts: Buffer) -> int:
        """Write all parts at the end."""
        data = b"".join(parts)
        end = self._file.size()
        try:
            self._write(end, data)
        except OSError:
            if self._file.size() > end:
                self._cut(end)
            raise
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite (or extend) at a position."""
        self._file._check(True, position)
        self._write(position, bytes(data))

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes; fewer only at the end of the file."""
        self._disk._check_alive()
        self._disk._fail_if_injected("read", self.path)
        return self._file.read_at(position, length)

    def truncate(self, size: int) -> None:
        """Truncate (or extend with zeros) to `size`."""
        self._file._check(True, size)
        with self._disk._step():
            self._cut(size)

    def sync(self) -> None:
        """Fsync; after one failure every later fsync of the file fails."""
        with self._disk._step():
            self._sync(self._disk._platter.number)

    def close(self) -> None:
        """Close the handle."""
        self._file.close()

    def _write(self, position: int, data: bytes) -> None:
        self._file._check(True)
        disk = self._disk
        disk._check_alive()
        if not data:
            return
        torn = disk._count_write(len(data))
        if torn is not None:
            with contextlib.suppress(OSError):
                self._put(position, data[:torn])
            disk._die()
        try:
            disk._fail_if_injected("write", self.path)
        except OSError:
            self._put(position, data[: disk.random.below(len(data))])
            raise
        room = disk._room()
        grown = position + len(data) - self._file.size()
        if room is not None and grown > room:
            self._put(position, data[: max(len(data) - (grown - room), 0)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._put(position, data)

    def _put(self, position: int, data: bytes) -> None:
        if data:
            self._file.write_at(position, data)
            self._disk._platter.note(self._file.contents, position, data)

    def _cut(self, size: int) -> None:
        self._file.truncate(size)
        self._disk._platter.note(self._file.contents, size, None)

    def _sync(self, number: int) -> None:
        self._file.sync()
        inode = self._disk._platter.inode(self._file.contents)
        if inode.failed is not None:
            raise inode.failed
        try:
            self._disk._fail_if_injected("sync", self.path)
        except OSError as error:
            inode.fail(error, self._disk.random)
            raise
        inode.keep(number)


class FaultyDisk:
    """A simulated disk; faults are injected by calls or drawn from the seed."""

    def __init__(
        self,
        random: Random,
        clock: Clock | None = None,
        *,
        cap_bytes: int | None = None,
        sync_seconds: tuple[float, float] = (0.0, 0.0),
        _platter: Platter | None = None,
    ) -> None:
        self.random = random
        self.sync_seconds = sync_seconds
        self.writes = 0
        self.steps = 0
        self._clock = clock
        self._platter = _platter or Platter(cap_bytes, clock)
        self._alive = True
        self._closed = False
        self._faults: list[Fault] = []
        self._crash_write: int | None = None
        self._crash_step: int | None = None
        self._torn_bytes: int | None = None
        self._locked: set[str] = set()
        self._queue: list[tuple[list[FaultyFile], SyncDone]] = []
        self._syncing = False

    # Fault injection.

    def crash_after(self, writes: int, *, torn_bytes: int | None = None) -> None:
        """Crash during the n-th write from now, after `torn_bytes` of it (default: a random number)."""
        self._crash_write = self.writes + writes
        self._torn_bytes = torn_bytes

    def crash_at_step(self, steps: int) -> None:
        """Crash at the n-th change or sync from now: during a write, before or after others."""
        self._crash_step = self.steps + steps

    def crash(self, process_only: bool = False) -> None:
        """Crash the process and, unless `process_only`, lose power. `reopen` returns the disk as it is left."""
        self._alive = False
        self._queue.clear()
        if not process_only:
            self._platter.lose_power(self.random)

    def reopen(self) -> FaultyDisk:
        """Return the disk as a new process finds it after the crash: same bytes, no faults, no locks.

        Failed syncs are cleared, as the kernel does when the process that got the error ends.
        """
        self._alive = False
        for inode in self._platter.inodes.values():
            inode.failed = None
        return FaultyDisk(self.random, self._clock, sync_seconds=self.sync_seconds, _platter=self._platter)

    def fail(
        self,
        operation: Operation,
        path: str = "*",
        *,
        nth: int = 1,
        times: int | None = 1,
        code: int = errno.EIO,
    ) -> Fault:
        """Make the n-th call of an operation on a matching path fail."""
        fault = Fault(operation, path, nth, times, code)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove injected faults. Files whose sync failed stay failed."""
        self._faults.clear()
        self._crash_write = self._crash_step = self._torn_bytes = None
        self._platter.visible.cap_bytes = None

    def fill_after(self, count: int) -> None:
        """Fill the disk after that many more bytes."""
        self._platter.visible.cap_bytes = self._platter.visible.used_bytes + count

    def flip(self, path: str, byte: int, bit: int) -> None:
        """Flip one bit of a file, in the visible and in the durable copy."""
        contents = self._platter.visible._file(path)
        if not 0 <= byte < contents.length or not 0 <= bit < 8:
            raise ValueError(f"{path} has no bit {bit} of byte {byte}")
        for copy in (contents, self._platter.inode(contents).durable):
            if byte < copy.length:
                copy.write(byte, bytes([copy.read(byte, 1)[0] ^ 1 << bit]))

    def unsynced_bytes(self, path: str) -> int:
        """Return the number of written bytes that a power loss may still lose."""
        inode = self._platter.inode(self._platter.visible._file(path))
        return sum(len(change.data or b"") for change in inode.changes)

    # The Disk interface.

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> FaultyFile:
        """Open a file for reading and, if `writable`, writing; `create` creates a missing one."""
        self._check_alive()
        visible = self._platter.visible
        if create and not visible.exists(path):
            with self._step():
                file = visible.open(path, create=True, writable=writable)
                folder, name = visible._parent(path)
                self._rename([(folder, name, file.contents)])
        else:
            file = visible.open(path, writable=writable)
        return FaultyFile(self, file)

    def read(self, path: str) -> bytes:
        """Return the contents of a small file."""
        self._check_alive()
        self._fail_if_injected("read", path)
        return self._platter.visible.read(path)

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        self._check_alive()
        return self._platter.visible.exists(path)

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a folder."""
        self._check_alive()
        return self._platter.visible.is_dir(path)

    def size(self, path: str) -> int:
        """Return the length of a file."""
        self._check_alive()
        return self._platter.visible.size(path)

    def space(self, path: str) -> tuple[int, int]:
        """Return total and free bytes of the file system."""
        self._check_alive()
        return self._platter.visible.space(path)

    def modified_ms(self, path: str) -> int:
        """Return the modification time in milliseconds since 1970."""
        self._check_alive()
        return self._platter.visible.modified_ms(path)

    def set_modified_ms(self, path: str, when: int) -> None:
        """Set the modification time."""
        self._check_alive()
        self._platter.visible.set_modified_ms(path, when)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        self._check_alive()
        return self._platter.visible.list(path)

    def make_dirs(self, path: str) -> None:
        """Create a folder and its parents, if they do not exist."""
        self._check_alive()
        visible = self._platter.visible
        missing: builtins.list[str] = []
        above = path
        while not visible.exists(above):
            missing.append(above)
            above = above.rstrip("/").rpartition("/")[0]
        if not missing:
            visible.make_dirs(path)
        for step in reversed(missing):
            with self._step():
                visible.make_dirs(step)
                folder, name = visible._parent(step)
                self._rename([(folder, name, folder.entries[name])])

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder atomically, replacing `new`."""
        with self._step():
            visible = self._platter.visible
            from_folder, from_name = visible._parent(old)
            moved = from_folder.entries.get(from_name)
            visible.rename(old, new)
            to_folder, to_name = visible._parent(new)
            if (from_folder, from_name) != (to_folder, to_name):
                self._rename([(from_folder, from_name, None), (to_folder, to_name, moved)])

    def remove(self, path: str) -> None:
        """Delete a file."""
        with self._step():
            self._platter.visible.remove(path)
            folder, name = self._platter.visible._parent(path)
            self._rename([(folder, name, None)])

    def remove_tree(self, path: str) -> None:
        """Delete a folder with its contents one by one, so that a crash may leave a part."""
        path = path.rstrip("/")
        for name in self.list(path):
            below = f"{path}/{name}"
            if self.is_dir(below):
                self.remove_tree(below)
            else:
                self.remove(below)
        with self._step():
            folder, name = self._platter.visible._parent(path)
            self._platter.visible.remove_tree(path)
            if name:
                self._rename([(folder, name, None)])

    def sync_dir(self, path: str) -> None:
        """Fsync a folder, which makes all earlier name changes durable."""
        with self._step():
            folder = self._platter.visible._folder(path)
            self._fail_if_injected("sync", path)
            changes = self._platter.name_changes
            for index in range(len(changes) - 1, -1, -1):
                if any(where is folder for where, _, _ in changes[index]):
                    self._platter.keep_names(index + 1)
                    return

    def sync_tree(self, path: str) -> None:
        """Make everything below a folder durable; fail if a file below it is set to fail its sync."""
        with self._step():
            self._fail_if_injected("sync", path)
            platter = self._platter
            for below, contents in _files_below(platter.visible._folder(path), path.rstrip("/")):
                inode = platter.inode(contents)
                if inode.failed is not None:
                    raise inode.failed
                try:
                    self._fail_if_injected("sync", below)
                except OSError as error:
                    inode.fail(error, self.random)
                    raise
                inode.keep(platter.number)
            platter.keep_names(len(platter.name_changes))

    def sync(self, files: Sequence[File], done: SyncDone) -> None:
        """Fsync files. With a clock this takes `sync_seconds`, and calls in between form the next fsync."""
        self._check_alive()
        if self._closed:
            raise OSError(errno.EBADF, "the disk is closed")
        mine: builtins.list[FaultyFile] = []
        for file in files:
            if not isinstance(file, FaultyFile):
                raise TypeError(f"{file!r} is not a file of this disk")
            mine.append(file)
        if self._clock is None:
            with self._step():
                error = _first_error(mine, self._platter.number)
            done(error)
            return
        self._queue.append((mine, done))
        if not self._syncing:
            self._start_sync()

    def lock(self, path: str) -> FaultyLock:
        """Lock the lock file of a log directory; a crash releases it."""
        self._check_alive()
        name = os.path.normpath(path)
        if name in self._locked:
            raise BlockingIOError(errno.EAGAIN, "the directory is in use by this process", path)
        self.open(path, create=True).close()
        self._locked.add(name)
        return FaultyLock(self._locked, name)

    def close(self) -> None:
        """Refuse further syncs."""
        self._closed = True

    # Implementation.

    def _start_sync(self) -> None:
        assert self._clock is not None
        batch, self._queue = self._queue, []
        self._syncing = True
        low, high = self.sync_seconds
        delay = low + (high - low) * self.random.float() if high else 0.0
        self._clock.call_later(delay, self._finish_sync, batch, self._platter.number)

    def _finish_sync(self, batch: Sequence[tuple[Sequence[FaultyFile], SyncDone]], number: int) -> None:
        if not self._alive:
            return
        with self._step():
            results = [_first_error(files, number) for files, _ in batch]
        self._syncing = False
        if self._queue:
            self._start_sync()
        for (_, done), result in zip(batch, results, strict=True):
            done(result)

    def _rename(self, change: builtins.list[Assignment]) -> None:
        self._platter.name_changes.append(change)

    def _room(self) -> int | None:
        visible = self._platter.visible
        return None if visible.cap_bytes is None else max(visible.cap_bytes - visible.used_bytes, 0)

    def _fail_if_injected(self, operation: Operation, path: str) -> None:
        error: OSError | None = None
        for fault in self._faults:
            if fault.hits(operation, path) and error is None:
                error = OSError(fault.code, os.strerror(fault.code), path)
        if error is not None:
            raise error

    def _check_alive(self) -> None:
        if not self._alive:
            raise SimulatedCrash("the process that used this disk has crashed")

    def _die(self) -> None:
        self._alive = False
        self._queue.clear()
        raise SimulatedCrash(f"at write {self.writes}, step {self.steps}")

    def _count_write(self, length: int) -> int | None:
        """Count a write; return how much of it is written if the crash happens now, else None."""
        self.writes += 1
        self.steps += 1
        if self.writes == self._crash_write or self.steps == self._crash_step:
            if self._torn_bytes is not None:
                return min(self._torn_bytes, length)
            return self.random.below(length + 1)
        return None

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Count an atomic change, and crash before or after it if it is the chosen one."""
        self._check_alive()
        self.steps += 1
        now = self.steps == self._crash_step
        if now and self.random.below(2):
            self._die()
        yield
        if now:
            self._die()


class FaultyLock:
    """A lock that a simulated crash releases."""

    __slots__ = ("_locked", "_name")

    def __init__(self, locked: set[str], name: str) -> None:
        self._locked = locked
        self._name: str | None = name

    def release(self) -> None:
        """Release the lock. Releasing twice does nothing."""
        if self._name is not None:
            self._locked.discard(self._name)
            self._name = None


def _first_error(files: Sequence[FaultyFile], number: int) -> OSError | None:
    first: OSError | None = None
    for file in files:
        try:
            file._sync(number)
        except OSError as error:
            first = first or error
    return first


def _files_below(folder: Folder, path: str) -> Iterator[tuple[str, Contents]]:
    for name, entry in sorted(folder.entries.items()):
        if isinstance(entry, Folder):
            yield from _files_below(entry, f"{path}/{name}")
        else:
            yield f"{path}/{name}", entry
