"""Writes the markers that end a transaction to all of its partitions, however often it has to be tried.

When none is left the transaction is handed back as complete. What a marker does to a log is the log's business.
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

# Another coordinator, or a later epoch, has ended it: this one has no say any more.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
# The partition cannot hold a marker, so there is nothing to wait for.
_SKIPPED = (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)


@dataclass(slots=True, eq=False)
class Completion:
    """A decided transaction whose markers are on their way."""

    shard: Shard
    transaction: Transaction
    transition: Transition
    marker: TransactionMarker
    unmarked: Partitions
    next_try: Timer | None = None


class Markers:
    """The transactions of a node that wait for their markers."""

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
        """Write the markers of a transaction that is prepared, and complete it with this transition."""
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
        # The producer waits for the decision alone: its answer goes out before the markers are written.
        completion.next_try = self._clock.call_soon(self._try, completion)

    def unmarked(self, transaction: Transaction) -> Partitions:
        """The partitions that a prepared transaction still waits for, of any other one all."""
        completion = self._pending.get(transaction.transactional_id)
        if completion is None or completion.transaction is not transaction:
            return transaction.record.partitions
        return completion.unmarked

    def forget(self, shard: Shard) -> None:
        """Stop what was under way for a shard: whoever loads it next begins anew."""
        for transactional_id, completion in list(self._pending.items()):
            if completion.shard is shard:
                self._drop(transactional_id, completion)

    def _drop(self, transactional_id: str, completion: Completion) -> None:
        del self._pending[transactional_id]
        if completion.next_try is not None:
            completion.next_try.cancel()

    def _send(self, completion: Completion) -> None:
        reachable = []
        for partition in list(completion.unmarked):
            leader = self._cluster.leader_of(partition)
            if leader is None:
                del completion.unmarked[partition]  # deleted, and its part of the transaction with it
            elif leader != NO_LEADER:
                reachable.append(partition)
        if reachable:
            self._sender.send_markers(completion.marker, reachable).on_complete(partial(self._answered, completion))
        elif completion.unmarked:
            self._retry_later(completion)
        else:
            self._finish(completion)

    def _answered(self, completion: Completion, results: dict[TopicPartition, ErrorCode]) -> None:
        transactional_id = completion.transaction.transactional_id
        if self._pending.get(transactional_id) is not completion:
            return
        if not self._still_coordinates(completion.shard):
            self._drop(transactional_id, completion)
            return
        for partition, error in results.items():
            if error is ErrorCode.NONE or error in _SKIPPED:
                completion.unmarked.pop(partition, None)
            elif error in _FENCED:
                # Until it is loaded again this transaction stays prepared, as nobody here may end it.
                self._drop(transactional_id, completion)
                return
        if completion.unmarked:
            self._retry_later(completion)
        else:
            self._finish(completion)

    def _retry_later(self, completion: Completion) -> None:
        completion.next_try = self._clock.call_later(RETRY_BACKOFF_S, self._try, completion)

    def _try(self, completion: Completion) -> None:
        completion.next_try = None
        if self._still_coordinates(completion.shard):
            self._send(completion)
        else:
            self._drop(completion.transaction.transactional_id, completion)

    def _finish(self, completion: Completion) -> None:
        del self._pending[completion.transaction.transactional_id]
        self._complete(completion)
