"""One of `log.dirs` (Kafka's LogManager for one directory): lock, logs, checkpoints, cleaning, disk failure.

The caller supplies topic configs and decides about stray partitions. `cluster.metadata` owns `meta.properties`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage import names
from ottla.storage.checkpoints import (
    CorruptCheckpointError,
    decode_clean_shutdown,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_offsets,
    encode_partition_metadata,
)
from ottla.storage.cleaner import compaction
from ottla.storage.config import LogConfig
from ottla.storage.environment import StorageEnvironment
from ottla.storage.errors import CleaningAbortedError, CorruptLogError
from ottla.storage.log.log import Log
from ottla.storage.open_files import DEFAULT_LIMIT
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from ottla.protocol.uuids import Uuid
    from ottla.storage.cleaner.compaction import Cleanable
    from ottla.storage.log.recovery import RecoveryReport
    from ottla.storage.names import TopicPartition
    from ottla.world.clock import Clock
    from ottla.world.disk import Disk, Lock
    from ottla.world.random import Random


# With more unflushed logs than this, a clean shutdown syncs the file system once instead of each file.
_SYNC_TREE_FROM = 64


class LogDirectory:
    """The logs of one log directory. `open` takes the lock; `close` is a clean shutdown."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        random: Random,
        path: str,
        *,
        sync: bool = False,
        max_open_files: int = DEFAULT_LIMIT,
        on_failure: Callable[[LogDirectory, OSError], None] | None = None,
    ) -> None:
        self.path = path.rstrip("/") or "/"
        self.sync = sync
        self.env = StorageEnvironment(
            disk,
            clock,
            random,
            sync=sync,
            max_open_files=max_open_files,
            on_failure=lambda error: on_failure(self, error) if on_failure is not None else None,
        )
        self.logs: dict[TopicPartition, Log] = {}
        self.future_logs: dict[TopicPartition, Log] = {}
        self.strays: list[str] = []
        self.unclaimed: list[str] = []
        self.flushed_offsets: dict[TopicPartition, int] = {}
        self.reports: list[RecoveryReport] = []
        self.had_clean_shutdown = False
        self.previous_broker_epoch: int | None = None
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self._empty_checkpoints: list[str] = []
        self.uncleanable: dict[TopicPartition, str] = {}
        self._lock: Lock | None = None
        self._foreign = False
        self._written: dict[str, bytes] = {}
        self._order: dict[str, list[TopicPartition]] = {}

    @property
    def online(self) -> bool:
        """Whether the directory is online: no write or fsync has failed."""
        return self.env.failure is None

    @property
    def is_open(self) -> bool:
        """Whether this object holds the lock, between `open` and `close`."""
        return self._lock is not None

    def file(self, name: str) -> str:
        """Return the path of a name in this directory."""
        return f"{self.path}/{name}"

    # Start and shutdown ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the folder if needed and take its lock; `BlockingIOError` if another broker holds it."""
        self.env.disk.make_dirs(self.path)
        self._lock = self.env.disk.lock(self.file(names.LOCK_FILE))

    def clean_shutdown_epoch(self) -> int | None:
        """Return the broker epoch in the clean shutdown file; None without such a file."""
        try:
            return decode_clean_shutdown(self.env.disk.read(self.file(names.CLEAN_SHUTDOWN_FILE)))
        except FileNotFoundError:
            return None

    def load(
        self,
        config_for: Callable[[str], LogConfig] = lambda topic: LogConfig(),
        *,
        is_stray: Callable[[TopicPartition, Uuid | None], bool] | None = None,
        keep_strays: bool = False,
        topic_id_for: Callable[[str], Uuid | None] = lambda topic: None,
    ) -> list[RecoveryReport]:
        """Open the log of every partition in this directory, as Kafka's LogManager does, and return recovery reports.

        After an unclean shutdown each log is recovered. The metadata log is not loaded here. Folders marked `-delete`
        are removed. Stray partitions are renamed to `-stray`; with `keep_strays` they stay where they are, unopened, in
        `unclaimed`. A missing or damaged `partition.metadata` is rewritten with the id from `topic_id_for`. This may
        run in a thread while nothing else uses the directory.
        """
        self.env.immediate = True
        try:
            return self._load(config_for, is_stray, keep_strays, topic_id_for)
        except OSError as error:
            raise self.env.fail(error) from error
        finally:
            self.env.immediate = False

    def _load(
        self,
        config_for: Callable[[str], LogConfig],
        is_stray: Callable[[TopicPartition, Uuid | None], bool] | None,
        keep_strays: bool,
        topic_id_for: Callable[[str], Uuid | None],
    ) -> list[RecoveryReport]:
        disk = self.env.disk
        marker = self.file(names.CLEAN_SHUTDOWN_FILE)
        self.had_clean_shutdown = disk.exists(marker)
        if self.had_clean_shutdown:
            self.previous_broker_epoch = decode_clean_shutdown(disk.read(marker))
            disk.remove(marker)
            disk.sync_dir(
                self.path
            )  # otherwise a power loss could restore the clean shutdown file for logs that were written to
        self._make_checkpoints()
        recovery_points = self._read_checkpoint(names.RECOVERY_POINT_CHECKPOINT)
        start_offsets = self._read_checkpoint(names.LOG_START_CHECKPOINT)
        self.cleaner_offsets = self._read_checkpoint(names.CLEANER_CHECKPOINT)
        high_watermarks = self._read_checkpoint(names.REPLICATION_CHECKPOINT)
        self._drop_impossible_starts(start_offsets, recovery_points, high_watermarks)
        self.flushed_offsets = recovery_points
        configs: dict[str, LogConfig] = {}
        for name in disk.list(self.path):
            parsed = names.parse_partition_dir(name)
            if parsed is None or parsed.topic_partition.topic == names.METADATA_TOPIC:
                continue
            folder = self.file(name)
            partition = parsed.topic_partition
            if parsed.mark == names.DELETE_DIR_SUFFIX:
                disk.remove_tree(folder)
                continue
            if parsed.mark == names.STRAY_DIR_SUFFIX:
                self.strays.append(name)
                continue
            if not disk.is_dir(folder):
                continue
            topic_id = self._read_topic_id(folder)
            if is_stray is not None and is_stray(partition, topic_id):
                if keep_strays:
                    self.unclaimed.append(name)
                    continue
                stray = names.marked_dir_name(partition, self._unique(), names.STRAY_DIR_SUFFIX)
                disk.rename(folder, self.file(stray))
                self.strays.append(stray)
                continue
            config = configs.get(partition.topic)
            if config is None:
                config = configs[partition.topic] = config_for(partition.topic)
            log = Log.open(
                self.env,
                folder,
                partition,
                config,
                log_start_offset=start_offsets.get(partition, 0),
                recovery_point=recovery_points.get(
                    partition, high_watermarks.get(partition, 0) if self.had_clean_shutdown else 0
                ),
                clean=self.had_clean_shutdown,
                hold_high_watermark=self.sync,
                may_have_gaps=self._foreign or config.compact or partition in self.cleaner_offsets,
            )
            self._check_high_watermark(log, high_watermarks.get(partition, 0))
            if log.report is not None:
                self.reports.append(log.report)
            if topic_id is None and (known_id := topic_id_for(partition.topic)) is not None:
                self._write_topic_id(folder, known_id)
                self.env.report(
                    f"{folder}/{names.PARTITION_METADATA}: missing or unreadable; rewritten with topic id {known_id}"
                )
            if parsed.mark == names.FUTURE_DIR_SUFFIX:
                self.future_logs[partition] = log
            else:
                self.logs[partition] = log
        if any(log.segments[-1].base_offset or log.segments[-1].size for log in self.logs.values() if log.segments):
            for name in self._empty_checkpoints:
                self.env.report(f"{self.file(name)}: empty, although the shutdown was clean; written again")
        return self.reports

    def _check_high_watermark(self, log: Log, high_watermark: int) -> None:
        """Report a recovered log that ends before its checkpointed high watermark: visible records are lost."""
        if log.loaded and log.log_end_offset < high_watermark and not (log.report and log.report.losses()):
            self.env.report(
                f"{log.folder}: the log ends at offset {log.log_end_offset}, but its high watermark in "
                f"{names.REPLICATION_CHECKPOINT} is {high_watermark}; the records between are lost"
            )

    def _drop_impossible_starts(
        self,
        start_offsets: dict[TopicPartition, int],
        recovery_points: dict[TopicPartition, int],
        high_watermarks: dict[TopicPartition, int],
    ) -> None:
        """Ignore log start offsets beyond the recovery point or the high watermark, which would hide all records.

        A log's start never passes either of them, so the file was damaged or exchanged for another one.
        """
        path = self.file(names.LOG_START_CHECKPOINT)
        for partition, start in list(start_offsets.items()):
            limits = [offsets.get(partition, 0) for offsets in (recovery_points, high_watermarks) if offsets]
            if start < 0 or start > min(limits, default=start):
                del start_offsets[partition]
                self.env.report(f"{path}: ignored log start offset {start} of {partition}, which is beyond its log")

    def _make_checkpoints(self) -> None:
        """Create missing checkpoint files empty, as Kafka does.

        A directory without any of them was put together by hand or by a tool: its logs may have gaps.
        """
        missing = [name for name in names.CHECKPOINTS if not self.env.disk.exists(self.file(name))]
        self._foreign = len(missing) == len(names.CHECKPOINTS)
        for name in missing:
            self.env.write_file(self.file(name), b"")
        if missing:
            self.env.disk.sync_dir(self.path)
        if 0 < len(missing) < len(names.CHECKPOINTS):  # a new directory lacks all of them
            for name in missing:
                self.env.report(f"{self.file(name)}: missing; created empty, its offsets are found in the logs")

    def close(self, broker_epoch: int = -1) -> None:
        """Shut down cleanly: flush logs, write checkpoints and the clean shutdown file, release the lock."""
        try:
            if self.online:
                self._close_logs(broker_epoch)
        except OSError as error:
            raise self.env.fail(error) from error
        finally:
            self.env.files.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _close_logs(self, broker_epoch: int) -> None:
        self.env.run_all_now()
        logs = [*self.logs.values(), *self.future_logs.values()]
        unflushed = [(log, paths) for log in logs if (paths := log.write_derived_files())]
        if len(unflushed) > _SYNC_TREE_FROM:
            self.env.disk.sync_tree(self.path)
        else:
            for log, paths in unflushed:
                log.sync_files(paths)
        for log in logs:
            log.finish_flush()
            log.close_files()
        self.checkpoint()
        write_atomic(self.env.disk, self.file(names.CLEAN_SHUTDOWN_FILE), encode_clean_shutdown(broker_epoch))

    def abandon(self) -> None:
        """Release lock and files without a clean shutdown, as if the process had died."""
        self.env.forget_all()
        self.env.files.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # Partitions --------------------------------------------------------------------------------------------------

    def create_log(self, partition: TopicPartition, config: LogConfig, topic_id: Uuid | None = None) -> Log:
        """Create the log of a new partition, or return the open one."""
        self.env.check()
        if partition in self.logs:
            return self.logs[partition]
        folder = self.file(names.partition_dir_name(partition))
        try:
            self._set_aside_foreign_folder(folder, partition, topic_id)
            self.env.disk.make_dirs(folder)
            log = Log.open(self.env, folder, partition, config, clean=False, hold_high_watermark=self.sync)
            if topic_id is not None and self._read_topic_id(folder) is None:
                self._write_topic_id(folder, topic_id)
            if self.sync:
                self.env.disk.sync_dir(folder)
                self.env.disk.sync_dir(self.path)
        except OSError as error:
            raise self.env.fail(error) from error
        self.logs[partition] = log
        return log

    def _set_aside_foreign_folder(self, folder: str, partition: TopicPartition, topic_id: Uuid | None) -> None:
        """Rename a folder that holds another topic's partition of the same name to `-stray`."""
        if topic_id is None or not self.env.disk.exists(folder):
            return
        other_id = self._read_topic_id(folder)
        if other_id is not None and other_id != topic_id:
            stray = names.marked_dir_name(partition, self._unique(), names.STRAY_DIR_SUFFIX)
            self.env.disk.rename(folder, self.file(stray))
            self.strays.append(stray)
            self.env.report(f"{folder}: belongs to topic id {other_id}, not to {topic_id}; renamed to {stray}")

    def create_future_log(self, partition: TopicPartition, config: LogConfig, topic_id: Uuid, start: int) -> Log:
        """Create a future log, which will replace the log in another directory; it begins at offset `start`."""
        self.env.check()
        folder = self.file(names.marked_dir_name(partition, self._unique(), names.FUTURE_DIR_SUFFIX))
        try:
            self.env.disk.make_dirs(folder)
            log = Log.open(
                self.env, folder, partition, config, clean=False, hold_high_watermark=self.sync, may_have_gaps=True
            )
            self._write_topic_id(folder, topic_id)
        except OSError as error:
            raise self.env.fail(error) from error
        if start:
            log.truncate_fully_and_start_at(start)
        self.future_logs[partition] = log
        return log

    def adopt_future_log(self, partition: TopicPartition) -> Log:
        """Make a future log the partition's log."""
        log = self.future_logs.pop(partition)
        try:
            log.move_to(self.file(names.partition_dir_name(partition)))
            self.env.disk.sync_dir(self.path)
        except OSError as error:
            raise self.env.fail(error) from error
        self.logs[partition] = log
        return log

    def drop_future_log(self, partition: TopicPartition) -> None:
        """Delete a future log."""
        log = self.future_logs.pop(partition)
        self._remove_folder(log)

    def topic_id(self, partition: TopicPartition) -> Uuid | None:
        """Return the topic id in a partition's `partition.metadata`; None if the file is missing or damaged."""
        try:
            return self._read_topic_id(self.file(names.partition_dir_name(partition)))
        except OSError as error:
            raise self.env.fail(error) from error

    def _read_topic_id(self, folder: str) -> Uuid | None:
        try:
            return decode_partition_metadata(self.env.disk.read(f"{folder}/{names.PARTITION_METADATA}"))
        except (FileNotFoundError, CorruptCheckpointError):
            return None

    def _write_topic_id(self, folder: str, topic_id: Uuid) -> None:
        data = encode_partition_metadata(topic_id)
        self.env.write_file(f"{folder}/{names.PARTITION_METADATA}", data, sync=self.sync)

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete a partition's log: rename its folder to `-delete` and remove it after `file.delete.delay.ms`.

        In an offline directory the folder stays; the next start finds a stray partition.
        """
        log = self.logs.pop(partition, None)
        if log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not in {self.path}.")
        self.cleaner_offsets.pop(partition, None)
        if not self.online:
            return
        name = names.marked_dir_name(partition, self._unique(), names.DELETE_DIR_SUFFIX)
        try:
            log.move_to(self.file(name))
        except OSError as error:
            raise self.env.fail(error) from error
        self.env.later(log.config.file_delete_delay_ms, lambda: self._remove_folder(log))

    def _remove_folder(self, log: Log) -> None:
        def remove() -> None:
            try:
                self.env.files.drop_under(log.folder)
                if self.env.disk.exists(log.folder):
                    self.env.disk.remove_tree(log.folder)
            except OSError as error:
                self.env.fail(error)

        log.when_unpinned(remove)

    def _unique(self) -> str:
        return self.env.random.bytes(16).hex()

    # Checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write those of the four offset checkpoints that changed."""
        self.env.check()
        recovery_points, high_watermarks, start_offsets = {}, {}, {}
        for partition, log in self.logs.items():
            recovery_points[partition] = log.recovery_point
            high_watermarks[partition] = log.checkpointed_high_watermark
            if log.log_start_offset > log.bases[0]:
                start_offsets[partition] = log.log_start_offset
        try:
            self._write_checkpoint(names.RECOVERY_POINT_CHECKPOINT, recovery_points)
            self._write_checkpoint(names.REPLICATION_CHECKPOINT, high_watermarks)
            self._write_checkpoint(names.LOG_START_CHECKPOINT, start_offsets)
            self._write_checkpoint(names.CLEANER_CHECKPOINT, self.cleaner_offsets)
        except OSError as error:
            raise self.env.fail(error) from error

    def _write_checkpoint(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        known = {partition: offsets[partition] for partition in self._order.get(name, ()) if partition in offsets}
        data = encode_offsets(known | offsets)
        if self._written.get(name) != data:
            write_atomic(self.env.disk, self.file(name), data)
            self._written[name] = data

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Return a checkpoint's offsets; none of a damaged one, whose offsets are found in the logs."""
        try:
            data = self.env.disk.read(self.file(name))
            offsets = decode_offsets(data)
            if not data and self.had_clean_shutdown and name in names.WRITTEN_AT_SHUTDOWN:
                self._empty_checkpoints.append(name)
            self._written[name] = data
            self._order[name] = list(offsets)  # keeps the order of unchanged lines
            return offsets
        except FileNotFoundError:
            return {}
        except CorruptCheckpointError as error:
            self.env.report(f"{self.file(name)}: {error}; ignored, its offsets are found in the logs")
            return {}

    # Compaction --------------------------------------------------------------------------------------------------

    def filthiest(self) -> Cleanable | None:
        """Return the compacted log with the highest dirty ratio above its threshold, or None."""
        now = self.env.clock.now_ms()
        filthiest: Cleanable | None = None
        try:
            for partition, log in self.logs.items():
                if log.config.compact and partition not in self.uncleanable:
                    log.flush_closed()
                    try:
                        candidate = compaction.find_cleanable(log, self.cleaner_offsets.get(partition), now)
                    except CorruptLogError as error:
                        self._mark_uncleanable(log, error)
                        continue
                    if candidate.worth_it and (filthiest is None or candidate.ratio > filthiest.ratio):
                        filthiest = candidate
        except OSError as error:
            raise self.env.fail(error) from error
        return filthiest

    def _mark_uncleanable(self, log: Log, error: Exception) -> None:
        """Exclude a damaged log from compaction until the next start, as Kafka's LogCleanerManager does."""
        self.uncleanable[log.topic_partition] = str(error)
        self.env.report(
            f"{log.folder}: not compacted until the next start: {error}; "
            f"`ottla log verify {log.folder}` shows the damage"
        )

    def cleaned(self, log: Log, end_offset: int) -> None:
        """Checkpoint the cleaned offset of a log and apply its retention."""
        self.cleaner_offsets[log.topic_partition] = end_offset
        try:
            self._write_checkpoint(names.CLEANER_CHECKPOINT, self.cleaner_offsets)
        except OSError as error:
            raise self.env.fail(error) from error
        log.delete_old_segments()

    def cleaning(self) -> Generator[Callable[[], object], Any, int]:
        """Compact all logs above their dirty ratio; yield slow steps and return the number of cleaned logs.

        The caller runs each yielded step, possibly in a thread, and sends its result back (or throws its exception in).
        The code between steps runs on the loop and is short.
        """
        count = 0
        while self.online and (cleanable := self.filthiest()) is not None:
            log = cleanable.log
            try:
                work = compaction.begin(cleanable, self.env.clock.now_ms(), partial(self._is_gone, log))
                yield work.build_map
                for group in work.groups:
                    made = yield partial(work.clean, group)
                    if self.env.failure is not None or not compaction.swap_in(log, made, group):
                        return count
            except CleaningAbortedError:
                return count
            except (CorruptLogError, KafkaError) as error:
                self._mark_uncleanable(log, error)
                continue
            except OSError as error:
                if self._is_gone(log):
                    continue
                raise self.env.fail(error) from error
            if work.end_offset <= cleanable.first_dirty_offset:
                return count
            self.cleaned(log, work.end_offset)
            count += 1
        return count

    def _is_gone(self, log: Log) -> bool:
        return self.logs.get(log.topic_partition) is not log or self.env.failure is not None

    def clean_all(self) -> int:
        """Compact all logs above their dirty ratio in this thread; return the number of cleaned logs."""
        steps = self.cleaning()
        try:
            step = next(steps)
            while True:
                try:
                    made = step()
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(made)
        except StopIteration as end:
            return int(end.value)

    # Housekeeping ------------------------------------------------------------------------------------------------

    def delete_old_segments(self, unloaded: int = 200) -> int:
        """Apply retention to logs that are not compacted; compacted logs are handled after cleaning.

        At most `unloaded` logs that are not loaded yet are checked per call, so that a start with many logs stays fast.
        """
        gone = 0
        for log in list(self.logs.values()):
            if log.config.compact:
                continue
            if not log.loaded:
                if unloaded == 0:
                    continue
                unloaded -= 1
            gone += log.delete_old_segments()
        return gone

    def flush_dirty(self) -> None:
        """Flush the logs whose `flush.ms` has passed since their last flush."""
        now = self.env.clock.now_ms()
        for log in self._loaded_logs():
            if now - log.last_flushed_ms >= log.config.flush_ms:
                log.flush()

    def remove_expired_producers(self) -> None:
        """Remove producers that were inactive for `producer.id.expiration.ms`."""
        now = self.env.clock.now_ms()
        for log in self._loaded_logs():
            log.producers.expiration_ms = self.env.producer_expiration_ms
            log.producers.remove_expired(now)

    def _loaded_logs(self) -> Iterable[Log]:
        return [log for log in self.logs.values() if log.loaded]
