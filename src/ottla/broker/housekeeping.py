"""What a broker does when nobody asks: retention, compaction, checkpoints, snapshots of the metadata, expiry.

Every task is a timer on the cluster's clock. Compaction copies in a worker and only its result is swapped in here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError
from ottla.storage import compaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.broker.cluster import Cluster
    from ottla.broker.node import Broker
    from ottla.storage.cleaner import Cleaning, SourceSegment
    from ottla.storage.compaction import Cleanable
    from ottla.storage.directory import LogDirectory
    from ottla.storage.segment import Segment
    from ottla.world.clock import Timer

log = logging.getLogger(__name__)

SNAPSHOT_CHECK_MS = 10_000
NEVER_MS = 2**62


class Housekeeping:
    """The regular work of one process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._timers: dict[str, Timer] = {}
        self._cleaning = False
        self._stopped = True

    def start(self) -> None:
        """Begin; the first run of everything comes after its interval."""
        self._stopped = False
        broker = self._cluster.controller
        self._every("retention", broker, "log.retention.check.interval.ms", self.apply_retention)
        self._every("flush", broker, "log.flush.scheduler.interval.ms", self.flush)
        self._every("checkpoint", broker, "log.flush.offset.checkpoint.interval.ms", self.checkpoint)
        self._every("producers", broker, "producer.id.expiration.check.interval.ms", self.expire_producers)
        self._every("clean", broker, "log.cleaner.backoff.ms", self.clean)
        self._schedule("snapshot", lambda: SNAPSHOT_CHECK_MS, self.snapshot_metadata)

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # The tasks; each may be called by hand, as tests and the test kit do.

    def apply_retention(self) -> None:
        """Delete segments that are too old, too many, or before the log's start."""
        for directory in self._directories():
            directory.delete_old_segments()

    def flush(self) -> None:
        """Flush logs whose time has come."""
        for directory in self._directories():
            directory.flush_dirty()

    def checkpoint(self) -> None:
        """Write the directories' offset checkpoints."""
        for directory in self._directories():
            directory.checkpoint()

    def expire_producers(self) -> None:
        """Forget producers that have been silent for long."""
        for directory in self._directories():
            directory.remove_expired_producers()

    def snapshot_metadata(self) -> None:
        """Write a snapshot of the metadata, if enough has changed since the last."""
        metadata = self._cluster.metadata
        if metadata.snapshot_due():
            metadata.write_snapshot()

    def clean(self) -> None:
        """Begin to compact the dirtiest log, unless one is being compacted."""
        if self._cleaning or not self._cluster.controller.config_bool("log.cleaner.enable"):
            return
        found = self._dirtiest()
        if found is None:
            return
        directory, cleanable = found
        cleaning = compaction.begin(cleanable, self._cluster.world.clock.now_ms(), lambda: self._stopped)
        self._cleaning = True

        def mapped(_: None, error: Exception | None) -> None:
            if error is not None:
                self._cleaned(directory, cleanable, None, error)
            else:
                self._copy(directory, cleanable, cleaning, 0)

        self._cluster.world.workers.submit(cleaning.build_map, mapped)

    # Inside.

    def _copy(self, directory: LogDirectory, cleanable: Cleanable, cleaning: Cleaning, index: int) -> None:
        """Copy what is left of one group of segments after the other, and swap each in as it is done."""
        if self._stopped:
            return
        if index == len(cleaning.groups):
            self._cleaned(directory, cleanable, cleaning.end_offset, None)
            return
        group: list[SourceSegment] = cleaning.groups[index]

        def copied(made: Segment | None, error: Exception | None) -> None:
            if made is None:
                self._cleaned(directory, cleanable, None, error)
            elif compaction.swap_in(cleanable.log, made, group):
                self._copy(directory, cleanable, cleaning, index + 1)
            else:
                self._cleaned(directory, cleanable, None, None)

        self._cluster.world.workers.submit(lambda: cleaning.clean(group), copied)

    def _cleaned(
        self, directory: LogDirectory, cleanable: Cleanable, end_offset: int | None, error: Exception | None
    ) -> None:
        self._cleaning = False
        name = cleanable.log.topic_partition
        if error is not None:
            log.error("compaction of %s failed and is not tried again until it changes: %s", name, error)
            directory.uncleanable[name] = cleanable.log.log_end_offset
        elif end_offset is not None:
            directory.cleaner_offsets[name] = end_offset
            if cleanable.log.config.delete:
                cleanable.log.delete_old_segments()

    def _dirtiest(self) -> tuple[LogDirectory, Cleanable] | None:
        now = self._cluster.world.clock.now_ms()
        best: tuple[LogDirectory, Cleanable] | None = None
        for directory in self._directories():
            for name, each in directory.logs.items():
                if not each.config.compact or directory.uncleanable.get(name) == each.log_end_offset:
                    continue
                try:
                    found = compaction.find_cleanable(each, directory.cleaner_offsets.get(name), now)
                except KafkaError as error:
                    log.warning("%s cannot be compacted: %s", name, error)
                    continue
                if found.worth_it and (best is None or found.ratio > best[1].ratio):
                    best = (directory, found)
        return best

    def _directories(self) -> Iterator[LogDirectory]:
        for node in self._cluster.nodes.values():
            for directory in node.directories:
                if directory.online:
                    yield directory

    def _every(self, name: str, broker: Broker, config: str, task: Callable[[], None]) -> None:
        self._schedule(name, lambda: broker.config_int(config), task)

    def _schedule(self, name: str, interval_ms: Callable[[], int], task: Callable[[], None]) -> None:
        def run() -> None:
            try:
                task()
            except KafkaError as error:
                log.error("%s failed: %s", name, error)
            self._schedule(name, interval_ms, task)

        wait = interval_ms()
        if not self._stopped and wait < NEVER_MS:
            self._timers[name] = self._cluster.world.clock.call_later(wait / 1000, run)
