"""Rolls a log's active segment, and writes the producer snapshot of each roll (ProducerStateManager.takeSnapshot).

The functions of this module are methods of `Log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.storage.log.flushing import flush_before
from ottla.storage.log.segment import Segment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log
    from ottla.storage.log.producer_state import SnapshotInProgress

INLINE_PRODUCERS = 2000  # as many are encoded into a snapshot in one turn of the loop


def segment_for(
    log: Log, size: int, max_timestamp: int, last_offset: int, now_ms: int, first_offset: int | None = None
) -> Segment:
    """Return the segment that takes `size` more bytes: the active one, or a new one if that is full or too old.

    The rules are those of Kafka's LogSegment.shouldRoll.
    """
    segment = log._segments[-1]
    config = log.config
    taken = segment.size
    if taken + size > config.segment_bytes:
        return _roll(log, first_offset)
    if taken:
        first_timestamp = segment.first_timestamp()
        waited = max_timestamp - first_timestamp if first_timestamp >= 0 else now_ms - segment.created_ms
        if waited > config.max_segment_ms - segment.jitter_ms:
            return _roll(log, first_offset)
    if segment.is_index_full(config) or not segment.can_hold(last_offset):
        return _roll(log, first_offset)
    return segment


def roll(log: Log, next_offset: int | None = None) -> Segment:
    """Close the active segment and open a new one at the log end offset, or at a later `next_offset`."""
    if not log._loaded:
        log.load()
    log.env.check()
    try:
        return _roll(log, next_offset)
    except OSError as error:
        raise log.env.fail(error) from error


def _roll(log: Log, next_offset: int | None) -> Segment:
    base = max(log._log_end_offset, next_offset or 0)
    old = log._segments[-1]
    if old.base_offset == base and old.size == 0:
        return old
    old.deactivate()
    log.producers.map_end_offset = base
    snapshot = _snapshot_at_roll(log)
    segment = Segment.create(log.env, log._folder, base)
    segment.activate(log.config)
    log._segments.append(segment)
    log.bases.append(base)
    log._new_names = True
    flush_before(log, base, snapshot)
    return segment


def take_snapshot(log: Log, *, sync: bool = False) -> str | None:
    """Write a producer snapshot at the log end offset and return its path; None if there is one."""
    offset = log.producers.map_end_offset
    newest = log.snapshots[-1] if log.snapshots else log.bases[0] if log.bases else 0
    if offset <= newest:
        return None
    path = log.snapshot_path(offset)
    log.producers.snapshot = None
    log.env.write_file(path, log.producers.encode_snapshot(), sync=sync)
    log.snapshots.append(offset)
    return path


def _snapshot_at_roll(log: Log) -> str | None:
    """Write a producer snapshot and return its path; with many producers, begin to write it in pieces.

    A roll while a snapshot is in progress writes none: recovery loads the one before, and replays from there.
    """
    if len(log.producers.producers) <= INLINE_PRODUCERS or log.env.immediate:
        return log.take_snapshot()
    if log.producers.snapshot is None:
        log.producers.begin_snapshot()
        log.env.clock.call_soon(_continue_snapshot, log, log.producers.snapshot)
    return None


def _continue_snapshot(log: Log, snapshot: SnapshotInProgress) -> None:
    if log.producers.snapshot is not snapshot or log.env.failure is not None:
        return  # the log was closed, truncated or moved
    if snapshot.encode_some(INLINE_PRODUCERS):
        log.env.clock.call_soon(_continue_snapshot, log, snapshot)
        return
    log.producers.snapshot = None
    newest = log.snapshots[-1] if log.snapshots else log.bases[0]
    if snapshot.offset <= newest:
        return
    path = log.snapshot_path(snapshot.offset)
    try:
        log.env.write_file(path, snapshot.encoded())
        log.snapshots.append(snapshot.offset)
        files = log._open_all([path])
    except OSError as error:
        log.env.fail(error)
        return

    def synced(error: OSError | None) -> None:
        for file in files:
            file.close()
        if error is not None:
            log.env.fail(error)

    log.env.disk.sync(files, synced)
