"""Compaction's decisions (Kafka's LogCleanerManager): the dirtiest log, its cleanable section, and the swap.

Runs on the loop; the copy in between is `cleaner`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.storage.cleaner.cleaner import Cleaning, CleaningPlan, LastRecord, SourceSegment
from ottla.storage.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from ottla.storage.names import SWAP_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log
    from ottla.storage.log.segment import Segment


@dataclass(slots=True, frozen=True)
class Cleanable:
    """The cleanable section of a log, [first_dirty, first_uncleanable), and how dirty it makes the log."""

    log: Log
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty bytes' share of the cleanable log."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def worth_it(self) -> bool:
        """Whether `min.cleanable.dirty.ratio` or `max.compaction.lag.ms` asks for a cleaning."""
        return (self.overdue and self.dirty_bytes > 0) or self.ratio > self.log.config.min_cleanable_dirty_ratio


def find_cleanable(log: Log, checkpoint: int | None, now_ms: int) -> Cleanable:
    """Return what can be cleaned of a log whose last cleaning reached `checkpoint`."""
    start = log.log_start_offset
    dirty = start if checkpoint is None or not start <= checkpoint <= log.log_end_offset else checkpoint
    closed = log.segments[:-1]
    config = log.config
    # A record that is not durable must not supersede one that is: a power loss could lose both.
    uncleanable = min(log.last_stable_offset, log.active_segment.base_offset, log.recovery_point)
    dirty_segments = [s for s in log.segments_from(dirty) if not s.active]
    if config.min_compaction_lag_ms > 0:
        for segment in dirty_segments:
            if segment.largest_timestamp() > now_ms - config.min_compaction_lag_ms:
                uncleanable = min(uncleanable, segment.base_offset)
                break
    bound = log.segments_from(uncleanable)[0].base_offset  # whole segments only
    clean_bytes = sum(s.size for s in closed if s.base_offset < dirty)
    dirty_bytes = sum(s.size for s in log.segments_between(min(dirty, bound), bound))
    timestamps = [t for s in dirty_segments if (t := s.first_timestamp()) > 0]
    overdue = bool(timestamps) and min(timestamps) < now_ms - config.max_compaction_lag_ms
    return Cleanable(log, dirty, bound, clean_bytes, dirty_bytes, overdue)


def begin(cleanable: Cleanable, now_ms: int, cancelled: Callable[[], bool] = lambda: False) -> Cleaning:
    """Copy what a cleaning needs from the log; `build_map` and `clean` may then run in a worker."""
    log = cleanable.log
    sources = [
        SourceSegment(
            segment.base_offset,
            segment.log_path,
            segment.size,
            log.env.disk.modified_ms(segment.log_path),
            OFFSET_ENTRY * len(segment.offset_index),
            TIME_ENTRY * len(segment.time_index),
        )
        for segment in log.segments
        if segment.base_offset < cleanable.first_uncleanable_offset
    ]
    last_records = {
        entry.producer_id: LastRecord(entry.last_data_offset, entry.producer_epoch)
        for entry in log.producers.producers.values()
    }
    return Cleaning(
        CleaningPlan(
            env=log.env,
            folder=log.folder,
            config=log.config,
            now_ms=now_ms,
            first_dirty_offset=cleanable.first_dirty_offset,
            first_uncleanable_offset=cleanable.first_uncleanable_offset,
            segments=sources,
            aborted=log.aborted_transactions(0, cleanable.first_uncleanable_offset),
            last_records=last_records,
            hash_seed=log.env.random.bytes(16),
            cancelled=cancelled,
        )
    )


def swap_in(log: Log, made: Segment, group: list[SourceSegment]) -> bool:
    """Replace segments by the cleaned one; return False if the log has changed meanwhile."""
    replaced = [log.segment_at(source.base_offset) for source in group]
    old = [segment for segment in replaced if segment is not None and not segment.active]
    if len(old) != len(group) or made.folder != log.folder:
        made.delete_files()
        return False
    # In Kafka's order: after this a crash completes the swap, and old segments are deleted only when it is complete.
    made.change_mark(SWAP_SUFFIX)
    for segment in old:
        log.discard(segment)
    made.change_mark("")
    log.swap_segments(old, made)
    made.bound_memory()
    log.env.disk.sync_dir(log.folder)
    return True


def clean(cleanable: Cleanable, now_ms: int) -> int:
    """Clean a log synchronously and return the offset up to which it is clean."""
    cleaning = begin(cleanable, now_ms)
    cleaning.build_map()
    for group in cleaning.groups:
        if not swap_in(cleanable.log, cleaning.clean(group), group):
            return cleanable.first_dirty_offset
    return cleaning.end_offset
