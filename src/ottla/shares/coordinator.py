"""The share coordinator of one node (Kafka's ShareCoordinatorService), over the `__share_group_state` it leads.

A request's record is appended, then replayed; the response completes once the record is durable.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.cluster.coordinator_errors import APPEND_ERRORS, UnreadableRecord, unreadable
from ottla.cluster.internal_topics import partition_for
from ottla.pending import Pending, completed_with
from ottla.pieces import run_to_end
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import BatchBuilder
from ottla.records.compression import CompressionType
from ottla.shares.environment import SharePartitionKey, ShareState
from ottla.shares.records import decode_record
from ottla.shares.state import ShareShard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable, Sequence

    from ottla.protocol.schema import Uuid
    from ottla.records.iterate import Record
    from ottla.shares.environment import StateBatch
    from ottla.shares.records import ShareRecord
    from ottla.world.clock import Clock, Timer

log = logging.getLogger(__name__)

REPLAY_WORK = 15
"""Units of work (`ottla.pieces`) of one replayed record."""


class ShareLog(Protocol):
    """The partitions of `__share_group_state` that this node leads."""

    def append(self, partition: int, batch: bytearray) -> tuple[int, Pending[ErrorCode] | None]:
        """Append one batch; return its base offset and a Pending of its durability (None: durable already)."""
        ...

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the records before an offset."""
        ...


@dataclass(slots=True, frozen=True)
class ShareConfig:
    """The broker's share coordinator configs, with Kafka's defaults."""

    updates_per_snapshot: int = 500
    prune_interval_ms: int = 300_000
    cold_snapshot_interval_ms: int = 300_000
    compression: int = CompressionType.NONE


class StateResult(NamedTuple):
    """The result of a request: the state with its error, and an error message for the client."""

    state: ShareState
    message: str | None = None

    @property
    def error(self) -> ErrorCode:
        """The error of the request, or NONE."""
        return self.state.error


_SUCCESS: Final = ShareState(ErrorCode.NONE)


class ShareCoordinator:
    """Coordinates the share partitions that belong to the partitions of `__share_group_state` that this node leads."""

    def __init__(
        self,
        clock: Clock,
        log: ShareLog,
        *,
        state_partition_count: Callable[[], int],
        topic_partition_count: Callable[[Uuid], int | None],
        config: ShareConfig | None = None,
    ) -> None:
        self.config = config or ShareConfig()
        self._clock = clock
        self._log = log
        self._state_partition_count = state_partition_count
        self._topic_partition_count = topic_partition_count
        self._shards: dict[int, ShareShard] = {}
        self._loading: set[int] = set()
        self._timers: dict[str, Timer] = {}

    # Start, stop and leadership

    def start(self) -> None:
        """Schedule snapshots of cold share partitions and the pruning of `__share_group_state`."""
        self._every("prune", lambda: self.config.prune_interval_ms, self.prune)
        self._every("cold", lambda: self.config.cold_snapshot_interval_ms, self.snapshot_cold_partitions)

    def stop(self) -> None:
        """Cancel all timers and unload all partitions."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._shards.clear()
        self._loading.clear()

    def load(self, partition: int, records: Iterable[Record | UnreadableRecord]) -> list[UnreadableRecord]:
        """Load a partition that this node now leads; return the records that cannot be loaded.

        If there are any, the partition is not loaded: its share partitions answer NOT_COORDINATOR, as in Kafka.
        """
        return run_to_end(self.load_in_pieces(partition, records))

    def load_in_pieces(
        self, partition: int, records: Iterable[Record | UnreadableRecord]
    ) -> Generator[int, None, list[UnreadableRecord]]:
        """Load a partition as `load` does; yield the units of work done, after the first of which it is loading.

        The caller closes the generator if it unloads the partition meanwhile.
        """
        self.unload(partition)
        self._loading.add(partition)
        yield 0
        shard = ShareShard(partition, lambda key: self._topic_partition_count(key.topic_id))
        failed: list[UnreadableRecord] = []
        for record in records:
            yield REPLAY_WORK
            if isinstance(record, UnreadableRecord):
                failed.append(record)
                continue
            try:
                decoded = decode_record(record.key, record.value)
                if decoded is not None:
                    shard.replay(decoded, record.offset, self.config.updates_per_snapshot)
                    continue
            except Exception as error:  # as in Kafka, whatever a record does, it fails this shard and nothing else
                failed.append(unreadable(record.offset, error))
                continue
            log.warning(
                "__share_group_state-%d: ignoring the record at offset %d, whose type is unknown",
                partition,
                record.offset,
            )
        self._loading.discard(partition)
        if not failed:
            self._shards[partition] = shard
        return failed

    def unload(self, partition: int) -> None:
        """Unload a partition that this node no longer leads."""
        self._loading.discard(partition)
        self._shards.pop(partition, None)

    def shard(self, partition: int) -> ShareShard | None:
        """Return the shard of a partition, or None if it is not loaded here."""
        return self._shards.get(partition)

    def partition_for(self, key: SharePartitionKey) -> int:
        """Return the partition of `__share_group_state` that a share partition belongs to."""
        return partition_for(f"{key.group_id}:{key.topic_id}:{key.partition}", self._state_partition_count())

    # Requests

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[StateResult]:
        """Initialize a partition's state, or reset it with a later state epoch."""
        now = self._clock.now_ms()
        return self._run(key, lambda shard: (_SUCCESS, shard.initialize(key, state_epoch, start_offset, now)))

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[StateResult]:
        """Return the state for a leader epoch, and fence earlier leader epochs."""
        now = self._clock.now_ms()
        return self._run(key, lambda shard: shard.read(key, leader_epoch, self.config.updates_per_snapshot, now))

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[StateResult]:
        """Update the state; return FENCED_STATE_EPOCH or FENCED_LEADER_EPOCH for an earlier epoch."""
        now, limit = self._clock.now_ms(), self.config.updates_per_snapshot

        def write(shard: ShareShard) -> tuple[ShareState, ShareRecord]:
            return _SUCCESS, shard.write(
                key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches, limit, now
            )

        return self._run(key, write)

    def summary(self, key: SharePartitionKey) -> Pending[StateResult]:
        """Return the state without its batches."""
        return self._run(key, lambda shard: (shard.summary(key), None))

    def delete(self, key: SharePartitionKey) -> Pending[StateResult]:
        """Delete a partition's state with a tombstone."""
        return self._run(key, lambda shard: (_SUCCESS, shard.delete(key)))

    # Maintenance

    def topics_deleted(self, topic_ids: Collection[Uuid]) -> None:
        """Write tombstones for the share partitions of deleted topics."""
        for shard in list(self._shards.values()):
            self._write_each(shard, shard.tombstones(topic_ids))

    def snapshot_cold_partitions(self) -> None:
        """Write snapshots of share partitions without recent updates, so that older records can be pruned."""
        now = self._clock.now_ms()
        for shard in list(self._shards.values()):
            self._write_each(shard, shard.cold_snapshots(now, self.config.cold_snapshot_interval_ms))

    def prune(self) -> None:
        """Delete the records that later snapshots have replaced."""
        for shard in list(self._shards.values()):
            offset = shard.first_needed_offset
            if offset > shard.pruned_to:
                try:
                    self._log.delete_before(shard.partition, offset)
                    shard.pruned_to = offset
                except KafkaError as error:
                    log.warning("__share_group_state-%d cannot be pruned: %s", shard.partition, error)

    # Writing

    def _run(
        self, key: SharePartitionKey, operation: Callable[[ShareShard], tuple[ShareState, ShareRecord | None]]
    ) -> Pending[StateResult]:
        partition = self.partition_for(key)
        shard = self._shards.get(partition)
        if shard is None:
            loading = partition in self._loading
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NOT_COORDINATOR
            return completed_with(StateResult(ShareState(code)))
        try:
            state, record = operation(shard)
        except KafkaError as error:
            return completed_with(StateResult(ShareState(error.code), error.message))
        if record is None:
            return completed_with(StateResult(state))
        try:
            durable = self._append(shard, [record])
        except KafkaError as error:
            return completed_with(StateResult(ShareState(APPEND_ERRORS.get(error.code, error.code))))
        if durable is None:
            return completed_with(StateResult(state))

        def answer(code: ErrorCode) -> StateResult:
            return StateResult(state if code is ErrorCode.NONE else ShareState(APPEND_ERRORS.get(code, code)))

        return durable.map(answer)

    def _append(self, shard: ShareShard, records: Sequence[ShareRecord]) -> Pending[ErrorCode] | None:
        builder = BatchBuilder(compression=self.config.compression)
        now = self._clock.now_ms()
        for record in records:
            key, value = record.encode()
            builder.append(key, value, timestamp=now)
        offset, durable = self._log.append(shard.partition, builder.build())
        for position, record in enumerate(records):
            shard.replay(record, offset + position, self.config.updates_per_snapshot)
        return durable

    def _write_each(self, shard: ShareShard, records: Sequence[ShareRecord]) -> None:
        """Append each record in its own batch, because together they may be too large for one."""
        for record in records:
            try:
                self._append(shard, [record])
            except KafkaError as error:
                log.warning("__share_group_state-%d cannot be written: %s", shard.partition, error)
                return

    def _every(self, name: str, interval_ms: Callable[[], int], action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers[name] = self._clock.call_later(interval_ms() / 1000, run)
            action()

        self._timers[name] = self._clock.call_later(interval_ms() / 1000, run)
