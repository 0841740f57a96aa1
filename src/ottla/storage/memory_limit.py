"""The limit of logs in memory: refuses appends before a broker without data directory exceeds its memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.world.clock import Clock
    from ottla.world.disk_memory import MemoryDisk

log = logging.getLogger(__name__)

RESERVE_SHARE = 16  # one in so many bytes of the limit is left to group offsets and transactions
RECLAIM_SECONDS = 1.0


class MemoryLimit:
    """The bytes that logs in memory may take.

    At 15/16 of the limit producers get KAFKA_STORAGE_ERROR, which clients retry, and at the limit coordinators as well.
    Nothing goes offline: reads, and deletions, which make memory available again, work as before.
    """

    __slots__ = ("_clock", "_disk", "_next_reclaim", "_reclaim", "_refusing")

    def __init__(self, disk: MemoryDisk, clock: Clock, reclaim: Callable[[], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._reclaim = reclaim
        self._next_reclaim = 0.0
        self._refusing = False

    def admit(self, size: int, *, from_client: bool) -> None:
        """Raise KAFKA_STORAGE_ERROR if `size` more bytes are too much, after retention was applied."""
        limit = self._disk.limit_bytes
        if limit is None:
            return
        most = limit - limit // RESERVE_SHARE if from_client else limit
        if self._disk.used_bytes + size > most:
            self._make_room()
            if self._disk.used_bytes + size > most:
                self._refuse(limit)
        if self._refusing and from_client:
            self._refusing = False
            log.info("memory is available again: producers may write")

    def _make_room(self) -> None:
        now = self._clock.monotonic()
        if now >= self._next_reclaim:
            self._next_reclaim = now + RECLAIM_SECONDS
            self._reclaim()

    def _refuse(self, limit: int) -> None:
        used = self._disk.used_bytes
        if not self._refusing:
            self._refusing = True
            log.warning(
                "memory limit: records take %d of %d bytes, and producers get KAFKA_STORAGE_ERROR until retention or "
                "deleted records and topics make memory available (--memory-limit raises the limit, --data-dir keeps "
                "the data on disk)",
                used,
                limit,
            )
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"The memory limit is reached: {used} of {limit} bytes are in use."
        )
