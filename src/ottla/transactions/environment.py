"""What the coordinator needs from the broker around it: a log to write to, producer ids, the way to other leaders.

Declarations only. The broker implements them over its partitions and its metadata image, tests over lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.transactions.states import TransactionVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.storage.names import TopicPartition

TRANSACTION_STATE_TOPIC = "__transaction_state"
NO_LEADER = -1


class LogRecord(NamedTuple):
    """A record as it goes to a partition of `__transaction_state`; without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


class ProducerIdBlock(NamedTuple):
    """Producer ids that nobody else will be given."""

    first: int
    size: int


class TransactionMarker(NamedTuple):
    """The end of a transaction, to be written to each of its partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class StateLog(Protocol):
    """The partitions of `__transaction_state` that this node leads."""

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        """Append one batch; the answer comes when it is durable, or is the error that an append would answer."""
        ...


class ProducerIdSource(Protocol):
    """Blocks of producer ids, recorded in the metadata log."""

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        """The next block, or None if there is none to be had now."""
        ...


class MarkerSender(Protocol):
    """The way to the leaders of partitions, those of `__consumer_offsets` included."""

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        """Write a marker to each partition; the answer has what became of each. A partition left out is tried again."""
        ...


class ClusterView(Protocol):
    """What the coordinator needs to know of the cluster."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The partition's leader, `NO_LEADER` if it has none now, None if there is no such partition."""
        ...

    def transaction_partition_count(self) -> int:
        """How many partitions `__transaction_state` has, or would be created with."""
        ...

    def transaction_version(self) -> int:
        """The finalized level of the feature `transaction.version`."""
        ...


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """The broker's configs that rule transactions, under Kafka's names and with Kafka's defaults."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    abort_timed_out_transaction_cleanup_interval_ms: int = 10 * 1000
    remove_expired_transaction_cleanup_interval_ms: int = 60 * 60 * 1000
    two_phase_commit_enable: bool = False
    partition_verification_enable: bool = True
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100


def finalized_version(cluster: ClusterView) -> TransactionVersion:
    """The cluster's transaction version, as far as this coordinator knows versions."""
    return TransactionVersion(min(max(cluster.transaction_version(), 0), TransactionVersion.TV_2))
