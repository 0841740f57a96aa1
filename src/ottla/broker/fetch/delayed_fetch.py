"""Fetches that wait for min.bytes or max.wait: Kafka's DelayedFetch and its purgatory.

Only bytes that the fetch could return count: for read_committed those below the last stable offset, so that records of
an open transaction complete no fetch and its commit does. `BrokerRuntime` completes the fetches of a partition whose
leader changes or whose topic is deleted, and all of them when the cluster stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.partition import Partition
    from ottla.world.clock import Clock, Timer


class DelayedFetch:
    """One fetch that waits for more bytes; Kafka's DelayedFetch."""

    __slots__ = ("_bytes", "_min_bytes", "_on_complete", "_partitions", "_timer", "_total", "read_committed")

    def __init__(
        self,
        clock: Clock,
        partitions: dict[Partition, tuple[int, int, int]],
        *,
        min_bytes: int,
        max_wait_ms: int,
        read_committed: bool,
        on_complete: Callable[[], None],
    ) -> None:
        """Wait on `partitions`, each with its fetch offset, its maximum bytes, and the bytes readable now."""
        self._partitions = partitions
        self._bytes = {partition: readable for partition, (_, _, readable) in partitions.items()}
        self._total = sum(self._bytes.values())
        self._min_bytes = min_bytes
        self._on_complete = on_complete
        self.read_committed = read_committed
        self._timer: Timer | None = clock.call_later(max_wait_ms / 1000, self.force_complete)
        for partition in partitions:
            partition.delayed[self] = None

    def try_complete(self, partition: Partition) -> None:
        """Count the readable bytes of a changed partition again; complete if there are enough, or on an error."""
        offset, max_bytes, _ = self._partitions[partition]
        try:
            read = partition.log.read(offset, max_bytes, partition.readable_end(self.read_committed))
        except KafkaError:
            self.force_complete()
            return
        readable = len(read)
        if read.records is not None:
            read.records.release()
        self._total += readable - self._bytes[partition]
        self._bytes[partition] = readable
        if self._total >= self._min_bytes:
            self.force_complete()

    def force_complete(self) -> None:
        """Complete now with the bytes that there are."""
        if self._timer is not None:
            self.cancel()
            self._on_complete()

    def cancel(self) -> None:
        """Stop waiting without completing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for partition in self._partitions:
                partition.delayed.pop(self, None)


class FetchPurgatory:
    """Collects partitions whose high watermark advanced in this turn of the loop; tries their delayed fetches once.

    A produce to several partitions then completes a fetch once, with the records of all of them.
    """

    __slots__ = ("_clock", "_partitions", "_scheduled")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._partitions: dict[Partition, None] = {}
        self._scheduled = False

    def add(self, partition: Partition) -> None:
        """Check the delayed fetches of a partition at the end of this turn."""
        self._partitions[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._clock.call_soon(self.check_and_complete)

    def check_and_complete(self) -> None:
        """Try to complete the delayed fetches of the collected partitions."""
        self._scheduled = False
        partitions, self._partitions = self._partitions, {}
        for partition in partitions:
            for delayed in list(partition.delayed):
                delayed.try_complete(partition)
