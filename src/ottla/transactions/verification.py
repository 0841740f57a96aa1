"""Verification of transactional produce requests at a partition's leader (KIP-890), against hanging transactions.

Before the first record of a transaction is appended, the leader checks with the transaction coordinator that the
partition is part of the transaction, or has it added for newer clients (Kafka's AddPartitionsToTxnManager).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.transactions.states import TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.storage.names import TopicPartition
    from ottla.transactions.coordinator import TransactionCoordinator
    from ottla.transactions.environment import TransactionConfig
    from ottla.world.clock import Clock


class SupportedOperation(Enum):
    """What a client supports, by its version of Produce or TxnOffsetCommit."""

    DEFAULT_ERROR = 0
    """The client adds partitions itself and does not support TRANSACTION_ABORTABLE."""
    GENERIC_ERROR_SUPPORTED = 1
    """The client adds partitions itself and supports TRANSACTION_ABORTABLE."""
    ADD_PARTITION = 2
    """The leader adds partitions for the client, whose epoch is bumped with every transaction."""

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether the epoch is bumped with every transaction."""
        return self is SupportedOperation.ADD_PARTITION


def produce_operation(version: int) -> SupportedOperation:
    """Return what a client supports that sends this version of Produce."""
    if version > 11:
        return SupportedOperation.ADD_PARTITION
    return SupportedOperation.GENERIC_ERROR_SUPPORTED if version > 10 else SupportedOperation.DEFAULT_ERROR


def txn_offset_commit_operation(version: int) -> SupportedOperation:
    """Return what a client supports that sends this version of TxnOffsetCommit."""
    if version > 4:
        return SupportedOperation.ADD_PARTITION
    return SupportedOperation.GENERIC_ERROR_SUPPORTED if version > 3 else SupportedOperation.DEFAULT_ERROR


class VerificationGuard:
    """Permits an append after a verification, until the transaction ends (Kafka's VerificationGuard).

    Compared by identity, so that a guard from an earlier log instance is rejected.
    """

    __slots__ = ()


@dataclass(slots=True)
class _VerificationState:
    guard: VerificationGuard
    started_ms: int
    epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool


class Verifications:
    """The verifications in progress of one partition, by producer id (Kafka's VerificationStateEntry).

    The producer state of the log is passed in as arguments.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started: dict[int, _VerificationState] = {}

    def __len__(self) -> int:
        return len(self._started)

    def start(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        now_ms: int,
        *,
        known_epoch: int | None,
        ongoing: bool,
        supports_epoch_bump: bool,
    ) -> VerificationGuard | None:
        """Start a verification and return its guard, or None if the producer's transaction is ongoing in this log.

        `known_epoch` is the producer's last epoch in the log; `ongoing` is whether the log has an ongoing
        transaction of the producer.
        """
        if known_epoch is not None and producer_epoch < known_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} is {producer_epoch}, which is older than {known_epoch}.",
            )
        if ongoing:
            return None
        started = self._started.get(producer_id)
        if started is None:
            started = _VerificationState(VerificationGuard(), now_ms, producer_epoch, sequence, supports_epoch_bump)
            self._started[producer_id] = started
        elif producer_epoch > started.epoch:
            started.epoch, started.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == started.epoch:
            started.lowest_sequence = min(started.lowest_sequence, sequence)
        return started.guard

    def may_append(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether a guard is valid: no marker was appended since its verification started."""
        started = self._started.get(producer_id)
        return started is not None and guard is started.guard

    def check_sequence(self, producer_id: int, sequence: int) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER unless the batch with the lowest sequence is appended first."""
        started = self._started.get(producer_id)
        if started is not None and sequence > started.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number {sequence} of producer {producer_id}: {started.lowest_sequence} "
                "arrived before and must be appended first.",
            )

    def appended(self, producer_id: int, producer_epoch: int, *, is_control: bool) -> None:
        """End the verification of a producer after a transactional batch or a marker was appended."""
        started = self._started.get(producer_id)
        if started is None:
            return
        # A marker has the bumped epoch: a verification with the same epoch belongs to the next transaction.
        if started.supports_epoch_bump and is_control and producer_epoch == started.epoch:
            return
        del self._started[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove verifications that no append followed."""
        for producer_id in [key for key, state in self._started.items() if now_ms - state.started_ms >= expiration_ms]:
            del self._started[producer_id]


class PartitionVerifier:
    """Verifies or adds partitions with the coordinator of a transactional id (Kafka's AddPartitionsToTxnManager)."""

    __slots__ = ("_clock", "_config", "_coordinator_of")

    def __init__(
        self,
        clock: Clock,
        config: Callable[[], TransactionConfig],
        coordinator_of: Callable[[str], TransactionCoordinator | None],
    ) -> None:
        self._clock = clock
        self._config = config
        self._coordinator_of = coordinator_of

    def needed(self, transactional_id: str | None, operation: SupportedOperation) -> bool:
        """Return whether a batch needs a verification."""
        return transactional_id is not None and (
            operation.supports_epoch_bump or self._config().partition_verification_enable
        )

    def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        operation: SupportedOperation,
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        """Add partitions to a transaction, or verify them; return the error of each that may not be written to."""
        coordinator = self._coordinator_of(transactional_id)
        if coordinator is None:
            return completed_with(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if operation.supports_epoch_bump:
            added = coordinator.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, TransactionVersion.TV_2
            )
            return added.map(lambda error: _errors(dict.fromkeys(partitions, error), operation))
        verified = coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        return completed_with(_errors(verified, operation))

    def before_produce(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        operation: SupportedOperation,
    ) -> Pending[dict[TopicPartition, KafkaError]]:
        """Add or verify partitions as `add_or_verify` does; return the errors of a Produce response.

        While the markers of the previous transaction are being written, retry for up to
        add.partitions.to.txn.retry.backoff.max.ms before answering CONCURRENT_TRANSACTIONS.
        """
        if not operation.supports_epoch_bump:
            verified = self.add_or_verify(transactional_id, producer_id, producer_epoch, partitions, operation)
            return verified.map(lambda errors: _produce_errors(errors, operation))
        response: Pending[dict[TopicPartition, KafkaError]] = Pending()
        config = self._config()
        deadline = self._clock.monotonic() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        backoff = config.add_partitions_to_txn_retry_backoff_ms / 1000

        def add() -> None:
            if not response.settled:
                self.add_or_verify(transactional_id, producer_id, producer_epoch, partitions, operation).on_complete(
                    added
                )

        def added(errors: dict[TopicPartition, ErrorCode]) -> None:
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if concurrent and self._clock.monotonic() < deadline:
                self._clock.call_later(backoff, add)
            else:
                response.complete(_produce_errors(errors, operation))

        add()
        return response


def _errors(results: dict[TopicPartition, ErrorCode], operation: SupportedOperation) -> dict[TopicPartition, ErrorCode]:
    errors: dict[TopicPartition, ErrorCode] = {}
    for partition, error in results.items():
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH  # as in Kafka, Produce does not answer PRODUCER_FENCED
        elif error is ErrorCode.TRANSACTION_ABORTABLE and operation is SupportedOperation.DEFAULT_ERROR:
            error = ErrorCode.INVALID_TXN_STATE
        if error is not ErrorCode.NONE:
            errors[partition] = error
    return errors


def _produce_errors(
    errors: dict[TopicPartition, ErrorCode], operation: SupportedOperation
) -> dict[TopicPartition, KafkaError]:
    return {partition: produce_error(error, operation) for partition, error in errors.items()}


# Produce answers these as NOT_ENOUGH_REPLICAS, so that the producer retries the batch.
_RETRIABLE = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def produce_error(error: ErrorCode, operation: SupportedOperation) -> KafkaError:
    """Return the error of a Produce response for a partition that could not be verified or added."""
    if error is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(error, "Partition was not added to the transaction")
    if error in _RETRIABLE or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not operation.supports_epoch_bump):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}",
        )
    return KafkaError(error)
