"""Open a log (Kafka's LogLoader): finish interrupted swaps, cut a torn tail, rebuild indexes and producer state.

`RecoveryReport` lists every change and every loss.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from ottla.protocol.errors import KafkaError
from ottla.records.batch import ATTRIBUTES_POSITION, HEADER_SIZE, MAGIC, MAGIC_POSITION, BatchHeader
from ottla.records.crc import crc32c
from ottla.records.errors import InvalidRecords
from ottla.storage.check.scan import replay_batch, scan_batches
from ottla.storage.checkpoints import CorruptCheckpointError, decode_epochs
from ottla.storage.errors import CorruptLogError, CorruptSnapshotError
from ottla.storage.log.indexes import MAX_RELATIVE_OFFSET, AbortedTxn, TransactionIndex
from ottla.storage.log.leader_epochs import LeaderEpochCache
from ottla.storage.log.producer_state import AppendOrigin, CompletedTxn, ProducerState, decode_snapshot, read_marker
from ottla.storage.log.segment import MIN_BATCH, Segment, parse_header
from ottla.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    NumberedFile,
    TopicPartition,
    offset_name,
    parse_numbered,
)
from ottla.world.disk import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

_CHUNK = 4 << 20
_HEADER_WINDOW = 4 << 10


@dataclass(slots=True)
class Damage:
    """Where a log stopped being valid, and how much was cut from there on."""

    path: str
    position: int
    offset: int
    bytes_dropped: int
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """What recovery checked and changed."""

    topic_partition: TopicPartition
    segments_checked: int = 0
    bytes_checked: int = 0
    damage: list[Damage] = field(default_factory=list)
    segments_dropped: list[int] = field(default_factory=list)
    files_removed: list[str] = field(default_factory=list)
    files_recovered: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Other losses and damaged files that were rebuilt, one sentence each."""
    lost_end: bool = False
    """Whether records at the end of the log, or whole segments, are gone."""

    @property
    def noteworthy(self) -> bool:
        """Whether anything but `.deleted` files was checked or changed."""
        leftovers = all(name.endswith(DELETED_SUFFIX) for name in self.files_removed)
        return bool(
            self.segments_checked
            or self.damage
            or self.segments_dropped
            or self.files_recovered
            or self.problems
            or not leftovers
        )

    def losses(self) -> list[str]:
        """Return one sentence per loss and per rebuilt file."""
        lines = [
            f"{damage.path}: {damage.reason} at byte {damage.position}, offset {damage.offset}; "
            f"{damage.bytes_dropped} bytes from there on are dropped"
            for damage in self.damage
        ]
        if self.segments_dropped:
            bases = ", ".join(str(base) for base in self.segments_dropped)
            lines.append(f"{self.topic_partition}: segments dropped: {bases}")
        return lines + self.problems

    @property
    def bytes_dropped(self) -> int:
        """Return the number of bytes of records that were cut."""
        return sum(damage.bytes_dropped for damage in self.damage)


def load(log: Log, names: list[str]) -> RecoveryReport:
    """Load a log after an unclean shutdown or with files missing; return what was changed."""
    report = RecoveryReport(log.topic_partition)
    if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        _finish_swaps(log, names, report)
        names = log.env.disk.list(log.folder)
    to_check = _find_segments(log, names, report)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            _remove(log, name, report)
    if LEADER_EPOCH_CHECKPOINT in names:
        _read_epochs(log, report)
    else:
        log.epochs.dirty = True
    if not log.clean:
        to_check = log.segments_from(log.recovery_point) if log.segments else []
    elif log.segments and log.segments[-1] not in to_check and _is_damaged(log.segments[-1]):
        to_check.append(log.segments[-1])
    _check_closed_segments(log, to_check, report)
    _recover(log, to_check, report)
    _come_up(log, report)
    return report


def load_clean(log: Log) -> RecoveryReport:
    """Read what opening a cleanly stopped log deferred: its log end offset, leader epochs and producers."""
    report = RecoveryReport(log.topic_partition)
    _read_epochs(log, report)
    active = log.segments[-1]
    damaged = [active] if _is_damaged(active) else []
    _check_closed_segments(log, damaged, report)
    if damaged:  # a clean stop leaves no such segment: the file was changed afterwards
        _recover(log, damaged, report)
    elif not log.may_have_gaps:
        first = next(active.batches(window=_HEADER_WINDOW), None)
        if first is not None and first.base_offset > active.base_offset:
            missing = f"offsets {active.base_offset} to {first.base_offset - 1} are missing"
            report.problems.append(f"{active.log_path}: {missing} before byte 0")
    _come_up(log, report)
    return report


def _is_damaged(segment: Segment) -> bool:
    """Return whether the first batch is outside the segment's offsets, or the last one is not whole."""
    try:
        first = next(segment.batches(window=_HEADER_WINDOW), None)
        next_offset, end = segment.next_offset()
    except CorruptLogError:
        return True
    return end != segment.size or (first is not None and not segment.base_offset <= first.base_offset < next_offset)


def _read_epochs(log: Log, report: RecoveryReport) -> None:
    """Load `leader-epoch-checkpoint`; a damaged one is rebuilt from the batches."""
    path = f"{log.folder}/{LEADER_EPOCH_CHECKPOINT}"
    try:
        data = log.env.disk.read(path)
        if not data and any(segment.size for segment in log.segments):
            raise CorruptCheckpointError("the file is empty")
        log.epochs = LeaderEpochCache(decode_epochs(data))
        return
    except FileNotFoundError:
        log.epochs = LeaderEpochCache()
    except CorruptCheckpointError as error:
        log.epochs = _scan_epochs(log)
        report.problems.append(f"{path}: {error}; rebuilt from the log")
    log.epochs.dirty = True


def _scan_epochs(log: Log) -> LeaderEpochCache:
    epochs = LeaderEpochCache()
    for segment in log.segments:
        try:
            for header in segment.batches():
                if epochs.latest is None or header.partition_leader_epoch > epochs.latest:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
        except CorruptLogError:
            continue
    return epochs


def _check_closed_segments(log: Log, to_check: list[Segment], report: RecoveryReport) -> None:
    """Report closed segments that end before the next one begins, and rebuild damaged transaction indexes.

    Segments that recovery reads anyway are left to it. Only the tail of each segment is read, from the last entry of
    its offset index on.
    """
    skipped = {segment.base_offset for segment in to_check}
    damaged: list[int] = []
    for segment, following in zip_longest(log.segments, log.segments[1:]):
        if segment.base_offset in skipped:
            continue
        if segment.base_offset in log.txn_bases and not segment.has_readable_txn_index():
            damaged.append(segment.base_offset)
        if following is None:
            continue
        problem = _closed_segment_problem(segment, following.base_offset, log.may_have_gaps)
        if problem:
            report.problems.append(f"{segment.log_path}: {problem}; `ottla log verify {log.folder}` shows what is left")
    if damaged:
        _rebuild_txn_indexes(log, damaged, report)


def _closed_segment_problem(segment: Segment, limit: int, may_have_gaps: bool) -> str:
    """Return what is wrong with the first and the last batch of a closed segment, or an empty string."""
    base = segment.base_offset
    try:
        first = next(segment.batches(window=_HEADER_WINDOW), None)
    except CorruptLogError as error:
        return str(error)
    offset, end = segment.end_by_index()
    if end != segment.size:
        return f"no batch at byte {end}, offset {offset}"
    if first is not None and not base <= first.base_offset < limit:
        return f"offset {first.base_offset} in a segment from {base} to {limit - 1}"
    if offset > limit:
        return f"offset {offset - 1} in a segment that ends before {limit}"
    if first is not None and first.base_offset > base and not may_have_gaps:
        return f"offsets {base} to {first.base_offset - 1} are missing"
    if offset < limit and not may_have_gaps:
        return f"offsets {offset} to {limit - 1} are missing"
    return ""


def _rebuild_txn_indexes(log: Log, bases: list[int], report: RecoveryReport) -> None:
    """Write transaction indexes again by following the producers through the whole log."""
    state = ProducerState()
    for segment in log.segments:
        index = TransactionIndex()
        try:
            for header, data in scan_batches(log.env.disk, segment.log_path, segment.size):
                completed = replay_batch(state, header, data)
                if completed is not None:
                    if completed.aborted:
                        stable = state.last_stable_after(completed)
                        index.append(
                            AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
                        )
                    state.complete(completed, header.next_offset)
        except CorruptLogError:
            pass  # recovery or a reader reports it
        if segment.base_offset in bases:
            segment.write_txn_index(index)
            report.problems.append(f"{segment.path(TXN_INDEX_SUFFIX)}: unreadable; rebuilt from the log")
            if not index.entries:
                log.txn_bases.remove(segment.base_offset)


def _come_up(log: Log, report: RecoveryReport) -> None:
    """Set log start and end offset, and bring producer state and leader epochs in line with them."""
    start = log.log_start_offset
    if log.segments and log.segments[-1].next_offset()[0] < start:
        report.segments_dropped += log.bases
        log.remove_segments(list(log.segments))
        log.epochs.clear()
    if not log.segments:
        for snapshot in list(log.snapshots):
            log.discard_snapshot(snapshot)
        log.replace_segment_list([Segment.create(log.env, log.folder, start)])
    end = log.segments[-1].next_offset()[0]
    report.lost_end = report.lost_end or bool(report.damage or report.segments_dropped)
    if end < log.recovery_point and not report.damage:
        report.lost_end = True
        report.problems.append(
            f"{log.folder}: the log ends at offset {end}, but {RECOVERY_POINT_CHECKPOINT} has offsets up to "
            f"{log.recovery_point - 1} as flushed; those from {end} on are lost"
        )
    log.set_log_start(max(start, log.bases[0]))
    log.epochs.truncate_from_end(end)  # drop epochs without records; the leader assigns them again
    log.epochs.truncate_from_start(log.log_start_offset)
    remove_stray_snapshots(log)
    if end == log.log_start_offset and not log.snapshots:
        log.producers.clear(end)
    else:
        rebuild_producer_state(log, end, report)
    if log.clean:
        log.recovery_point = end
    log.loaded_to(end)


# Names -----------------------------------------------------------------------------------------------------------


def _finish_swaps(log: Log, names: list[str], report: RecoveryReport) -> None:
    """Delete `.deleted` files, drop unfinished `.cleaned` files, and complete swaps."""
    files = [(name, file) for name in names if (file := parse_numbered(name)) is not None]
    for name, file in files:
        if file.mark == DELETED_SUFFIX:
            _remove(log, name, report)
    cleaned = [file.offset for _, file in files if file.mark == CLEANED_SUFFIX]
    first_cleaned = min(cleaned, default=None)
    swaps: list[tuple[str, NumberedFile]] = []
    for name, file in files:
        if file.mark == CLEANED_SUFFIX:
            _remove(log, name, report)
        elif file.mark == SWAP_SUFFIX:
            # Segments are renamed from last to first: while a `.cleaned` file is left, later swaps are incomplete.
            if first_cleaned is not None and file.offset >= first_cleaned:
                _remove(log, name, report)
            else:
                swaps.append((name, file))
    low, high = None, -1
    for _, file in swaps:
        if file.kind == LOG_SUFFIX:
            segment = Segment(log.env, log.folder, file.offset, SWAP_SUFFIX)
            low = file.offset if low is None else min(low, file.offset)
            high = max(high, segment.next_offset_by_scan())
            log.env.files.drop(segment.log_path)
    if low is not None:
        for name, file in files:
            if not file.mark and file.kind != SNAPSHOT_SUFFIX and low <= file.offset < high:
                _remove(log, name, report)
    for name, _ in swaps:
        final = name.removesuffix(SWAP_SUFFIX)
        log.env.disk.rename(f"{log.folder}/{name}", f"{log.folder}/{final}")
        report.files_recovered.append(final)


def _find_segments(log: Log, names: list[str], report: RecoveryReport) -> list[Segment]:
    """Find segments by name and remove indexes without a log; return the segments that lack an index file."""
    files = [(name, file) for name in names if (file := parse_numbered(name)) is not None and not file.mark]
    kinds: dict[int, set[str]] = {}
    log.snapshots = []
    for _, file in files:
        if file.kind == SNAPSHOT_SUFFIX:
            log.snapshots.append(file.offset)
        else:
            kinds.setdefault(file.offset, set()).add(file.kind)
    bases = [base for base in sorted(kinds) if LOG_SUFFIX in kinds[base]]
    for name, file in files:
        if file.kind != SNAPSHOT_SUFFIX and LOG_SUFFIX not in kinds[file.offset]:
            _remove(log, name, report)
            if file.kind == INDEX_SUFFIX:
                report.lost_end = True
                report.problems.append(
                    f"{log.folder}/{offset_name(file.offset, LOG_SUFFIX)}: missing, although its index is there; "
                    "the records of this segment are lost"
                )
    log.snapshots.sort()
    log.replace_segment_list([Segment(log.env, log.folder, base) for base in bases])
    log.txn_bases = [base for base in bases if TXN_INDEX_SUFFIX in kinds[base]]
    return [s for s in log.segments if not {INDEX_SUFFIX, TIME_INDEX_SUFFIX} <= kinds[s.base_offset]]


def _remove(log: Log, name: str, report: RecoveryReport) -> None:
    log.env.remove_if_exists(f"{log.folder}/{name}")
    report.files_removed.append(name)


def remove_stray_snapshots(log: Log) -> None:
    """Delete producer snapshots that belong to no segment, except the newest one after the last segment."""
    bases = set(log.bases)
    strays = [offset for offset in log.snapshots if offset not in bases]
    kept = strays.pop() if strays and strays[-1] >= log.bases[-1] else None
    for offset in strays:
        if offset != kept:
            log.discard_snapshot(offset)


# Contents --------------------------------------------------------------------------------------------------------


def _recover(log: Log, segments: list[Segment], report: RecoveryReport) -> None:
    """Check every batch of these segments, and cut the log at the first invalid one."""
    checked_to = None
    for number, segment in enumerate(segments):
        if checked_to != segment.base_offset:
            for snapshot in [offset for offset in log.snapshots if offset > segment.base_offset]:
                log.discard_snapshot(snapshot)
            rebuild_producer_state(log, segment.base_offset)
        cut = recover_segment(log, segment, report) > 0
        checked_to = log.producers.map_end_offset
        log.take_snapshot()
        following = segments[number + 1] if number + 1 < len(segments) else None
        if following is not None and not cut and checked_to < following.base_offset and not log.may_have_gaps:
            reason = f"offsets {checked_to} to {following.base_offset - 1} are missing"
            report.damage.append(Damage(segment.log_path, segment.size, checked_to, 0, reason))
            cut = True
        if cut:
            later = [s for s in log.segments if s.base_offset > segment.base_offset]
            if later:
                report.segments_dropped += [s.base_offset for s in later]
                report.damage[-1].bytes_dropped += sum(s.size for s in later)
                log.remove_segments(later)
            return


def recover_segment(log: Log, segment: Segment, report: RecoveryReport) -> int:
    """Check a segment's batches, rebuild its indexes, replay its producers, cut it at the first invalid byte.

    Return the number of bytes cut off.
    """
    report.segments_checked += 1
    if segment.has_empty_files():
        return 0
    segment.reset_indexes()
    segment.write_txn_index(TransactionIndex())
    if segment.base_offset in log.txn_bases:
        log.txn_bases.remove(segment.base_offset)
    interval = log.config.index_interval_bytes
    end_offset = _end_offset(log, segment)
    file = segment.file()
    size = segment.size
    position = 0
    next_offset = segment.base_offset
    reason = ""
    chunk_size = _CHUNK
    while not reason and position < size:
        chunk = memoryview(file.read_at(position, min(chunk_size, size - position)))
        at = 0
        while len(chunk) - at >= MIN_BATCH:
            whole = len(chunk) - at
            if whole < HEADER_SIZE and position + len(chunk) < size:
                break
            try:
                header = parse_header(chunk, at, position)
            except CorruptLogError as error:
                reason = str(error)
                break
            if header.size > whole:
                break
            reason = _fault(chunk, at, header, next_offset, end_offset)
            if reason:
                break
            if header.base_offset > next_offset and not log.may_have_gaps:
                missing = f"offsets {next_offset} to {header.base_offset - 1} are missing"
                report.problems.append(f"{segment.log_path}: {missing} before byte {header.position}")
            segment.index_batch(header.last_offset, header.max_timestamp, header.position, header.size, interval)
            epoch = header.partition_leader_epoch
            if epoch >= 0 and (log.epochs.latest is None or epoch > log.epochs.latest):
                log.epochs.assign(epoch, header.base_offset)
            if header.producer_id >= 0:
                _replay(log, chunk, at, header, segment)
            next_offset = header.next_offset
            log.producers.map_end_offset = next_offset
            at += header.size
        position += at
        if not reason and at == 0:  # a batch longer than the chunk, or one that is cut off
            if position + len(chunk) >= size:
                reason = "the last batch is cut off"
            else:
                chunk_size = max(2 * chunk_size, _claimed_size(chunk))
        elif at:
            chunk_size = _CHUNK
    report.bytes_checked += position
    dropped = size - position
    if dropped:
        report.damage.append(Damage(segment.log_path, position, next_offset, dropped, reason))
        segment.truncate(position)
    segment.write_indexes()
    return dropped


def _claimed_size(chunk: memoryview) -> int:
    return 12 + int.from_bytes(chunk[8:12])


def _end_offset(log: Log, segment: Segment) -> int:
    """Return the exclusive upper bound of a segment's offsets: the next base offset, or the limit of the indexes."""
    limit = segment.base_offset + MAX_RELATIVE_OFFSET + 1
    return min((base for base in log.bases if base > segment.base_offset), default=limit)


def _fault(chunk: memoryview, at: int, header: BatchHeader, next_offset: int, end_offset: int) -> str:
    """Return what is wrong with a batch, or an empty string."""
    if header.magic == MAGIC:
        if crc32c(chunk[at + ATTRIBUTES_POSITION : at + header.size]) != header.crc:
            return "wrong CRC"
    elif zlib.crc32(chunk[at + MAGIC_POSITION : at + header.size]) != header.crc:
        return "wrong CRC"
    if header.base_offset < next_offset:
        return f"offset {header.base_offset} after {next_offset - 1}"
    if header.next_offset > end_offset:
        return f"offset {header.last_offset} in a segment that ends before {end_offset}"
    return ""


def rebuild_producer_state(log: Log, end_offset: int, report: RecoveryReport | None = None) -> None:
    """Rebuild the producer state as of an offset from the newest readable snapshot and the log after it."""
    for offset in [o for o in log.snapshots if o > end_offset or o <= log.log_start_offset]:
        log.discard_snapshot(offset)
    state = log.producers
    now = log.env.clock.now_ms()
    state.clear(log.log_start_offset)
    while log.snapshots:
        offset = log.snapshots[-1]
        try:
            state.load(decode_snapshot(log.env.disk.read(log.snapshot_path(offset))), offset, now)
            break
        except (CorruptSnapshotError, FileNotFoundError) as error:
            if report is not None:
                report.problems.append(f"{log.snapshot_path(offset)}: {error}; producer state is rebuilt from the log")
            log.discard_snapshot(offset)
    for segment in log.segments_between(state.map_end_offset, end_offset):
        try:
            _replay_segment(log, segment, end_offset)
        except CorruptLogError:
            continue  # damage in a closed segment, which `_check_closed_segments` reports
    state.map_end_offset = end_offset


def _replay_segment(log: Log, segment: Segment, end_offset: int) -> None:
    """Replay the batches of a segment below an offset into the producer state."""
    state = log.producers
    start = max(segment.base_offset, state.map_end_offset)
    first = segment.find(start) if segment.size else None
    if first is None:
        return
    for header in segment.batches(first.position):
        if header.base_offset >= end_offset:
            break
        if header.producer_id >= 0:
            data = memoryview(segment.file().read_at(header.position, header.size)) if header.is_control else b""
            _replay(log, data, 0, header, None)
        state.map_end_offset = header.next_offset


def _replay(log: Log, chunk: memoryview | bytes, at: int, header: BatchHeader, segment: Segment | None) -> None:
    """Replay a batch into the producer state; with a segment, also index the transaction that it aborts."""
    state = log.producers
    append = state.prepare(header.producer_id, AppendOrigin.REPLICATION)
    completed: CompletedTxn | None = None
    try:
        if header.is_control:
            marker = read_marker(chunk, header._replace(position=at))
            if marker is not None:
                completed = append.append_marker(marker[0], header.producer_epoch, header.base_offset, marker[1])
        else:
            append.append_data(header, header.base_offset, header.max_timestamp)
    except (KafkaError, InvalidRecords):
        return  # the batch is in the log already: validation is too late
    state.update(append)
    if completed is not None:
        if segment is not None:
            log.finish_transaction(segment, completed)
        else:
            state.complete(completed, header.next_offset)
