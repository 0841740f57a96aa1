"""The partitions of `__transaction_state` that this node leads (Kafka's TransactionStateManager).

Only `replay` changes a shard's transactions, at load and live.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.cluster.coordinator_errors import UnreadableRecord, unreadable
from ottla.cluster.internal_topics import partition_for
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.transactions.metadata import Transaction, TransactionRecord
from ottla.transactions.records import decode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ottla.records.iterate import Record

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Shard:
    """One partition of `__transaction_state`, led by this node in one leader epoch.

    Each leader epoch has its own shard, so that a write which completes after a change of leader is detected.
    """

    partition: int
    coordinator_epoch: int
    transactions: dict[str, Transaction] = field(default_factory=dict)

    def replay(self, transactional_id: str, record: TransactionRecord | None) -> None:
        """Apply a record to its transactional id; None is a tombstone and removes the id."""
        if record is None:
            self.transactions.pop(transactional_id, None)
            return
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            self.transactions[transactional_id] = Transaction(transactional_id, record)
        else:
            transaction.record = record


@dataclass(slots=True)
class LoadedShard:
    """A shard with the offsets of its ids' last records, and the records that could not be replayed."""

    shard: Shard
    offsets: dict[str, int] = field(default_factory=dict)
    unreadable: list[UnreadableRecord] = field(default_factory=list)

    def replay(self, record: Record | UnreadableRecord) -> None:
        """Replay a record, or note why it cannot be replayed."""
        if isinstance(record, UnreadableRecord):
            self.unreadable.append(record)
            return
        try:
            decoded = decode_record(record.key, record.value)
            if decoded is None:
                log.warning(
                    "__transaction_state-%d: ignoring the record at offset %d, whose type is unknown",
                    self.shard.partition,
                    record.offset,
                )
            else:
                self.shard.replay(*decoded)
                self.offsets[decoded[0]] = record.offset
        except Exception as error:  # whatever a record does, it fails this shard and nothing else
            self.unreadable.append(unreadable(record.offset, error))


class Shards:
    """The loaded and loading shards of a node."""

    __slots__ = ("_loaded", "_loading", "_partition_count")

    def __init__(self, partition_count: Callable[[], int]) -> None:
        self._partition_count = partition_count
        self._loaded: dict[int, Shard] = {}
        self._loading: dict[int, int] = {}

    @property
    def loading(self) -> bool:
        """Whether any partition is still being loaded."""
        return bool(self._loading)

    def __iter__(self) -> Iterator[Shard]:
        return iter(list(self._loaded.values()))

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition that a transactional id belongs to."""
        return partition_for(transactional_id, self._partition_count())

    def find(self, transactional_id: str) -> tuple[Shard, Transaction | None]:
        """Return an id's shard and its state, if any; raise if this node does not coordinate the id (yet)."""
        partition = self.partition_for(transactional_id)
        if partition in self._loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        shard = self._loaded.get(partition)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard, shard.transactions.get(transactional_id)

    def check_current(self, shard: Shard) -> ErrorCode:
        """Return NONE if a shard is the loaded one of its partition, else the error for its clients."""
        if shard.partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE if self._loaded.get(shard.partition) is shard else ErrorCode.NOT_COORDINATOR

    def begin_load(self, partition: int, coordinator_epoch: int) -> None:
        """Mark a partition as loading in a leader epoch; it is no longer served."""
        self._loaded.pop(partition, None)
        self._loading[partition] = coordinator_epoch

    def may_load(self, partition: int, coordinator_epoch: int) -> bool:
        """Return False if this node began to lead the partition in another epoch in the meantime."""
        return self._loading.get(partition, coordinator_epoch) == coordinator_epoch

    def activate(self, shard: Shard) -> None:
        """Serve the transactional ids of a loaded shard."""
        self._loading.pop(shard.partition, None)
        self._loaded[shard.partition] = shard

    def unload(self, partition: int) -> Shard | None:
        """Remove a partition and return its shard, if it was loaded."""
        self._loading.pop(partition, None)
        return self._loaded.pop(partition, None)
