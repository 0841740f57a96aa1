"""A partition as the broker serves it: its log, who leads it, and the fetches that wait on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.log.producer_state import AppendOrigin
from ottla.transactions.verification import Verifications

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.cluster.registrations import Partition as PartitionState
    from ottla.protocol.schema import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.storage.log.log import AppendResult, Log
    from ottla.storage.log.validation import ValidatedRecords
    from ottla.transactions.verification import VerificationGuard
    from ottla.world.disk import Buffer

NO_LEADER_EPOCH = -1


class Waiting(Protocol):
    """A fetch of some kind that waits for a partition to have more."""

    def changed(self, partition: Partition) -> None:
        """It has more, or lost some."""
        ...

    def finish(self) -> None:
        """Answer now with whatever there is."""
        ...


class Partition:
    """One partition of the cluster, with the log that this process keeps for it."""

    __slots__ = (
        "_on_readable",
        "index",
        "log",
        "min_insync_replicas",
        "state",
        "topic",
        "topic_id",
        "verifications",
        "waits",
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
        self.waits: dict[Waiting, None] = {}
        self._on_readable = on_readable
        log.on_high_watermark = self._high_watermark_moved

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    def replace_log(self, log: Log) -> None:
        """Go on with a log that holds the same records, because they were moved to another directory."""
        self.log.on_high_watermark = None
        self.log = log
        log.on_high_watermark = self._high_watermark_moved

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a client whose idea of the leader is older, or newer, than ours (KIP-320)."""
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
        """Validate and write batches; `acks` -1 needs as many replicas in sync as `min.insync.replicas` says.

        More than there are replicas it never asks for. The other options are `Log.append_as_leader`'s.
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
        """Ask for the right to append a transactional batch; None if its transaction is open here already."""
        known = self.log.producers.producers.get(header.producer_id) if self.log.log_end_offset else None
        return self.verifications.start(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            self.log.env.clock.now_ms(),
            known_epoch=None if known is None else known.producer_epoch,
            ongoing=self.log.has_ongoing_transaction(header.producer_id, header.producer_epoch),
            supports_epoch_bump=supports_epoch_bump,
        )

    def is_verified(self, header: BatchHeader, guard: VerificationGuard | None) -> bool:
        """Whether a transactional batch may begin its transaction here, now that the coordinator was asked."""
        if guard is None:
            return True
        self.verifications.check_sequence(header.producer_id, header.base_sequence)
        return self.verifications.may_append(header.producer_id, guard)

    def readable_end(self, read_committed: bool) -> int:
        """The offset below which a consumer may read."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    def _high_watermark_moved(self, _: Log) -> None:
        if self.waits:
            self._on_readable(self)
