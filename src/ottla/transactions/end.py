"""The rules of EndTxn for each state of a transaction, without and with the epoch bump of KIP-890, part 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.transactions.metadata import EXHAUSTED_EPOCH, Transaction, abort_or_commit
from ottla.transactions.states import FINISHED, PREPARED, TransactionState, TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.transactions.metadata import Transition


class EndTxn(NamedTuple):
    """A request to end a transaction; `fences` if the coordinator itself aborts it to fence its producer."""

    producer_id: int
    producer_epoch: int
    committed: bool
    client_version: TransactionVersion
    fences: bool = False

    @property
    def prepared_state(self) -> TransactionState:
        """The state that records the decision."""
        return TransactionState.PREPARE_COMMIT if self.committed else TransactionState.PREPARE_ABORT

    @property
    def complete_state(self) -> TransactionState:
        """The state once all markers are written."""
        return TransactionState.COMPLETE_COMMIT if self.committed else TransactionState.COMPLETE_ABORT


def prepare_end(
    transaction: Transaction, end: EndTxn, new_producer_id: Callable[[], int], now_ms: int
) -> Transition | None:
    """Return the transition that decides the transaction, or None if it has already ended this way."""
    if end.client_version.supports_epoch_bump:
        return _prepare_with_epoch_bump(transaction, end, new_producer_id, now_ms)
    return _prepare_without_epoch_bump(transaction, end, now_ms)


def _prepare_without_epoch_bump(transaction: Transaction, end: EndTxn, now_ms: int) -> Transition | None:
    if transaction.producer_id != end.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    epoch = transaction.producer_epoch
    if end.producer_epoch < epoch or (not end.fences and end.producer_epoch != epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if transaction.pending_state is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        if end.fences:
            transaction.fence_epoch = end.producer_epoch
            transaction.last_producer_epoch = NO_PRODUCER_EPOCH
        return abort_or_commit(
            transaction, end.prepared_state, TransactionVersion.TV_0, NO_PRODUCER_ID, now_ms, no_partition_added=False
        )
    if transaction.state is end.complete_state:
        return None
    if transaction.state is end.prepared_state:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    raise _wrong_state(transaction, end)


def _prepare_with_epoch_bump(
    transaction: Transaction, end: EndTxn, new_producer_id: Callable[[], int], now_ms: int
) -> Transition | None:
    epoch, state = transaction.producer_epoch, transaction.state
    # A producer that did not receive the response retries with the epoch that it ended the transaction with.
    retry_on_epoch_bump = not end.fences and epoch == end.producer_epoch + 1
    retry_on_overflow = (
        not end.fences
        and transaction.record.previous_producer_id == end.producer_id
        and end.producer_epoch == EXHAUSTED_EPOCH
        and epoch == 0
    )
    is_retry = retry_on_epoch_bump or retry_on_overflow
    if end.fences:
        valid_epoch = end.producer_epoch >= epoch
    elif state in PREPARED:
        valid_epoch = retry_on_epoch_bump
    elif state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        valid_epoch = is_retry or end.producer_epoch == epoch
    else:
        valid_epoch = end.producer_epoch == epoch

    if transaction.pending_state is not None:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.producer_id != end.producer_id and not retry_on_overflow:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not valid_epoch:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if state in PREPARED:
        if state is end.prepared_state:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        raise _wrong_state(transaction, end)
    if state in FINISHED:
        if is_retry and state is end.complete_state:
            return None
        # No partition was added: nothing can be committed, but an abort bumps the epoch and fences late requests.
        if end.committed or (is_retry and state is not TransactionState.EMPTY):
            raise _wrong_state(transaction, end)
    next_producer_id = new_producer_id() if transaction.epoch_exhausted else NO_PRODUCER_ID
    return abort_or_commit(
        transaction,
        end.prepared_state,
        end.client_version,
        next_producer_id,
        now_ms,
        no_partition_added=state in FINISHED,
    )


def _wrong_state(transaction: Transaction, end: EndTxn) -> KafkaError:
    action = "commit" if end.committed else "abort"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE,
        f"Transactional id {transaction.transactional_id} is {transaction.state.label} and cannot {action}.",
    )
