"""Flushes a log: fsync in the background or in the foreground, and the recovery point.

The functions of this module are methods of `Log`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.storage.errors import CorruptLogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log

logger = logging.getLogger(__name__)


def mark_durable(log: Log, offset: int) -> None:
    """Note that everything below `offset` is fsynced; move a high watermark that waits for that."""
    if offset > log._durable_offset:
        log._durable_offset = offset
        if log._hold_high_watermark and offset > log._high_watermark:
            log._set_high_watermark(min(offset, log._log_end_offset))


def flush(log: Log, done: Callable[[OSError | None], None] | None = None) -> None:
    """Fsync what is appended so far, without blocking; call `done` on the loop afterwards.

    A failure takes the directory offline: a second fsync that succeeds proves nothing.
    """
    if not log._loaded:
        log.load()
    log.env.check()
    target = log._log_end_offset
    if target <= log._durable_offset:
        if done is not None:
            log.env.clock.call_soon(done, None)
        return
    try:
        log._sync_names()
        pinned = [(segment, segment.pin()) for segment in log.segments_from(log._durable_offset)]
    except OSError as error:
        raise log.env.fail(error) from error

    def finished(error: OSError | None) -> None:
        for segment, entry in pinned:
            segment.unpin(entry)
        if error is not None:
            log.env.fail(error)
        elif log.env.failure is None:
            log.mark_durable(target)
            log.last_flushed_ms = log.env.clock.now_ms()
        if done is not None:
            done(error)

    log.env.disk.sync([entry.file for _, entry in pinned], finished)


def sync_now(log: Log) -> None:
    """Fsync what is appended so far and wait for it: for metadata records, which are replayed only once durable."""
    log.env.check()
    try:
        log._sync_names()
        for segment in log.segments_from(log._durable_offset):
            entry = segment.pin()
            try:
                entry.file.sync()
            finally:
                segment.unpin(entry)
    except OSError as error:
        raise log.env.fail(error) from error
    log.mark_durable(log._log_end_offset)


def flush_closed(log: Log) -> None:
    """Fsync closed segments in the background, if that was not done."""
    if log.recovery_point < log.active_segment.base_offset:
        log.env.check()
        try:
            flush_before(log, log.active_segment.base_offset, None)
        except OSError as error:
            raise log.env.fail(error) from error


def flush_before(log: Log, offset: int, snapshot: str | None) -> None:
    """Fsync closed segments below `offset` in the background, then move the recovery point there."""
    paths = [path for s in log.segments_between(log.recovery_point, offset) for path in s.paths_to_sync()]
    if snapshot is not None:
        paths.append(snapshot)
    log._write_epochs()
    files = log._open_all(paths)

    def finished(error: OSError | None) -> None:
        for file in files:
            file.close()
        if error is None and log.env.failure is None:
            try:
                log.env.disk.sync_dir(log._folder)
            except OSError as failed:
                error = failed
        if error is not None:
            log.env.fail(error)
        elif log.env.failure is None:
            log.mark_durable(offset)
            log.recovery_point = max(log.recovery_point, min(offset, log._log_end_offset))

    log.env.disk.sync(files, finished)


def write_derived_files(log: Log) -> list[str]:
    """Write producer snapshot, indexes and leader epochs, and return the files to fsync before a clean stop."""
    if not log._loaded:
        return []
    log.env.check()
    try:
        snapshot = log.take_snapshot()
        try:
            log._segments[-1].write_indexes()
        except CorruptLogError as error:  # a damaged log must not keep the directory from closing
            logger.warning("%s: indexes are not written: %s; run ottla log verify", log.topic_partition, error)
        log._write_epochs()
    except OSError as error:
        raise log.env.fail(error) from error
    if log.recovery_point >= log._log_end_offset and not log._new_names:
        return []
    paths = [p for s in log.segments_from(log.recovery_point) for p in s.paths_to_sync()]
    return paths if snapshot is None else [*paths, snapshot]


def sync_files(log: Log, paths: list[str]) -> None:
    """Fsync files of this log and the names in its folder, and wait for it."""
    try:
        for file in log._open_all(paths):
            try:
                file.sync()
            finally:
                file.close()
        log.env.disk.sync_dir(log._folder)
    except OSError as error:
        raise log.env.fail(error) from error


def finish_flush(log: Log) -> None:
    """Move the recovery point to the log end offset: all that `write_derived_files` returned is durable."""
    if log._loaded:
        log._new_names = False
        log.mark_durable(log._log_end_offset)
        log.recovery_point = log._log_end_offset


def flush_now(log: Log) -> None:
    """Fsync everything, indexes included, and wait for it."""
    paths = log.write_derived_files()
    if paths:
        log.sync_files(paths)
    log.finish_flush()
