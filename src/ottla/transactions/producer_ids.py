"""Generates producer ids from allocated blocks (Kafka's RPCProducerIdManager); prefetches the next block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.transactions.environment import ProducerIdBlock, ProducerIdSource
    from ottla.world.clock import Clock

RETRY_BACKOFF_S = 0.05
PREFETCH_THRESHOLD = 0.9


class ProducerIds:
    """Generates the producer ids of one node; no id is generated twice."""

    __slots__ = ("_allocating", "_block", "_clock", "_end", "_next", "_prefetched", "_retry_at", "_source")

    def __init__(self, source: ProducerIdSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._next = 0
        self._end = 0
        self._block = 0
        self._prefetched: ProducerIdBlock | None = None
        self._allocating = False
        self._retry_at = 0.0

    def generate(self) -> int:
        """Return a new producer id; raise COORDINATOR_LOAD_IN_PROGRESS while the next block is being allocated."""
        if self._next == self._end:
            self._allocate()
            if self._prefetched is None:
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Producer ID block is full. Waiting for next block"
                )
            self._next = self._block = self._prefetched.first
            self._end = self._next + self._prefetched.size
            self._prefetched = None
        producer_id = self._next
        self._next += 1
        if producer_id == self._block + int((self._end - self._block) * PREFETCH_THRESHOLD):
            self._allocate()
        return producer_id

    def _allocate(self) -> None:
        if self._prefetched is None and not self._allocating and self._clock.monotonic() >= self._retry_at:
            self._allocating = True
            self._source.allocate_producer_ids().on_complete(self._allocated)

    def _allocated(self, block: ProducerIdBlock | None) -> None:
        self._allocating = False
        # Blocks only increase; one below the current block would generate the same id twice.
        if block is None or block.size <= 0 or block.first < self._end:
            self._retry_at = self._clock.monotonic() + RETRY_BACKOFF_S
        else:
            self._prefetched = block
