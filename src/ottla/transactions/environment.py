"""Interfaces that the transaction coordinator needs from the broker: state log, producer ids, marker sender, metadata.

Declarations only: the broker implements them over its partitions and metadata image, tests over lists.
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
    """A record to append to `__transaction_state`; without a value it is a tombstone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int


class ProducerIdBlock(NamedTuple):
    """A range of producer ids that is allocated to one node."""

    first: int
    size: int


class TransactionMarker(NamedTuple):
    """The control record that ends a transaction, to be written to each of its partitions."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int


class StateLog(Protocol):
    """The partitions of `__transaction_state` that this node leads."""

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        """Append one batch; complete with NONE once it is durable, or with the error of the append."""
        ...


class ProducerIdSource(Protocol):
    """Allocates blocks of producer ids and records them in the metadata log."""

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        """Return the next block, or None if none can be allocated now."""
        ...


class MarkerSender(Protocol):
    """Sends transaction markers to the leaders of partitions (Kafka's TransactionMarkerChannelManager)."""

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        """Write a marker to each partition; complete with an error for each. A missing partition is retried."""
        ...


class ClusterView(Protocol):
    """The part of the cluster metadata that the coordinator reads."""

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's leader, `NO_LEADER` if it has none now, or None if it does not exist."""
        ...

    def transaction_partition_count(self) -> int:
        """Return the number of partitions that `__transaction_state` has or would be created with."""
        ...

    def transaction_version(self) -> int:
        """Return the finalized level of the feature `transaction.version`."""
        ...


@dataclass(slots=True, frozen=True)
class TransactionConfig:
    """The broker's transaction configs, under Kafka's names and with Kafka's defaults."""

    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    abort_timed_out_transaction_cleanup_interval_ms: int = 10 * 1000
    remove_expired_transaction_cleanup_interval_ms: int = 60 * 60 * 1000
    two_phase_commit_enable: bool = False
    partition_verification_enable: bool = True
    add_partitions_to_txn_retry_backoff_ms: int = 20
    add_partitions_to_txn_retry_backoff_max_ms: int = 100


def finalized_version(cluster: ClusterView) -> TransactionVersion:
    """Return the cluster's transaction version, capped at the highest that this coordinator supports."""
    return TransactionVersion(min(max(cluster.transaction_version(), 0), TransactionVersion.TV_2))
