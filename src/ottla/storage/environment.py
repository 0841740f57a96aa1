"""What the logs of one log directory share: world, open files, loaded indexes, and whether it is online.

The logs themselves are `directory`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.open_files import DEFAULT_LIMIT, OpenFiles
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.segment import Segment
    from ottla.storage.memory_limit import MemoryLimit
    from ottla.world.clock import Clock, Timer
    from ottla.world.disk import Buffer, Disk, File
    from ottla.world.random import Random

DEFAULT_INDEX_BYTES = 64 << 20
DEFAULT_PRODUCER_EXPIRATION_MS = 24 * 60 * 60 * 1000


class LoadedIndexes:
    """Bounds the memory of closed segments' indexes: unloads the least recently used until they are needed again."""

    __slots__ = ("_bytes", "_costs", "limit")

    def __init__(self, limit: int = DEFAULT_INDEX_BYTES) -> None:
        self.limit = limit
        self._bytes = 0
        self._costs: OrderedDict[Segment, int] = OrderedDict()

    def loaded(self, segment: Segment, cost: int) -> None:
        """Note that a closed segment has loaded indexes of `cost` bytes; unload others beyond the limit."""
        self.forget(segment)
        self._costs[segment] = cost
        self._bytes += cost
        while self._bytes > self.limit and len(self._costs) > 1:
            oldest, freed = self._costs.popitem(last=False)
            self._bytes -= freed
            oldest.unload_indexes()

    def used(self, segment: Segment) -> None:
        """Note that the indexes of a closed segment were used."""
        if segment in self._costs:
            self._costs.move_to_end(segment)

    def forget(self, segment: Segment) -> None:
        """Stop counting a segment that was deleted or takes appends again."""
        self._bytes -= self._costs.pop(segment, 0)


class StorageEnvironment:
    """The world of the logs of one directory."""

    __slots__ = (
        "_timers",
        "clock",
        "disk",
        "failure",
        "files",
        "immediate",
        "indexes",
        "memory",
        "on_failure",
        "on_problem",
        "producer_expiration_ms",
        "random",
        "sync",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        random: Random,
        *,
        sync: bool = False,
        max_open_files: int = DEFAULT_LIMIT,
        on_failure: Callable[[OSError], None] | None = None,
    ) -> None:
        self.disk = disk
        self.sync = sync
        self.clock = clock
        self.random = random
        self.files = OpenFiles(disk, max_open_files)
        self.indexes = LoadedIndexes()
        self.on_failure = on_failure
        self.on_problem: Callable[[str], None] | None = None
        self.failure: OSError | None = None
        self.immediate = False
        self.memory: MemoryLimit | None = None
        self.producer_expiration_ms = DEFAULT_PRODUCER_EXPIRATION_MS
        self._timers: dict[Timer, Callable[[], None]] = {}

    def check(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the directory is offline."""
        if self.failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory is offline: {self.failure}.")

    def fail(self, error: OSError) -> KafkaError:
        """Take the directory offline until restart; return the error to answer."""
        if self.failure is None:
            self.failure = error
            if self.on_failure is not None:
                self.on_failure(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory failed: {error}.")

    def report(self, problem: str) -> None:
        """Pass on one sentence for the operator: what was damaged, cut or rebuilt, and in which file."""
        if self.on_problem is not None:
            self.on_problem(problem)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after a delay, or when the directory is closed; at once while the directory is being loaded."""
        if self.immediate:
            action()
            return

        def run() -> None:
            del self._timers[timer]
            action()

        timer = self.clock.call_later(delay_ms / 1000, run)
        self._timers[timer] = action

    def run_all_now(self) -> None:
        """Run all deferred actions."""
        while self._timers:
            timer, action = self._timers.popitem()
            timer.cancel()
            action()

    def forget_all(self) -> None:
        """Cancel all deferred actions; the next start makes up for them."""
        while self._timers:
            self._timers.popitem()[0].cancel()

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """Replace a small file atomically; without `sync` a power loss may leave it empty, and it is rebuilt."""
        write_atomic(self.disk, path, data, sync=sync)

    def create_empty(self, path: str) -> None:
        """Create an empty file, or empty the one that is there."""
        file = self.disk.open(path, create=True)
        try:
            if file.size():
                file.truncate(0)
        finally:
            file.close()

    def remove_if_exists(self, path: str) -> bool:
        """Delete a file if it exists."""
        self.files.drop(path)
        try:
            self.disk.remove(path)
        except FileNotFoundError:
            return False
        return True

    def open_if_exists(self, path: str) -> File | None:
        """Open a file if it exists, outside the bounded set; the caller closes it."""
        try:
            return self.disk.open(path)
        except FileNotFoundError:
            return None
