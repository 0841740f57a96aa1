"""The state of a transactional id and its transitions (Kafka's TransactionMetadata).

Every change is prepared as a `Transition` by a function of this module, without side effects. The shard replays it when
its record is in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from ottla.transactions.states import FINISHED, PREPARED, VALID_PREVIOUS_STATES, TransactionState, TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.storage.names import TopicPartition

MAX_EPOCH = 0x7FFF
EXHAUSTED_EPOCH = MAX_EPOCH - 1
"""The last epoch that a producer may use; MAX_EPOCH is used only to fence."""
NEVER_TIMES_OUT = 0x7FFFFFFF
"""The timeout of a transaction with two-phase commit, which an external coordinator ends (KIP-939)."""

Partitions = dict["TopicPartition", None]
"""A set in insertion order; never changed in place."""


class IllegalTransition(AssertionError):  # noqa: N818 - named like Kafka's IllegalStateException
    """A transition that the state machine forbids: a bug, or a record with values that no coordinator writes."""


class TransactionRecord(NamedTuple):
    """The contents of a record of `__transaction_state`."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: Partitions
    start_timestamp: int
    last_update_timestamp: int
    client_transaction_version: TransactionVersion


class Transition(NamedTuple):
    """A record to append, and the producer's last epoch, which is kept in memory only (Kafka's TxnTransitMetadata)."""

    record: TransactionRecord
    last_producer_epoch: int


@dataclass(slots=True, eq=False)
class Transaction:
    """A transactional id. Only replay changes `record`; the other fields are not persisted."""

    transactional_id: str
    record: TransactionRecord
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    pending_state: TransactionState | None = None
    """The state of the transition whose record is being written."""
    fence_epoch: int | None = None
    """An epoch that fences the producer before its record is durable; kept if writing the record fails."""

    @property
    def state(self) -> TransactionState:
        """The state of the last record."""
        return self.record.state

    @property
    def producer_id(self) -> int:
        """The current producer id."""
        return self.record.producer_id

    @property
    def producer_epoch(self) -> int:
        """The current epoch; a fencing epoch counts at once."""
        return self.record.producer_epoch if self.fence_epoch is None else self.fence_epoch

    @property
    def epoch_exhausted(self) -> bool:
        """Whether the next epoch needs a new producer id."""
        return is_epoch_exhausted(self.producer_epoch)


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Return whether a producer with this epoch cannot be bumped any further."""
    return producer_epoch >= EXHAUSTED_EPOCH


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the state of a new transactional id; its first transition gives it epoch 0."""
    record = TransactionRecord(
        producer_id=producer_id,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions={},
        start_timestamp=NO_TIMESTAMP,
        last_update_timestamp=now_ms,
        client_transaction_version=TransactionVersion.TV_0,
    )
    return Transaction(transactional_id, record)


def fence_producer_epoch(transaction: Transaction) -> int:
    """Return the epoch that fences the current producer before its transaction is aborted."""
    _check_state_change(transaction, TransactionState.PREPARE_EPOCH_FENCE)
    epoch = transaction.producer_epoch
    # A fence whose record failed has already bumped the epoch; repeated bumps on a bad disk would exhaust it.
    return epoch if transaction.fence_epoch is not None or epoch == MAX_EPOCH else epoch + 1


def increment_producer_epoch(
    transaction: Transaction, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> Transition:
    """Return an epoch bump for InitProducerId; a producer that names its epoch must have the current or last one."""
    epoch = transaction.producer_epoch
    if is_epoch_exhausted(epoch):
        raise IllegalTransition(f"the epochs of producer id {transaction.producer_id} are exhausted")
    if expected_epoch is None:
        new_epoch, last_epoch = epoch + 1, NO_PRODUCER_EPOCH
    elif epoch == NO_PRODUCER_EPOCH or expected_epoch == epoch:
        new_epoch, last_epoch = epoch + 1, epoch
    elif expected_epoch == transaction.last_producer_epoch:
        # The epoch was bumped before, but the producer did not receive the response.
        new_epoch, last_epoch = epoch, transaction.last_producer_epoch
    else:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED,
            f"Producer epoch {expected_epoch} is neither the current one, {epoch}, nor the one before it, "
            f"{transaction.last_producer_epoch}.",
        )
    return _initialized(transaction, transaction.producer_id, new_epoch, last_epoch, timeout_ms, now_ms)


def rotate_producer_id(
    transaction: Transaction, new_producer_id: int, timeout_ms: int, now_ms: int, *, remember_last_epoch: bool
) -> Transition:
    """Return a transition to a new producer id, because the epochs of the old one are exhausted."""
    last_epoch = transaction.producer_epoch if remember_last_epoch else NO_PRODUCER_EPOCH
    return _initialized(transaction, new_producer_id, 0, last_epoch, timeout_ms, now_ms)


def _initialized(
    transaction: Transaction, producer_id: int, producer_epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transition:
    record = transaction.record._replace(
        producer_id=producer_id,
        previous_producer_id=transaction.producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions={},
        start_timestamp=NO_TIMESTAMP,
        last_update_timestamp=now_ms,
    )
    return _transition(transaction, record, last_epoch)


def add_partitions(
    transaction: Transaction, partitions: Iterable[TopicPartition], client_version: TransactionVersion, now_ms: int
) -> Transition:
    """Return a transition that adds partitions, and begins a transaction if none is ongoing."""
    record = transaction.record
    begins = transaction.state in FINISHED
    record = record._replace(
        previous_producer_id=record.producer_id,
        producer_epoch=transaction.producer_epoch,
        state=TransactionState.ONGOING,
        partitions={**record.partitions, **dict.fromkeys(partitions)},
        start_timestamp=now_ms if begins else record.start_timestamp,
        last_update_timestamp=now_ms,
        client_transaction_version=client_version,
    )
    return _transition(transaction, record, transaction.last_producer_epoch)


def abort_or_commit(
    transaction: Transaction,
    new_state: TransactionState,
    client_version: TransactionVersion,
    next_producer_id: int,
    now_ms: int,
    *,
    no_partition_added: bool,
) -> Transition:
    """Return a transition to PrepareCommit or PrepareAbort; with KIP-890, part 2, it bumps the epoch."""
    epoch, last_epoch = transaction.producer_epoch, transaction.last_producer_epoch
    if client_version.supports_epoch_bump:
        last_epoch = epoch
        if not (epoch == MAX_EPOCH and new_state is TransactionState.PREPARE_ABORT):
            epoch += 1
    record = transaction.record._replace(
        previous_producer_id=transaction.producer_id,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        state=new_state,
        start_timestamp=now_ms if no_partition_added else transaction.record.start_timestamp,
        last_update_timestamp=now_ms,
        client_transaction_version=client_version,
    )
    return _transition(transaction, record, last_epoch)


def complete(transaction: Transaction, now_ms: int) -> Transition:
    """Return the transition after the last marker; a producer with exhausted epochs gets its next producer id."""
    record = transaction.record
    if transaction.state is TransactionState.PREPARE_COMMIT:
        new_state = TransactionState.COMPLETE_COMMIT
    else:
        new_state = TransactionState.COMPLETE_ABORT
    producer_id, epoch = record.producer_id, transaction.producer_epoch
    if record.client_transaction_version.supports_epoch_bump and record.next_producer_id != NO_PRODUCER_ID:
        producer_id, epoch = record.next_producer_id, 0
    record = record._replace(
        producer_id=producer_id,
        previous_producer_id=record.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=epoch,
        state=new_state,
        partitions={},
        last_update_timestamp=now_ms,
    )
    return _transition(transaction, record, transaction.last_producer_epoch)


def _transition(transaction: Transaction, record: TransactionRecord, last_epoch: int) -> Transition:
    transition = Transition(record, last_epoch)
    _check(transaction, transition)
    return transition


def _check_state_change(transaction: Transaction, new_state: TransactionState) -> None:
    if transaction.pending_state is not None:
        raise IllegalTransition(
            f"{transaction.transactional_id} has a pending transition to {transaction.pending_state.label} and cannot "
            f"change to {new_state.label}"
        )
    if transaction.state not in VALID_PREVIOUS_STATES[new_state]:
        raise IllegalTransition(
            f"{transaction.transactional_id} cannot change from {transaction.state.label} to {new_state.label}"
        )


def _check(transaction: Transaction, transition: Transition) -> None:
    """Raise IllegalTransition unless the state may follow and only fields that belong to it change."""
    old, new = transaction.record, transition.record
    _check_state_change(transaction, new.state)
    if new.state is TransactionState.EMPTY:
        valid = (
            not new.partitions
            and new.start_timestamp == NO_TIMESTAMP
            and (
                new.producer_epoch - transaction.producer_epoch in (0, 1)
                or (new.producer_epoch == 0 and new.producer_id != old.producer_id)
            )
        )
    elif new.state is TransactionState.ONGOING:
        valid = (
            _same_producer(transaction, transition)
            and new.timeout_ms == old.timeout_ms
            and old.partitions.keys() <= new.partitions.keys()
        )
    elif new.state in PREPARED:
        bumps = new.client_transaction_version.supports_epoch_bump
        empty_abort = bumps and new.state is TransactionState.PREPARE_ABORT and old.state in FINISHED
        valid = (
            (_bumped_producer(transaction, transition) if bumps else _same_producer(transaction, transition))
            and new.partitions == old.partitions
            and new.timeout_ms == old.timeout_ms
            and (new.start_timestamp == old.start_timestamp or empty_abort)
        )
    else:
        rotated = new.client_transaction_version.supports_epoch_bump and new.producer_epoch == 0
        valid = (
            new.timeout_ms == old.timeout_ms
            and new.start_timestamp != NO_TIMESTAMP
            and (
                transition.last_producer_epoch == transaction.last_producer_epoch
                if rotated
                else _same_producer(transaction, transition)
            )
        )
    if not valid or new.producer_id < 0 or new.producer_epoch < 0:
        raise IllegalTransition(f"{transaction.transactional_id}: from {old} to {new}")


def _same_producer(transaction: Transaction, transition: Transition) -> bool:
    new = transition.record
    return (new.producer_id, new.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def _bumped_producer(transaction: Transaction, transition: Transition) -> bool:
    return (transition.record.producer_id, transition.last_producer_epoch) == (
        transaction.producer_id,
        transaction.producer_epoch,
    )
