"""The rules of InitProducerId: which producer id and epoch a transactional id gets, and when its producer is fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import NO_PRODUCER_EPOCH
from ottla.transactions.metadata import increment_producer_epoch, is_epoch_exhausted, rotate_producer_id
from ottla.transactions.states import PREPARED, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.transactions.metadata import Transaction, Transition


class ProducerIdAndEpoch(NamedTuple):
    """A producer id with its epoch."""

    producer_id: int
    producer_epoch: int


def prepare_init(
    transaction: Transaction,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Transition | None:
    """Return the transition that initializes a producer, or None if an ongoing transaction must be aborted first."""
    if transaction.pending_state is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_recover(transaction, expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        return None
    if transaction.epoch_exhausted and (expected is None or expected.producer_epoch == transaction.producer_epoch):
        return rotate_producer_id(
            transaction, new_producer_id(), timeout_ms, now_ms, remember_last_epoch=expected is not None
        )
    if transaction.epoch_exhausted:
        # Kafka has no transition for a producer that recovers with an older epoch of an exhausted producer id.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    expected_epoch = None if expected is None else expected.producer_epoch
    return increment_producer_epoch(transaction, timeout_ms, expected_epoch, now_ms)


def _may_recover(transaction: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Return whether a producer that names its id may have its epoch bumped (KIP-360); its epoch is compared later."""
    if transaction.producer_epoch == NO_PRODUCER_EPOCH:
        return True  # the transactional id expired and has just been created again
    if expected.producer_id == transaction.producer_id:
        return True
    # The producer may have been given a new id, because its epochs were exhausted, and not have received it.
    return expected.producer_id == transaction.record.previous_producer_id and is_epoch_exhausted(
        expected.producer_epoch
    )
