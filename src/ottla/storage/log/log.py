"""One partition replica's log: appends, offsets, what segments roll by, flushing and truncation.

Its files are `log_files`, reads are in `reading`, start-up in `recovery`, what goes away in `retention` and
`compaction`. The log belongs to one loop; only closed segments may be looked at from threads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_end_transaction_marker
from ottla.records.validate import ValidationDeferredError
from ottla.storage.checkpoints import encode_epochs
from ottla.storage.log import reading, recovery, retention
from ottla.storage.log.files import LogFiles
from ottla.storage.log.indexes import AbortedTxn
from ottla.storage.log.leader_epochs import LeaderEpochCache
from ottla.storage.log.producer_state import AppendOrigin, CompletedTxn, ProducerAppend, ProducerState, read_marker
from ottla.storage.log.segment import Segment
from ottla.storage.log.validation import (
    rules_for,
    stamp_append_time,
    validate_ahead,
    validate_as_leader,
    validate_raw,
)
from ottla.storage.names import LEADER_EPOCH_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.records.batch import BatchHeader
    from ottla.records.control import ControlType
    from ottla.records.validate import LogRules, ValidBatch
    from ottla.storage.config import LogConfig
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.log.producer_state import SnapshotInProgress
    from ottla.storage.log.recovery import RecoveryReport
    from ottla.storage.log.slices import LogRead, TimestampOffset
    from ottla.storage.log.validation import ValidatedRecords
    from ottla.storage.names import TopicPartition
    from ottla.world.disk import Buffer


INLINE_PRODUCERS = 2000  # as many are encoded into a snapshot in one turn of the loop


class AppendResult(NamedTuple):
    """What an append did: the offsets it got (or had, for a duplicate) and the broker's time if that counts."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class Log(LogFiles):
    """A partition's records from `log_start_offset` to `log_end_offset`. Opening it reads nothing but names."""

    __slots__ = (
        "_client_rules",
        "_durable_offset",
        "_high_watermark",
        "_hold_high_watermark",
        "_loaded",
        "_log_end_offset",
        "_log_start_offset",
        "_rules_config",
        "_starting_epoch",
        "clean",
        "epochs",
        "last_flushed_ms",
        "may_have_gaps",
        "on_high_watermark",
        "producers",
        "recovery_point",
        "report",
        "topic_partition",
    )

    def __init__(
        self,
        env: StorageEnvironment,
        folder: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean: bool = True,
        hold_high_watermark: bool = False,
        may_have_gaps: bool | None = None,
    ) -> None:
        super().__init__(env, folder, config)
        self.may_have_gaps = config.compact if may_have_gaps is None else may_have_gaps
        self.topic_partition = topic_partition
        self.clean = clean
        self.recovery_point = recovery_point
        self.on_high_watermark: Callable[[Log], None] | None = None
        self.report: RecoveryReport | None = None
        self.last_flushed_ms = env.clock.now_ms()
        self.epochs = LeaderEpochCache()
        self.producers = ProducerState()
        self._hold_high_watermark = hold_high_watermark
        self._log_start_offset = log_start_offset
        self._log_end_offset = 0
        self._high_watermark = 0
        self._durable_offset = 0
        self._loaded = False
        self._starting_epoch = -1
        self._rules_config: LogConfig | None = None
        self._client_rules: LogRules | None = None

    @classmethod
    def open(
        cls,
        env: StorageEnvironment,
        folder: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean: bool = True,
        hold_high_watermark: bool = False,
        may_have_gaps: bool | None = None,
    ) -> Log:
        """Open the log in a folder, or make an empty one there.

        After a clean stop only names are read now and the rest when it is needed; after any other the log is recovered
        here, and `report` says what that did. `hold_high_watermark` keeps the high watermark at what is durable.
        `may_have_gaps` says that the log is or was compacted; otherwise offsets that are missing between two segments
        are damage, too: a power loss has taken the end of the first one.
        """
        log = cls(
            env,
            folder,
            topic_partition,
            config,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            clean=clean,
            hold_high_watermark=hold_high_watermark,
            may_have_gaps=may_have_gaps,
        )
        try:
            log._open()
        except OSError as error:
            raise env.fail(error) from error
        return log

    def _open(self) -> None:
        try:
            names = self.env.disk.list(self._folder)
        except FileNotFoundError:
            self.env.disk.make_dirs(self._folder)
            names = []
        if self._take_names(names) and (self.clean or self._is_empty_on_disk()):
            self.clean = True
            self._log_start_offset = max(self._log_start_offset, self.bases[0])
            return
        report = recovery.load(self, names)
        self.report = report if report.noteworthy else None

    def _is_empty_on_disk(self) -> bool:
        """Whether the log never held a record, so that there is nothing to recover."""
        base = self.bases[0]
        return (
            len(self.bases) == 1
            and not self.snapshots
            and self.recovery_point <= base
            and self._log_start_offset <= base
            and self._segments[0].has_empty_files()
        )

    def load(self) -> None:
        """Read what opening put off: where the log ends, its producers and its epochs."""
        if self._loaded:
            return
        self.env.check()
        try:
            report = recovery.load_clean(self)
        except OSError as error:
            raise self.env.fail(error) from error
        if report.noteworthy:
            self.report = report
            for loss in report.losses():
                self.env.report(loss)

    def loaded_to(self, log_end_offset: int) -> None:
        """Recovery's last word: the log is ready and ends there."""
        self._log_end_offset = self._high_watermark = self._durable_offset = log_end_offset
        self.recovery_point = min(self.recovery_point, log_end_offset)
        active = self._segments[-1]
        active.activate(self.config)
        self._loaded = True
        self.epochs.assign(self._starting_epoch, log_end_offset)

    def set_log_start(self, offset: int) -> None:
        """Where recovery found that the log begins."""
        self._log_start_offset = offset

    # Offsets -----------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """Whether anything but names has been read yet."""
        return self._loaded

    @property
    def checkpointed_high_watermark(self) -> int:
        """The high watermark as far as it is known without loading: a log that nobody touched was flushed."""
        return self._high_watermark if self._loaded else self.recovery_point

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        if not self._loaded:
            self.load()
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """The end of what consumers may see."""
        if not self._loaded:
            self.load()
        return self._high_watermark

    @property
    def durable_offset(self) -> int:
        """The end of what an fsync is known to have covered since the log was opened (all that was found then)."""
        if not self._loaded:
            self.load()
        return self._durable_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what read_committed consumers may see: before it every transaction is decided."""
        if not self._loaded:
            self.load()
        first = self.producers.first_unstable_offset
        if first is None or first >= self._high_watermark:
            return self._high_watermark
        return max(first, self._log_start_offset)

    @property
    def active_segment(self) -> Segment:
        """The segment that is written to."""
        if not self._loaded:
            self.load()
        return self._segments[-1]

    # Appends -----------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verified: bool = True,
        supports_epoch_bump: bool = False,
        transaction_version: int = 0,
        parsed_header: BatchHeader | None = None,
        may_defer: bool = False,
        validated: ValidatedRecords | None = None,
    ) -> AppendResult:
        """Validate batches, give them offsets and write them. A writable buffer is stamped in place.

        `verified` says that the coordinator knows the transaction of a producer that has none open here, and
        `supports_epoch_bump` that the producer begins each transaction with a new epoch (KIP-890). `parsed_header` is
        the header of a client's one batch, where the caller has parsed it. With `may_defer`
        raise `ValidationDeferredError`, and change nothing, where validation would take more than a few milliseconds:
        run `validation_ahead` in a worker then, and append with its result as `validated`.
        """
        if not self._loaded:
            self.load()
        env, config = self.env, self.config
        if env.failure is not None:
            env.check()
        if env.memory is not None:
            env.memory.admit(len(records), from_client=origin is AppendOrigin.CLIENT)
        now = env.clock.now_ms()
        rules = self._client_rules
        if rules is None or config is not self._rules_config:
            self._rules_config = config
            rules = self._client_rules = rules_for(config, True)
        if origin is not AppendOrigin.CLIENT:
            rules = rules_for(config, False)
        if validated is None:
            batches = validate_as_leader(records, rules, now, header=parsed_header, inline=may_defer)
        elif validated.rules == rules:
            batches = stamp_append_time(validated.batches, now)
        else:  # the topic's config changed meanwhile
            raise ValidationDeferredError
        first = offset = self._log_end_offset
        size, max_timestamp = 0, -1
        producers: dict[int, ProducerAppend] | None = None
        completed: list[CompletedTxn] = []
        for valid in batches:
            header = valid.header
            if header.producer_id >= 0:
                if producers is None:
                    producers = {}
                duplicate = self._stage_producer(
                    valid.batch,
                    header,
                    offset,
                    valid.max_timestamp,
                    origin,
                    producers,
                    completed,
                    verified,
                    supports_epoch_bump,
                    transaction_version,
                )
                if duplicate is not None:
                    return duplicate
            size += len(valid.batch)
            if valid.max_timestamp > max_timestamp:
                max_timestamp = valid.max_timestamp
            offset += header.last_offset_delta + 1
        if size > config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes of batches are more than segment.bytes, {config.segment_bytes}.",
            )
        if not batches:
            return AppendResult(-1, -1, -1, self._log_start_offset, False)
        try:
            segment = self._maybe_roll(size, max_timestamp, offset - 1, now)
            self._write_as_leader(segment, batches, first, leader_epoch)
            self._appended(offset, segment, producers, completed)
        except OSError as error:
            raise env.fail(error) from error
        return AppendResult(first, offset - 1, batches[0].log_append_time, self._log_start_offset, False)

    def validation_ahead(self, records: Buffer) -> Callable[[], ValidatedRecords]:
        """Return a function that validates a client's batch in a worker; nothing may change `records` meanwhile."""
        return partial(validate_ahead, records, rules_for(self.config, True), self.env.clock.now_ms())

    def _write_as_leader(self, segment: Segment, batches: list[ValidBatch], offset: int, leader_epoch: int) -> None:
        """Stamp batches with their offsets and the epoch, write them in one call, and index each."""
        if leader_epoch >= 0 and leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, offset)
        interval = self.config.index_interval_bytes
        if len(batches) == 1:
            valid = batches[0]
            stamped = valid.stamp(offset, leader_epoch)
            position = segment.append(stamped)
            last_offset = offset + valid.header.last_offset_delta
            segment.index_batch(last_offset, valid.max_timestamp, position, len(stamped), interval)
            return
        parts = []
        next_offset = offset
        for valid in batches:
            parts.append(valid.stamp(next_offset, leader_epoch))
            next_offset += valid.header.last_offset_delta + 1
        position = segment.append(*parts)
        for valid, part in zip(batches, parts, strict=True):
            last_offset = offset + valid.header.last_offset_delta
            segment.index_batch(last_offset, valid.max_timestamp, position, len(part), interval)
            position += len(part)
            offset = last_offset + 1

    def append_raw(self, records: Buffer, *, origin: AppendOrigin = AppendOrigin.REPLICATION) -> AppendResult:
        """Write batches that have their offsets and leader epochs already; both must not go back."""
        if not self._loaded:
            self.load()
        self.env.check()
        headers = validate_raw(records, self._log_end_offset)
        if not headers:
            return AppendResult(-1, -1, -1, self._log_start_offset, False)
        config = self.config
        producers: dict[int, ProducerAppend] | None = None
        completed: list[CompletedTxn] = []
        for header in headers:
            if header.producer_id >= 0:
                if producers is None:
                    producers = {}
                self._stage_producer(
                    records, header, header.base_offset, header.max_timestamp, origin, producers, completed
                )
        first, last = headers[0].base_offset, headers[-1].last_offset
        try:
            now = self.env.clock.now_ms()
            max_timestamp = max(header.max_timestamp for header in headers)
            segment = self._maybe_roll(len(records), max_timestamp, last, now, first)
            position = segment.append(records)
            for header in headers:
                segment.index_batch(
                    header.last_offset,
                    header.max_timestamp,
                    position + header.position,
                    header.size,
                    config.index_interval_bytes,
                )
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            self._appended(last + 1, segment, producers, completed)
        except OSError as error:
            raise self.env.fail(error) from error
        return AppendResult(first, last, -1, self._log_start_offset, False)

    def append_marker(
        self,
        control_type: ControlType,
        leader_epoch: int,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int = 0,
    ) -> AppendResult:
        """Write the control batch that commits or aborts a producer's transaction here."""
        batch = build_end_transaction_marker(
            control_type,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.env.clock.now_ms(),
        )
        return self.append_as_leader(
            batch, leader_epoch, origin=AppendOrigin.COORDINATOR, transaction_version=transaction_version
        )

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has an open transaction here in that epoch."""
        if not self._loaded:
            self.load()
        entry = self.producers.producers.get(producer_id)
        return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch

    def _stage_producer(
        self,
        buffer: Buffer,
        header: BatchHeader,
        base_offset: int,
        max_timestamp: int,
        origin: AppendOrigin,
        producers: dict[int, ProducerAppend],
        completed: list[CompletedTxn],
        verified: bool = True,
        supports_epoch_bump: bool = False,
        transaction_version: int = 0,
    ) -> AppendResult | None:
        """Check a producer's batch; the result if it is one that the log has already."""
        producer_id = header.producer_id
        if origin is AppendOrigin.CLIENT:
            entry = self.producers.producers.get(producer_id)
            if entry is not None:
                known = entry.find_duplicate(header.producer_epoch, header.base_sequence, header.last_sequence)
                if known is not None:
                    return AppendResult(
                        known.first_offset, known.last_offset, known.timestamp, self._log_start_offset, True
                    )
        if (
            not verified
            and header.is_transactional
            and not header.is_control
            and not self.has_ongoing_transaction(producer_id, header.producer_epoch)
        ):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction.")
        append = producers.get(producer_id)
        if append is None:
            append = producers[producer_id] = self.producers.prepare(
                producer_id, origin, supports_epoch_bump=supports_epoch_bump
            )
        if header.is_control:
            marker = read_marker(buffer, header)
            if marker is not None:
                done = append.append_marker(
                    marker[0], header.producer_epoch, base_offset, marker[1], transaction_version
                )
                if done is not None:
                    completed.append(done)
        else:
            append.append_data(header, base_offset, max_timestamp)
        return None

    def _appended(
        self,
        log_end_offset: int,
        segment: Segment,
        producers: dict[int, ProducerAppend] | None,
        completed: list[CompletedTxn],
    ) -> None:
        self._log_end_offset = log_end_offset
        state = self.producers
        if producers is not None:
            for append in producers.values():
                state.update(append)
            for transaction in completed:
                self.finish_transaction(segment, transaction)
        state.map_end_offset = log_end_offset
        if not self._hold_high_watermark:
            self._set_high_watermark(log_end_offset)
        if log_end_offset - self.recovery_point >= self.config.flush_messages:
            self.flush()

    def finish_transaction(self, segment: Segment, completed: CompletedTxn) -> None:
        """Close a transaction whose marker is in `segment`; an aborted one goes into the index."""
        if completed.aborted:
            stable = self.producers.last_stable_after(completed)
            entry = AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
            segment.add_aborted(entry)
            if not self.txn_bases or self.txn_bases[-1] != segment.base_offset:
                self.txn_bases.append(segment.base_offset)
        self.producers.complete(completed, self._high_watermark)

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self.producers.on_high_watermark(offset)
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)

    # Rolling -----------------------------------------------------------------------------------------------------

    def _maybe_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, first_offset: int | None = None
    ) -> Segment:
        segment = self._segments[-1]
        config = self.config
        taken = segment.size
        if taken + size > config.segment_bytes:
            return self._roll(first_offset)
        if taken:
            first_timestamp = segment.first_timestamp()
            waited = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - segment.created_ms
            if waited > config.max_segment_ms - segment.jitter_ms:
                return self._roll(first_offset)
        if segment.is_index_full(config) or not segment.can_hold(last_offset):
            return self._roll(first_offset)
        return segment

    def roll(self, next_offset: int | None = None) -> Segment:
        """Close the active segment and begin another at the log's end (or at a later `next_offset`)."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return self._roll(next_offset)
        except OSError as error:
            raise self.env.fail(error) from error

    def _roll(self, next_offset: int | None) -> Segment:
        base = max(self._log_end_offset, next_offset or 0)
        old = self._segments[-1]
        if old.base_offset == base and old.size == 0:
            return old
        old.deactivate()
        self.producers.map_end_offset = base
        snapshot = self._snapshot_at_roll()
        segment = Segment.create(self.env, self._folder, base)
        segment.activate(self.config)
        self._segments.append(segment)
        self.bases.append(base)
        self._new_names = True
        self._flush_before(base, snapshot)
        return segment

    def take_snapshot(self, *, sync: bool = False) -> str | None:
        """Write the producers' state as of the log's end, if no snapshot has it yet; its path."""
        offset = self.producers.map_end_offset
        newest = self.snapshots[-1] if self.snapshots else self.bases[0] if self.bases else 0
        if offset <= newest:
            return None
        path = self.snapshot_path(offset)
        self.producers.snapshot = None
        self.env.write_file(path, self.producers.encode_snapshot(), sync=sync)
        self.snapshots.append(offset)
        return path

    def _snapshot_at_roll(self) -> str | None:
        """Write a producer snapshot and return its path; with many producers, begin to write it in pieces.

        A roll during that has no snapshot of its own: recovery takes the one before, and replays from there.
        """
        if len(self.producers.producers) <= INLINE_PRODUCERS or self.env.immediate:
            return self.take_snapshot()
        if self.producers.snapshot is None:
            self.producers.begin_snapshot()
            self.env.clock.call_soon(self._continue_snapshot, self.producers.snapshot)
        return None

    def _continue_snapshot(self, snapshot: SnapshotInProgress) -> None:
        if self.producers.snapshot is not snapshot or self.env.failure is not None:
            return  # the log was closed, truncated or moved
        if snapshot.encode_some(INLINE_PRODUCERS):
            self.env.clock.call_soon(self._continue_snapshot, snapshot)
            return
        self.producers.snapshot = None
        newest = self.snapshots[-1] if self.snapshots else self.bases[0]
        if snapshot.offset <= newest:
            return
        path = self.snapshot_path(snapshot.offset)
        try:
            self.env.write_file(path, snapshot.encoded())
            self.snapshots.append(snapshot.offset)
            files = self._open_all([path])
        except OSError as error:
            self.env.fail(error)
            return

        def synced(error: OSError | None) -> None:
            for file in files:
                file.close()
            if error is not None:
                self.env.fail(error)

        self.env.disk.sync(files, synced)

    def move_to(self, folder: str) -> None:
        """Rename the log's folder; a producer snapshot in progress is given up."""
        self.producers.snapshot = None
        super().move_to(folder)

    # Durability --------------------------------------------------------------------------------------------------

    def mark_durable(self, offset: int) -> None:
        """What is below `offset` survives a power loss; a high watermark that was held back moves up to it."""
        if offset > self._durable_offset:
            self._durable_offset = offset
            if self._hold_high_watermark and offset > self._high_watermark:
                self._set_high_watermark(min(offset, self._log_end_offset))

    def flush(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Make what is appended so far durable, without blocking; `done` is called on the loop when it is.

        A failure takes the directory offline: a second fsync that succeeds would prove nothing.
        """
        if not self._loaded:
            self.load()
        self.env.check()
        target = self._log_end_offset
        if target <= self._durable_offset:
            if done is not None:
                self.env.clock.call_soon(done, None)
            return
        try:
            self._sync_names()
            pinned = [(segment, segment.pin()) for segment in self.segments_from(self._durable_offset)]
        except OSError as error:
            raise self.env.fail(error) from error

        def finished(error: OSError | None) -> None:
            for segment, entry in pinned:
                segment.unpin(entry)
            if error is not None:
                self.env.fail(error)
            elif self.env.failure is None:
                self.mark_durable(target)
                self.last_flushed_ms = self.env.clock.now_ms()
            if done is not None:
                done(error)

        self.env.disk.sync([entry.file for _, entry in pinned], finished)

    def sync_now(self) -> None:
        """Make what is appended so far durable and wait for it: for the rare record that everything else rests on."""
        self.env.check()
        try:
            self._sync_names()
            for segment in self.segments_from(self._durable_offset):
                entry = segment.pin()
                try:
                    entry.file.sync()
                finally:
                    segment.unpin(entry)
        except OSError as error:
            raise self.env.fail(error) from error
        self.mark_durable(self._log_end_offset)

    def flush_closed(self) -> None:
        """Make the closed segments durable behind the scenes, if they are not."""
        if self.recovery_point < self.active_segment.base_offset:
            self.env.check()
            try:
                self._flush_before(self.active_segment.base_offset, None)
            except OSError as error:
                raise self.env.fail(error) from error

    def _flush_before(self, offset: int, snapshot: str | None) -> None:
        """Make the closed segments durable behind the scenes; then recovery need not look at them again."""
        paths = [path for s in self.segments_between(self.recovery_point, offset) for path in s.paths_to_sync()]
        if snapshot is not None:
            paths.append(snapshot)
        self._write_epochs()
        files = self._open_all(paths)

        def finished(error: OSError | None) -> None:
            for file in files:
                file.close()
            if error is None and self.env.failure is None:
                try:
                    self.env.disk.sync_dir(self._folder)
                except OSError as failed:
                    error = failed
            if error is not None:
                self.env.fail(error)
            elif self.env.failure is None:
                self.mark_durable(offset)
                self.recovery_point = max(self.recovery_point, min(offset, self._log_end_offset))

        self.env.disk.sync(files, finished)

    def write_derived_files(self) -> list[str]:
        """Write producer snapshot, indexes and leader epochs, and return the files to fsync before a clean stop."""
        if not self._loaded:
            return []
        self.env.check()
        try:
            snapshot = self.take_snapshot()
            self._segments[-1].write_indexes()
            self._write_epochs()
        except OSError as error:
            raise self.env.fail(error) from error
        if self.recovery_point >= self._log_end_offset and not self._new_names:
            return []
        paths = [p for s in self.segments_from(self.recovery_point) for p in s.paths_to_sync()]
        return paths if snapshot is None else [*paths, snapshot]

    def sync_files(self, paths: list[str]) -> None:
        """Fsync files of this log and the names in its folder, and wait for it."""
        try:
            for file in self._open_all(paths):
                try:
                    file.sync()
                finally:
                    file.close()
            self.env.disk.sync_dir(self._folder)
        except OSError as error:
            raise self.env.fail(error) from error

    def finish_flush(self) -> None:
        """Move the recovery point to the log end offset: all that `write_derived_files` returned is durable."""
        if self._loaded:
            self._new_names = False
            self.mark_durable(self._log_end_offset)
            self.recovery_point = self._log_end_offset

    def flush_now(self) -> None:
        """Make everything durable and wait for it, indexes included."""
        paths = self.write_derived_files()
        if paths:
            self.sync_files(paths)
        self.finish_flush()

    def close(self) -> None:
        """Stop cleanly: everything is durable and the next start needs no scan."""
        self.producers.snapshot = None
        if self.env.failure is None:
            self.flush_now()
        self.close_files()

    # Epochs ------------------------------------------------------------------------------------------------------

    def _write_epochs(self) -> None:
        if self.epochs.dirty:
            path = f"{self._folder}/{LEADER_EPOCH_CHECKPOINT}"
            if self._log_end_offset == 0 and not self.env.disk.exists(path):
                return  # epochs without records carry nothing: a stop with thousands of empty logs writes no files
            self.env.write_file(path, encode_epochs(self.epochs.entries()), sync=self.env.sync)
            self.epochs.dirty = False

    def start_epoch(self, leader_epoch: int) -> None:
        """This replica leads in a new epoch, which begins at the log's end, whether or not anything is written."""
        if self._loaded:
            self.epochs.assign(leader_epoch, self._log_end_offset)
        else:
            self._starting_epoch = leader_epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """The largest epoch not above the asked one and where it ends; (-1, -1) if that is not known."""
        if not self._loaded:
            self.load()
        return self.epochs.end_offset_for(leader_epoch, self._log_end_offset)

    # Reading -----------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_bound: int | None = None,
        *,
        min_one_batch: bool = True,
        aborted: bool = False,
    ) -> LogRead:
        """The batches from an offset on, up to `max_bytes` and below `upper_bound` (the high watermark if None)."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return reading.read(
                self,
                offset,
                max_bytes,
                self._high_watermark if upper_bound is None else upper_bound,
                min_one_batch=min_one_batch,
                aborted=aborted,
            )
        except OSError as error:
            raise self.env.fail(error) from error

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that overlap [start, end)."""
        if not self._loaded:
            self.load()
        try:
            return reading.aborted_transactions(self, start, end)
        except OSError as error:
            raise self.env.fail(error) from error

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """What ListOffsets asks: the first record at or after a time, or one of its special timestamps."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return reading.offset_for_timestamp(self, timestamp)
        except OSError as error:
            raise self.env.fail(error) from error

    # What goes away ----------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> bool:
        """DeleteRecords: nothing below `offset` is readable any more. Segments go with the next retention run."""
        if not self._loaded:
            self.load()
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Log start offset {offset} would be above the high watermark {self._high_watermark}.",
            )
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs.truncate_from_start(offset)
        return True

    def delete_old_segments(self) -> int:
        """Apply retention (and the log start offset) and return how many segments went."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return retention.delete_old_segments(self)
        except OSError as error:
            raise self.env.fail(error) from error

    # Truncation --------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Drop everything from an offset on; False if the log ends before it."""
        if not self._loaded:
            self.load()
        self.env.check()
        if offset >= self._log_end_offset:
            self.epochs.truncate_from_end(self._log_end_offset)
            return False
        if offset < self.bases[0]:
            self.truncate_fully_and_start_at(offset)
            return True
        try:
            gone = [segment for segment in self._segments if segment.base_offset > offset]
            if gone:
                self.remove_segments(gone)
                self._segments[-1].activate(self.config)
            self._segments[-1].truncate_to(offset)
            self.epochs.truncate_from_end(offset)
            self._log_start_offset = min(self._log_start_offset, offset)
            self._log_end_offset = offset
            self._lower_marks(offset)
            recovery.rebuild_producer_state(self, offset)
        except OSError as error:
            raise self.env.fail(error) from error
        return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything and go on at an offset."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            self.remove_segments(list(self._segments))
            segment = Segment.create(self.env, self._folder, offset)
            segment.activate(self.config)
            self.replace_segment_list([segment])
            self._new_names = True
            for snapshot in list(self.snapshots):
                self.discard_snapshot(snapshot)
            self.epochs.clear()
            self.producers.clear(offset)
            self._log_start_offset = offset if log_start_offset is None else log_start_offset
            self._log_end_offset = offset
            self._lower_marks(offset)
            if self._high_watermark < offset:
                self._set_high_watermark(offset)
        except OSError as error:
            raise self.env.fail(error) from error

    def _lower_marks(self, offset: int) -> None:
        self.recovery_point = min(self.recovery_point, offset)
        self._durable_offset = min(self._durable_offset, offset)
        if self._high_watermark > offset:
            self._set_high_watermark(offset)
