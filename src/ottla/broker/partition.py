"""A partition as the broker serves it: its log, its leader, and the delayed fetches on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.log.producer_state import AppendOrigin
from ottla.transactions.verification import Verifications

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cluster.partitions.state import Partition as PartitionState
    from ottla.protocol.schema import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.storage.log.appending import AppendResult
    from ottla.storage.log.log import Log
    from ottla.storage.log.validation import ValidatedRecords
    from ottla.transactions.verification import VerificationGuard
    from ottla.world.disk import Buffer

NO_LEADER_EPOCH = -1


class DelayedOperation(Protocol):
    """A fetch, or a share fetch, that waits on partitions; Kafka's DelayedOperation."""

    def try_complete(self, partition: Partition) -> None:
        """Complete if a partition, which has changed, now has enough records."""
        ...

    def force_complete(self) -> None:
        """Complete now with the records that there are."""
        ...


class Partition:
    """One partition of the cluster with its log in this process."""

    __slots__ = (
        "_on_readable",
        "delayed",
        "index",
        "log",
        "min_insync_replicas",
        "state",
        "topic",
        "topic_id",
        "verifications",
    )

    def __init__(
        self,
        topic: str,
        topic_id: Uuid,
        index: int,
        state: PartitionState,
        log: Log,
        min_insync_replicas: int,
        on_readable: Callable[[Partition], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.state = state
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.verifications = Verifications()
        self.delayed: dict[DelayedOperation, None] = {}
        self._on_readable = on_readable
        log.on_high_watermark = self._high_watermark_moved

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    def replace_log(self, log: Log) -> None:
        """Serve another log with the same records: the log was moved to another directory."""
        self.log.on_high_watermark = None
        self.log = log
        log.on_high_watermark = self._high_watermark_moved

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH for a client with an older or newer epoch (KIP-320)."""
        if epoch in (NO_LEADER_EPOCH, self.state.leader_epoch):
            return
        if epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def append(
        self,
        records: Buffer,
        *,
        acks: int = -1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verified: bool = True,
        supports_epoch_bump: bool = False,
        transaction_version: int = 0,
        may_defer: bool = False,
        validated: ValidatedRecords | None = None,
        parsed_header: BatchHeader | None = None,
    ) -> AppendResult:
        """Validate and append batches; raise NOT_ENOUGH_REPLICAS for acks=-1 below `min.insync.replicas`.

        `min.insync.replicas` counts at most as many replicas as there are. The other options are those of
        `Log.append_as_leader`.
        """
        state = self.state
        if acks == -1 and len(state.isr) < min(self.min_insync_replicas, len(state.replicas)):
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(state.isr)} is insufficient to satisfy the min.isr "
                f"requirement of {self.min_insync_replicas} for partition {self.topic}-{self.index}",
            )
        return self.log.append_as_leader(
            records,
            state.leader_epoch,
            origin=origin,
            verified=verified,
            supports_epoch_bump=supports_epoch_bump,
            transaction_version=transaction_version,
            may_defer=may_defer,
            validated=validated,
            parsed_header=parsed_header,
        )

    def begin_verification(self, header: BatchHeader, supports_epoch_bump: bool) -> VerificationGuard | None:
        """Return a guard for verifying a transactional batch, or None if its transaction is open in this partition."""
        entry = self.log.producers.producers.get(header.producer_id) if self.log.log_end_offset else None
        return self.verifications.start(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            self.log.env.clock.now_ms(),
            known_epoch=None if entry is None else entry.producer_epoch,
            ongoing=self.log.has_ongoing_transaction(header.producer_id, header.producer_epoch),
            supports_epoch_bump=supports_epoch_bump,
        )

    def is_verified(self, header: BatchHeader, guard: VerificationGuard | None) -> bool:
        """Return whether a transactional batch may start its transaction in this partition: it was verified."""
        if guard is None:
            return True
        self.verifications.check_sequence(header.producer_id, header.base_sequence)
        return self.verifications.may_append(header.producer_id, guard)

    def readable_end(self, read_committed: bool) -> int:
        """Return the offset below which a consumer may read: last stable offset or high watermark."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    def _high_watermark_moved(self, _: Log) -> None:
        if self.delayed:
            self._on_readable(self)
