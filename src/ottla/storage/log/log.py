"""One partition's log (Kafka's UnifiedLog): its offsets, its leader epochs, and how it is opened and read.

Appends, rolls, flushes and truncations are in modules of their own; `recovery` opens a log after an unclean stop. One
event loop owns the log; threads may read closed segments only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.checkpoints import encode_epochs
from ottla.storage.errors import CorruptLogError
from ottla.storage.log import appending, flushing, reading, recovery, retention, rolling, truncation
from ottla.storage.log.files import LogFiles
from ottla.storage.log.leader_epochs import LeaderEpochCache
from ottla.storage.log.producer_state import ProducerState
from ottla.storage.names import LEADER_EPOCH_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.records.validate import LogRules
    from ottla.storage.config import LogConfig
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.log.indexes import AbortedTxn
    from ottla.storage.log.recovery import RecoveryReport
    from ottla.storage.log.segment import Segment
    from ottla.storage.log.slices import LogRead, TimestampOffset
    from ottla.storage.names import TopicPartition


class Log(LogFiles):
    """The records of one partition from the log start offset to the log end offset (Kafka's UnifiedLog).

    Opening a log after a clean stop reads file names only.
    """

    __slots__ = (
        "_client_rules",
        "_durable_offset",
        "_high_watermark",
        "_hold_high_watermark",
        "_loaded",
        "_log_end_offset",
        "_log_start_offset",
        "_reported_damage",
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
        self.producers = ProducerState(env.producer_expiration_ms)
        self._hold_high_watermark = hold_high_watermark
        self._log_start_offset = log_start_offset
        self._log_end_offset = 0
        self._high_watermark = 0
        self._durable_offset = 0
        self._loaded = False
        self._reported_damage = False
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
        """Open the log in a folder, or create an empty one there.

        After a clean stop this reads file names only, and the rest on first use. After an unclean stop it recovers the
        log and sets `report`. `hold_high_watermark` keeps the high watermark at the durable offset. `may_have_gaps`
        marks a log that is or was compacted; in any other log, offsets missing between two segments are damage, because
        a power loss has cut off the end of a segment.
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
        """Return whether the log never held a record, so that there is nothing to recover."""
        base = self.bases[0]
        return (
            len(self.bases) == 1
            and not self.snapshots
            and self.recovery_point <= base
            and self._log_start_offset <= base
            and self._segments[0].has_empty_files()
        )

    def load(self) -> None:
        """Read what `open` deferred: the log end offset, producer state and leader epochs."""
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
        """Set the log end offset that recovery found, and make the log ready for appends."""
        self._log_end_offset = self._high_watermark = self._durable_offset = log_end_offset
        self.recovery_point = min(self.recovery_point, log_end_offset)
        active = self._segments[-1]
        active.activate(self.config)
        self._loaded = True
        self.epochs.assign(self._starting_epoch, log_end_offset)

    def set_log_start(self, offset: int) -> None:
        """Set the log start offset that recovery found."""
        self._log_start_offset = offset

    # Offsets -----------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """Whether anything but file names has been read."""
        return self._loaded

    @property
    def checkpointed_high_watermark(self) -> int:
        """The high watermark for the checkpoint; the recovery point of a log that was not loaded, because it was
        flushed.
        """
        return self._high_watermark if self._loaded else self.recovery_point

    @property
    def log_start_offset(self) -> int:
        """The first offset that consumers can read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        if not self._loaded:
            self.load()
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which all consumers may read."""
        if not self._loaded:
            self.load()
        return self._high_watermark

    @property
    def durable_offset(self) -> int:
        """The offset below which every record was fsynced, or was there when the log was opened."""
        if not self._loaded:
            self.load()
        return self._durable_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided: the limit of read_committed consumers."""
        if not self._loaded:
            self.load()
        first = self.producers.first_unstable_offset
        if first is None or first >= self._high_watermark:
            return self._high_watermark
        return max(first, self._log_start_offset)

    @property
    def active_segment(self) -> Segment:
        """The segment that takes appends."""
        if not self._loaded:
            self.load()
        return self._segments[-1]

    def _set_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self.producers.on_high_watermark(offset)
        if self.on_high_watermark is not None:
            self.on_high_watermark(self)

    def move_to(self, folder: str) -> None:
        """Rename the log's folder, and cancel a producer snapshot in progress."""
        self.producers.snapshot = None
        super().move_to(folder)

    # Durability --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable and close the files, so that the next start needs no recovery."""
        self.producers.snapshot = None
        if self.env.failure is None:
            self.flush_now()
        self.close_files()

    # Methods that other modules of this package define.

    append_as_leader = appending.append_as_leader
    append_raw = appending.append_raw
    append_marker = appending.append_marker
    validation_ahead = appending.validation_ahead
    has_ongoing_transaction = appending.has_ongoing_transaction
    finish_transaction = appending.finish_transaction
    roll = rolling.roll
    take_snapshot = rolling.take_snapshot
    mark_durable = flushing.mark_durable
    flush = flushing.flush
    flush_closed = flushing.flush_closed
    flush_now = flushing.flush_now
    sync_now = flushing.sync_now
    write_derived_files = flushing.write_derived_files
    sync_files = flushing.sync_files
    finish_flush = flushing.finish_flush
    truncate_to = truncation.truncate_to
    truncate_fully_and_start_at = truncation.truncate_fully_and_start_at

    # Epochs ------------------------------------------------------------------------------------------------------

    def _write_epochs(self) -> None:
        if self.epochs.dirty:
            path = f"{self._folder}/{LEADER_EPOCH_CHECKPOINT}"
            if self._log_end_offset == 0 and not self.env.disk.exists(path):
                return  # an empty log has no epochs to keep: stopping with thousands of them writes no files
            self.env.write_file(path, encode_epochs(self.epochs.entries()), sync=self.env.sync)
            self.epochs.dirty = False

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leader epoch at the log end offset, whether or not anything is appended in it."""
        if self._loaded:
            self.epochs.assign(leader_epoch, self._log_end_offset)
        else:
            self._starting_epoch = leader_epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above the given one and its end offset; (-1, -1) if unknown."""
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
        """Return the batches from an offset on, up to `max_bytes` and below `upper_bound` (default: the high
        watermark).
        """
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
        except CorruptLogError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.env.fail(error) from error

    def _corrupt(self, error: CorruptLogError) -> KafkaError:
        """Report a damaged segment once, and return the error that Kafka answers."""
        if not self._reported_damage:
            self._reported_damage = True
            self.env.report(f"{self._folder}: {error}; `ottla log verify {self._folder}` shows what can be read")
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self.topic_partition}: {error}.")

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [start, end)."""
        if not self._loaded:
            self.load()
        try:
            return reading.aborted_transactions(self, start, end)
        except CorruptLogError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.env.fail(error) from error

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """Return the first record at or after a timestamp, or what a special timestamp of ListOffsets names."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return reading.offset_for_timestamp(self, timestamp)
        except CorruptLogError as error:
            raise self._corrupt(error) from error
        except OSError as error:
            raise self.env.fail(error) from error

    # What goes away ----------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> bool:
        """Move the log start offset up (DeleteRecords); the next retention run deletes segments below it."""
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
        """Delete segments by retention and log start offset; return how many."""
        if not self._loaded:
            self.load()
        self.env.check()
        try:
            return retention.delete_old_segments(self)
        except CorruptLogError as error:
            self._corrupt(error)
            return 0
        except OSError as error:
            raise self.env.fail(error) from error
