"""KIP-890 at a partition's leader: no record enters a log outside of a transaction that the coordinator knows.

Before a producer's first record of a transaction its leader asks the coordinator: older clients must have added the
partition themselves, newer ones have it added now. Appending is the log's business; this says whether it may.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ottla.pending import Pending, kept
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.transactions.states import TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.storage.names import TopicPartition
    from ottla.transactions.coordinator import TransactionCoordinator
    from ottla.transactions.environment import TransactionConfig
    from ottla.world.clock import Clock


class SupportedOperation(Enum):
    """What a client of some version of Produce or TxnOffsetCommit understands."""

    DEFAULT_ERROR = 0
    """It adds partitions itself, and does not know TRANSACTION_ABORTABLE."""
    GENERIC_ERROR_SUPPORTED = 1
    """It adds partitions itself, and knows TRANSACTION_ABORTABLE."""
    ADD_PARTITION = 2
    """It leaves adding to the broker, and bumps its epoch with every transaction."""

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether every transaction of this client has an epoch of its own."""
        return self is SupportedOperation.ADD_PARTITION


def produce_operation(version: int) -> SupportedOperation:
    """What a client that produces with this version understands."""
    if version > 11:
        return SupportedOperation.ADD_PARTITION
    return SupportedOperation.GENERIC_ERROR_SUPPORTED if version > 10 else SupportedOperation.DEFAULT_ERROR


def txn_offset_commit_operation(version: int) -> SupportedOperation:
    """What a client that commits offsets in a transaction with this version understands."""
    if version > 4:
        return SupportedOperation.ADD_PARTITION
    return SupportedOperation.GENERIC_ERROR_SUPPORTED if version > 3 else SupportedOperation.DEFAULT_ERROR


class Guard:
    """The right to append that a verification gives; it is void once the transaction it was given for has ended.

    It is equal to nothing but itself, so that no other life of a log takes it for one of its own.
    """

    __slots__ = ()


@dataclass(slots=True)
class _Started:
    guard: Guard
    at_ms: int
    epoch: int
    lowest_sequence: int
    supports_epoch_bump: bool


class Verifications:
    """The verifications that one log has seen started, by producer id.

    What the log itself knows of a producer comes in as arguments, so that this has no opinion about logs.
    """

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started: dict[int, _Started] = {}

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
    ) -> Guard | None:
        """A guard to append with; None if the producer's transaction is open in this log and nobody has to be asked.

        `known_epoch` is the last epoch that the log has of the producer, `ongoing` whether it has an open transaction
        in this one.
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
            started = _Started(Guard(), now_ms, producer_epoch, sequence, supports_epoch_bump)
            self._started[producer_id] = started
        elif producer_epoch > started.epoch:
            started.epoch, started.lowest_sequence = producer_epoch, sequence
        elif producer_epoch == started.epoch:
            started.lowest_sequence = min(started.lowest_sequence, sequence)
        return started.guard

    def may_append(self, producer_id: int, guard: Guard | None) -> bool:
        """Whether a guard is still good: no marker has come since it was given."""
        started = self._started.get(producer_id)
        return started is not None and guard is started.guard

    def check_sequence(self, producer_id: int, sequence: int) -> None:
        """Batches that were sent in a row are appended in that row, even if the first ones had to be sent again."""
        started = self._started.get(producer_id)
        if started is not None and sequence > started.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number {sequence} of producer {producer_id}: {started.lowest_sequence} was "
                "seen before and has to come first.",
            )

    def appended(self, producer_id: int, producer_epoch: int, *, control: bool) -> None:
        """A transactional batch, or a marker, of the producer is in the log: the verification has done its work."""
        started = self._started.get(producer_id)
        if started is None:
            return
        # A marker carries the bumped epoch; if the next transaction has begun to verify, it is not the one that ends.
        if started.supports_epoch_bump and control and producer_epoch == started.epoch:
            return
        del self._started[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget verifications that nothing came of."""
        for producer_id in [p for p, each in self._started.items() if now_ms - each.at_ms >= expiration_ms]:
            del self._started[producer_id]


class PartitionVerifier:
    """Asks the coordinator of a transactional id, wherever it is, on behalf of a partition's leader."""

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
        """Whether the coordinator has to be asked at all."""
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
        """The partitions that may not be written to, with the reason why; it is good news if there are none."""
        coordinator = self._coordinator_of(transactional_id)
        if coordinator is None:
            return kept(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        if operation.supports_epoch_bump:
            added = coordinator.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, TransactionVersion.TV_2
            )
            return added.map(lambda error: _errors(dict.fromkeys(partitions, error), operation))
        verified = coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        return kept(_errors(verified, operation))

    def before_produce(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        operation: SupportedOperation,
    ) -> Pending[dict[TopicPartition, KafkaError]]:
        """As `add_or_verify`, in the words of a produce response.

        While the markers of the last transaction are being written a newer client is kept waiting for a short time,
        rather than sent away: it did not even ask for its partition to be added.
        """
        if not operation.supports_epoch_bump:
            asked = self.add_or_verify(transactional_id, producer_id, producer_epoch, partitions, operation)
            return asked.map(lambda errors: _produce_errors(errors, operation))
        answer: Pending[dict[TopicPartition, KafkaError]] = Pending()
        config = self._config()
        give_up = self._clock.monotonic() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        pause = config.add_partitions_to_txn_retry_backoff_ms / 1000

        def ask() -> None:
            if not answer.settled:
                self.add_or_verify(transactional_id, producer_id, producer_epoch, partitions, operation).on_complete(
                    answered
                )

        def answered(errors: dict[TopicPartition, ErrorCode]) -> None:
            busy = ErrorCode.CONCURRENT_TRANSACTIONS in errors.values()
            if busy and self._clock.monotonic() < give_up:
                self._clock.call_later(pause, ask)
            else:
                answer.complete(_produce_errors(errors, operation))

        ask()
        return answer


def _errors(results: dict[TopicPartition, ErrorCode], operation: SupportedOperation) -> dict[TopicPartition, ErrorCode]:
    errors: dict[TopicPartition, ErrorCode] = {}
    for partition, error in results.items():
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH  # what a leader has always answered to a stale producer
        elif error is ErrorCode.TRANSACTION_ABORTABLE and operation is SupportedOperation.DEFAULT_ERROR:
            error = ErrorCode.INVALID_TXN_STATE
        if error is not ErrorCode.NONE:
            errors[partition] = error
    return errors


def _produce_errors(
    errors: dict[TopicPartition, ErrorCode], operation: SupportedOperation
) -> dict[TopicPartition, KafkaError]:
    return {partition: produce_error(error, operation) for partition, error in errors.items()}


# A producer does not know that its leader asks a coordinator; these make it send its records again.
_NOT_NOW = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


def produce_error(error: ErrorCode, operation: SupportedOperation) -> KafkaError:
    """What a producer is told when its partition could not be verified or added."""
    if error is ErrorCode.INVALID_TXN_STATE:
        return KafkaError(error, "Partition was not added to the transaction")
    if error in _NOT_NOW or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not operation.supports_epoch_bump):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}",
        )
    return KafkaError(error)
