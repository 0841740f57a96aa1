"""Writes the markers that end a transaction to all of its partitions, and retries until each has one.

Kafka's TransactionMarkerChannelManager. Appending the control batch is the log's part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode
from ottla.transactions.environment import NO_LEADER, TransactionMarker
from ottla.transactions.states import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.names import TopicPartition
    from ottla.transactions.environment import ClusterView, MarkerSender
    from ottla.transactions.metadata import Partitions, Transaction, Transition
    from ottla.transactions.shards import Shard
    from ottla.world.clock import Clock, Timer

RETRY_BACKOFF_S = 0.1

# Another coordinator, or a later epoch, has ended the transaction: this coordinator is fenced.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
# The partition cannot hold a marker, so the transaction does not wait for it.
_SKIPPED = (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(slots=True, eq=False)
class Completion:
    """A prepared transaction whose markers are being written."""

    shard: Shard
    transaction: Transaction
    transition: Transition
    marker: TransactionMarker
    unmarked: Partitions
    retry: Timer | None = None


class Markers:
    """The prepared transactions of a node whose markers are not all written."""

    __slots__ = ("_clock", "_cluster", "_complete", "_pending", "_sender", "_still_coordinates")

    def __init__(
        self,
        clock: Clock,
        sender: MarkerSender,
        cluster: ClusterView,
        still_coordinates: Callable[[Shard], bool],
        complete: Callable[[Completion], None],
    ) -> None:
        self._clock = clock
        self._sender = sender
        self._cluster = cluster
        self._still_coordinates = still_coordinates
        self._complete = complete
        self._pending: dict[str, Completion] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, shard: Shard, transaction: Transaction, transition: Transition) -> None:
        """Write the markers of a prepared transaction; call `complete` when all of them are written."""
        record = transaction.record
        marker = TransactionMarker(
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            coordinator_epoch=shard.coordinator_epoch,
            committed=record.state is TransactionState.PREPARE_COMMIT,
            transaction_version=record.client_transaction_version,
        )
        completion = Completion(shard, transaction, transition, marker, dict(record.partitions))
        self._pending[transaction.transactional_id] = completion
        # EndTxn is answered once the decision is durable, before the markers are written.
        completion.retry = self._clock.call_soon(self._send_if_current, completion)

    def unmarked(self, transaction: Transaction) -> Partitions:
        """Return the partitions of a transaction without a marker; all of them if it is not prepared."""
        completion = self._pending.get(transaction.transactional_id)
        if completion is None or completion.transaction is not transaction:
            return transaction.record.partitions
        return completion.unmarked

    def cancel(self, shard: Shard) -> None:
        """Cancel the markers of a shard's transactions; its next leader writes them all again."""
        for transactional_id, completion in list(self._pending.items()):
            if completion.shard is shard:
                self._remove(transactional_id, completion)

    def _remove(self, transactional_id: str, completion: Completion) -> None:
        del self._pending[transactional_id]
        if completion.retry is not None:
            completion.retry.cancel()

    def _send(self, completion: Completion) -> None:
        reachable = []
        for partition in list(completion.unmarked):
            leader = self._cluster.leader_of(partition)
            if leader is None:
                del completion.unmarked[partition]  # the topic was deleted
            elif leader != NO_LEADER:
                reachable.append(partition)
        if reachable:
            sent = self._sender.send_markers(completion.marker, reachable)
            sent.on_complete(partial(self._markers_written, completion))
        elif completion.unmarked:
            self._retry_later(completion)
        else:
            self._all_written(completion)

    def _markers_written(self, completion: Completion, results: dict[TopicPartition, ErrorCode]) -> None:
        transactional_id = completion.transaction.transactional_id
        if self._pending.get(transactional_id) is not completion:
            return
        if not self._still_coordinates(completion.shard):
            self._remove(transactional_id, completion)
            return
        for partition, error in results.items():
            if error is ErrorCode.NONE or error in _SKIPPED:
                completion.unmarked.pop(partition, None)
            elif error in _FENCED:
                # The transaction stays prepared here until its partition is loaded again.
                self._remove(transactional_id, completion)
                return
        if completion.unmarked:
            self._retry_later(completion)
        else:
            self._all_written(completion)

    def _retry_later(self, completion: Completion) -> None:
        completion.retry = self._clock.call_later(RETRY_BACKOFF_S, self._send_if_current, completion)

    def _send_if_current(self, completion: Completion) -> None:
        completion.retry = None
        if self._still_coordinates(completion.shard):
            self._send(completion)
        else:
            self._remove(completion.transaction.transactional_id, completion)

    def _all_written(self, completion: Completion) -> None:
        del self._pending[completion.transaction.transactional_id]
        self._complete(completion)
