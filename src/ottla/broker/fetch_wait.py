"""Fetches that wait for bytes: which partitions they look at, how many bytes those have, and when they are done.

Only bytes that the fetch could return count: for read_committed those below the last stable offset, so that an open
transaction wakes nobody and its commit wakes all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.partition import Partition
    from ottla.world.clock import Clock, Timer


class FetchWait:
    """One fetch that did not find enough."""

    __slots__ = ("_bytes", "_min_bytes", "_partitions", "_ready", "_timer", "_total", "read_committed")

    def __init__(
        self,
        clock: Clock,
        partitions: dict[Partition, tuple[int, int, int]],
        *,
        min_bytes: int,
        max_wait_ms: int,
        read_committed: bool,
        ready: Callable[[], None],
    ) -> None:
        """Wait for `partitions` (each with offset, most bytes, and the bytes that are readable already)."""
        self._partitions = partitions
        self._bytes = {partition: readable for partition, (_, _, readable) in partitions.items()}
        self._total = sum(self._bytes.values())
        self._min_bytes = min_bytes
        self._ready = ready
        self.read_committed = read_committed
        self._timer: Timer | None = clock.call_later(max_wait_ms / 1000, self.finish)
        for partition in partitions:
            partition.waits[self] = None

    def changed(self, partition: Partition) -> None:
        """A partition has more (or was truncated, moved or deleted): look again, only there."""
        offset, max_bytes, _ = self._partitions[partition]
        try:
            found = partition.log.read(offset, max_bytes, partition.readable_end(self.read_committed))
        except KafkaError:
            self.finish()
            return
        readable = len(found)
        if found.records is not None:
            found.records.release()
        self._total += readable - self._bytes[partition]
        self._bytes[partition] = readable
        if self._total >= self._min_bytes:
            self.finish()

    def finish(self) -> None:
        """Answer now with whatever there is."""
        if self._timer is not None:
            self.cancel()
            self._ready()

    def cancel(self) -> None:
        """Wait no more and answer nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for partition in self._partitions:
                partition.waits.pop(self, None)


class Readable:
    """Collects the partitions that got more in this turn of the loop, and wakes their fetches once at its end.

    A produce to many partitions then wakes a fetch once, with all of it.
    """

    __slots__ = ("_clock", "_partitions", "_scheduled")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._partitions: dict[Partition, None] = {}
        self._scheduled = False

    def add(self, partition: Partition) -> None:
        """A partition has more to read."""
        self._partitions[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self.wake)

    def wake(self) -> None:
        """Let every fetch that waits on those partitions look again."""
        self._scheduled = False
        partitions, self._partitions = self._partitions, {}
        for partition in partitions:
            for wait in list(partition.waits):
                wait.changed(partition)
