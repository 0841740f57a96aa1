"""Background tasks of a broker: retention, compaction, checkpoints, metadata snapshots, expiry.

Each task is a timer on the cluster's clock. Compaction copies in a worker; only its result is swapped in on the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.cluster.security.delegation_tokens import sweep_expired_tokens
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.storage.directory import LogDirectory
    from ottla.world.clock import Timer

log = logging.getLogger(__name__)

SNAPSHOT_CHECK_MS = 10_000
NEVER_MS = 2**62


class Housekeeping:
    """Schedules the background tasks of one process."""

    def __init__(self, runtime: BrokerRuntime) -> None:
        self._runtime = runtime
        self._timers: dict[str, Timer] = {}
        self._cleaning = False
        self._stopped = True

    def start(self) -> None:
        """Start all tasks; each first runs after its interval."""
        self._stopped = False
        broker = self._runtime.controller
        self._every("retention", broker, "log.retention.check.interval.ms", self.apply_retention)
        self._every("flush", broker, "log.flush.scheduler.interval.ms", self.flush)
        self._every("checkpoint", broker, "log.flush.offset.checkpoint.interval.ms", self.checkpoint)
        self._every("producers", broker, "producer.id.expiration.check.interval.ms", self.expire_producers)
        self._every("tokens", broker, "delegation.token.expiry.check.interval.ms", self.expire_tokens)
        self._every("clean", broker, "log.cleaner.backoff.ms", self.clean)
        self._schedule("snapshot", lambda: SNAPSHOT_CHECK_MS, self.snapshot_metadata)

    def stop(self) -> None:
        """Cancel all timers."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # Tasks. Tests and the test kit call them directly.

    def expire_tokens(self) -> None:
        """Remove expired delegation tokens."""
        runtime = self._runtime
        runtime.change(sweep_expired_tokens(runtime.image, runtime.world.clock.now_ms()))

    def apply_retention(self) -> None:
        """Delete segments beyond retention.ms and retention.bytes, and those below the log start offset."""
        for directory in self._directories():
            directory.delete_old_segments()

    def reclaim_memory(self) -> None:
        """Apply retention and delete removed segments at once: logs in memory have reached their limit."""
        for directory in self._directories():
            directory.delete_old_segments()
            directory.env.run_all_now()

    def flush(self) -> None:
        """Flush logs that are due by flush.ms."""
        for directory in self._directories():
            directory.flush_dirty()

    def checkpoint(self) -> None:
        """Write the offset checkpoints of all directories."""
        for directory in self._directories():
            directory.checkpoint()

    def expire_producers(self) -> None:
        """Remove producer ids that expired."""
        expiration_ms = self._runtime.controller.config_int("producer.id.expiration.ms")
        for directory in self._directories():
            directory.env.producer_expiration_ms = expiration_ms
            directory.remove_expired_producers()

    def snapshot_metadata(self) -> None:
        """Write a metadata snapshot if enough has changed since the last."""
        metadata = self._runtime.metadata
        if metadata.snapshot_due():
            metadata.write_snapshot()

    def clean(self) -> None:
        """Start compacting dirty logs, one directory after the other, unless a compaction is running."""
        if self._cleaning or not self._runtime.controller.config_bool("log.cleaner.enable"):
            return
        self._cleaning = True
        self._clean_next(list(self._directories()))

    # Private parts

    def _clean_next(self, directories: list[LogDirectory]) -> None:
        if self._stopped or not directories:
            self._cleaning = False
            return
        directory, *remaining = directories
        steps = directory.cleaning()

        def advance(proceed: Callable[[], Callable[[], object]]) -> None:
            try:
                step = proceed()
            except StopIteration:
                self._clean_next(remaining)
            except KafkaError as error:
                log.error("compaction in %s failed: %s", directory.path, error)
                self._clean_next(remaining)
            except Exception:  # the next round must run
                log.exception("compaction in %s failed", directory.path)
                self._clean_next(remaining)
            else:
                self._runtime.world.workers.submit(step, done)

        def done(result: object, error: Exception | None) -> None:
            if self._stopped:
                steps.close()
                self._cleaning = False
            else:
                advance(lambda: steps.throw(error) if error is not None else steps.send(result))

        advance(lambda: next(steps))

    def _directories(self) -> Iterator[LogDirectory]:
        for node in self._runtime.nodes.values():
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
            except Exception:
                log.exception("%s failed", name)
            self._schedule(name, interval_ms, task)

        wait = interval_ms()
        if not self._stopped and wait < NEVER_MS:
            self._timers[name] = self._runtime.world.clock.call_later(wait / 1000, run)
