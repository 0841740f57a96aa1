"""Truncates a log (Kafka's UnifiedLog.truncateTo and truncateFullyAndStartAt).

The functions of this module are methods of `Log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.log import recovery
from ottla.storage.log.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log


def truncate_to(log: Log, offset: int) -> bool:
    """Delete all records from an offset on; return False if the log ends before it."""
    if not log._loaded:
        log.load()
    log.env.check()
    if offset >= log._log_end_offset:
        log.epochs.truncate_from_end(log._log_end_offset)
        return False
    if offset < log.bases[0]:
        log.truncate_fully_and_start_at(offset)
        return True
    try:
        gone = [segment for segment in log._segments if segment.base_offset > offset]
        if gone:
            log.remove_segments(gone)
            log._segments[-1].activate(log.config)
        log._segments[-1].truncate_to(offset)
        log.epochs.truncate_from_end(offset)
        log._log_start_offset = min(log._log_start_offset, offset)
        log._log_end_offset = offset
        _lower_marks(log, offset)
        recovery.rebuild_producer_state(log, offset)
    except OSError as error:
        raise log.env.fail(error) from error
    return True


def truncate_fully_and_start_at(log: Log, offset: int, log_start_offset: int | None = None) -> None:
    """Delete all records and continue at an offset."""
    if not log._loaded:
        log.load()
    log.env.check()
    try:
        log.remove_segments(list(log._segments))
        segment = Segment.create(log.env, log._folder, offset)
        segment.activate(log.config)
        log.replace_segment_list([segment])
        log._new_names = True
        for snapshot in list(log.snapshots):
            log.discard_snapshot(snapshot)
        log.epochs.clear()
        log.producers.clear(offset)
        log._log_start_offset = offset if log_start_offset is None else log_start_offset
        log._log_end_offset = offset
        _lower_marks(log, offset)
        if log._high_watermark < offset:
            log._set_high_watermark(offset)
    except OSError as error:
        raise log.env.fail(error) from error


def _lower_marks(log: Log, offset: int) -> None:
    log.recovery_point = min(log.recovery_point, offset)
    log._durable_offset = min(log._durable_offset, offset)
    if log._high_watermark > offset:
        log._set_high_watermark(offset)
