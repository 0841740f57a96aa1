"""Retention: deletes segments below the log start offset, beyond `retention.bytes` or older than `retention.ms`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log
    from ottla.storage.log.segment import Segment


def delete_old_segments(log: Log) -> int:
    """Apply all three rules (without cleanup policy `delete`, only the first); return how many segments went."""
    gone = _delete_where(log, lambda segment, following: following is not None and following <= log.log_start_offset)
    if log.config.delete:
        gone += _delete_by_size(log)
        gone += _delete_by_time(log)
    return gone


def _delete_by_size(log: Log) -> int:
    excess = log.size - log.config.retention_bytes
    if log.config.retention_bytes < 0 or excess < 0:
        return 0

    def over(segment: Segment, following: int | None) -> bool:
        nonlocal excess
        if excess - segment.size < 0:
            return False
        excess -= segment.size
        return True

    return _delete_where(log, over)


def _delete_by_time(log: Log) -> int:
    retention = log.config.retention_ms
    if retention < 0:
        return 0
    now = log.env.clock.now_ms()
    return _delete_where(log, lambda segment, following: now - segment.largest_timestamp() > retention)


def _delete_where(log: Log, rule: Callable[[Segment, int | None], bool]) -> int:
    """Delete the oldest segments while the rule holds and they end below the high watermark."""
    deletable: list[Segment] = []
    segments = log.segments
    for slot, segment in enumerate(segments):
        following = log.bases[slot + 1] if slot + 1 < len(segments) else None
        end = log.log_end_offset if following is None else following
        if log.high_watermark < end or not rule(segment, following):
            break
        if following is None and segment.size == 0:
            break
        deletable.append(segment)
    if not deletable:
        return 0
    if len(deletable) == len(segments):
        log.roll()
    first_kept = log.bases[len(deletable)]
    log.advance_log_start(first_kept)
    log.remove_segments(deletable)
    return len(deletable)
