"""One pass over a partition's log that checks every batch and all derived files."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

from ottla.records import kernel
from ottla.records.batch import ATTRIBUTES_POSITION, MAGIC, MAGIC_POSITION
from ottla.records.crc import crc32c
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import invalid_record, record_bytes
from ottla.storage import names
from ottla.storage.check.findings import FileKind, Finding, VerifyReport
from ottla.storage.check.indexes import OffsetIndexCheck, TimeIndexCheck, TransactionIndexCheck
from ottla.storage.check.scan import PartitionFolder, SegmentFiles, replay_batch, scan_batches
from ottla.storage.checkpoints import CorruptCheckpointError, decode_epochs
from ottla.storage.errors import CorruptIndexError, CorruptLogError, CorruptSnapshotError
from ottla.storage.log.producer_state import ProducerEntry, ProducerState, decode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.records.batch import BatchHeader
    from ottla.world.disk import Disk


def wrong_crc(header: BatchHeader, data: memoryview) -> str:
    """Return a message if the CRC of a batch is wrong, else an empty string."""
    if header.magic == MAGIC:
        actual = crc32c(data[ATTRIBUTES_POSITION:])
    else:
        actual = zlib.crc32(data[MAGIC_POSITION:])
    return "" if actual == header.crc else f"wrong CRC: {header.crc:#010x} is written, the bytes have {actual:#010x}"


class PartitionCheck:
    """One pass over a partition's log that checks every batch and all derived files."""

    def __init__(
        self,
        disk: Disk,
        folder: PartitionFolder,
        report: VerifyReport,
        *,
        may_have_gaps: bool,
        deep: bool,
        progress: Callable[[int], None],
    ) -> None:
        self._disk = disk
        self._report = report
        self._deep = deep
        self._progress = progress
        self._folder = folder
        self._may_have_gaps = may_have_gaps
        self._state = ProducerState()
        self._trusted = True  # whether the producer state was replayed from a known start
        self._next_offset = folder.segments[0].base_offset if folder.segments else 0
        self._snapshots = list(folder.snapshots)
        self._epochs = self._read_epochs()
        self._epoch = 0  # how many epochs begin at or before the batch
        self._epoch_fault = False

    def run(self) -> int:
        """Check everything; return the log end offset."""
        self._start_state()
        for number, segment in enumerate(self._folder.segments):
            self._report.segments += 1
            following = self._folder.segments[number + 1] if number + 1 < len(self._folder.segments) else None
            limit = following.base_offset if following is not None else segment.base_offset + (1 << 31)
            self._check_segment(segment, limit, last=following is None)
            if following is not None:
                self._expect(following.base_offset, following.path(), 0)
        self._check_snapshots_until(None)
        self._check_epoch_bounds()
        return self._next_offset

    def _start_state(self) -> None:
        """Load the producer state at the log start from its snapshot, if there is one."""
        if not self._folder.segments or self._next_offset == 0:
            return
        self._trusted = False
        if self._next_offset in self._snapshots:
            try:
                entries = decode_snapshot(self._disk.read(self._snapshot_path(self._next_offset)))
            except (CorruptSnapshotError, FileNotFoundError):
                return
            self._state.load(entries, self._next_offset, 0)
            self._trusted = True

    def _add_finding(
        self,
        path: str,
        kind: FileKind,
        reason: str,
        position: int | None = None,
        offset: int | None = None,
        *,
        wrong: bool = True,
    ) -> None:
        self._report.findings.append(Finding(path, kind, reason, position, offset, wrong))

    def _checked(self, size: int) -> None:
        self._report.bytes += size
        self._progress(size)

    # Segments ----------------------------------------------------------------------------------------------------

    def _check_segment(self, segment: SegmentFiles, limit: int, *, last: bool) -> None:
        path = segment.path()
        offsets = self._offset_index(segment, last)
        times = self._time_index(segment, last)
        aborted = self._txn_index(segment)
        position = 0
        whole = in_order = True
        try:
            for header, data in scan_batches(self._disk, path, segment.size):
                position = header.position + header.size
                self._check_snapshots_until(header.base_offset)
                reason = wrong_crc(header, data)
                out_of_place = "" if reason else self._out_of_place(header, segment, limit)
                if not reason and not out_of_place and self._deep:
                    reason = wrong_records(header, data)
                if reason or (out_of_place and in_order):
                    self._add_finding(path, FileKind.LOG, reason or out_of_place, header.position, header.base_offset)
                if out_of_place:
                    in_order = False  # after a wrong offset the following ones look wrong, too: report the first
                if reason or out_of_place:
                    self._trusted = False
                else:
                    self._expect(header.base_offset, path, header.position)
                    self._check_epoch(header)
                    completed = replay_batch(self._state, header, data)
                    if completed is not None:
                        aborted.ended(completed, self._state.last_stable_after(completed), self._trusted)
                        self._state.complete(completed, header.next_offset)
                offsets.batch(header)
                times.batch(header)
                aborted.batch(header, data)
                self._next_offset = max(self._next_offset, header.next_offset)
                self._report.batches += 1
                self._checked(header.size)
        except CorruptLogError as error:
            left = segment.size - error.position
            reason = f"{error}; {left} bytes from here on cannot be read"
            self._add_finding(path, FileKind.LOG, reason, error.position, self._next_offset)
            self._trusted = whole = False
            self._checked(segment.size - position)
        except FileNotFoundError:
            self._add_finding(path, FileKind.NAME, "went away while it was being checked", wrong=False)
            return
        for check in (offsets, times, aborted):
            check.end(whole)
            if check.fault is not None:
                self._add_finding(segment.path(check.suffix), FileKind(check.suffix[1:]), *check.fault)

    def _out_of_place(self, header: BatchHeader, segment: SegmentFiles, limit: int) -> str:
        if header.base_offset < self._next_offset:
            if header.base_offset < segment.base_offset:
                return f"offset {header.base_offset} in a segment that starts at {segment.base_offset}"
            return f"offset {header.base_offset} follows offset {self._next_offset - 1}"
        if header.last_offset >= limit:
            return f"offset {header.last_offset} in a segment that ends before {limit}"
        return ""

    def _expect(self, offset: int, path: str, position: int) -> None:
        """Report missing offsets before this one, in a log that is not compacted."""
        if offset > self._next_offset:
            if not self._may_have_gaps:
                reason = f"offsets {self._next_offset} to {offset - 1} are missing"
                self._add_finding(path, FileKind.GAP, reason, position, self._next_offset)
            self._next_offset = offset

    # Indexes -----------------------------------------------------------------------------------------------------

    def _offset_index(self, segment: SegmentFiles, last: bool) -> OffsetIndexCheck:
        data = self._index_bytes(segment, names.INDEX_SUFFIX, FileKind.INDEX, last)
        try:
            return OffsetIndexCheck(segment.base_offset, data, segment.size)
        except CorruptIndexError as error:
            self._add_finding(segment.path(names.INDEX_SUFFIX), FileKind.INDEX, str(error))
            return OffsetIndexCheck(segment.base_offset, b"", segment.size)

    def _time_index(self, segment: SegmentFiles, last: bool) -> TimeIndexCheck:
        data = self._index_bytes(segment, names.TIME_INDEX_SUFFIX, FileKind.TIME_INDEX, last)
        try:
            return TimeIndexCheck(segment.base_offset, data)
        except CorruptIndexError as error:
            self._add_finding(segment.path(names.TIME_INDEX_SUFFIX), FileKind.TIME_INDEX, str(error))
            return TimeIndexCheck(segment.base_offset, b"")

    def _txn_index(self, segment: SegmentFiles) -> TransactionIndexCheck:
        path = segment.path(names.TXN_INDEX_SUFFIX)
        data = b""
        if names.TXN_INDEX_SUFFIX in segment.kinds:
            data = self._read(path)
        # Compaction removes aborted records and with them the need for their index entries.
        must_list_all = not self._may_have_gaps
        try:
            return TransactionIndexCheck(segment.base_offset, data, must_list_all)
        except CorruptIndexError as error:
            self._add_finding(path, FileKind.TXN_INDEX, str(error))
            return TransactionIndexCheck(segment.base_offset, b"", False)

    def _index_bytes(self, segment: SegmentFiles, suffix: str, kind: FileKind, last: bool) -> bytes:
        if suffix in segment.kinds:
            return self._read(segment.path(suffix))
        if segment.size:
            # The active segment may have its indexes in memory only.
            self._add_finding(segment.path(suffix), kind, "not there", wrong=not last)
        return b""

    def _read(self, path: str) -> bytes:
        try:
            return self._disk.read(path)
        except FileNotFoundError:
            return b""

    # Snapshots ---------------------------------------------------------------------------------------------------

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._folder.path}/{names.offset_name(offset, names.SNAPSHOT_SUFFIX)}"

    def _check_snapshots_until(self, offset: int | None) -> None:
        """Check the producer snapshots up to an offset, or all remaining ones."""
        while self._snapshots and (offset is None or self._snapshots[0] <= offset):
            at = self._snapshots.pop(0)
            path = self._snapshot_path(at)
            try:
                entries = decode_snapshot(self._disk.read(path))
            except FileNotFoundError:
                continue
            except CorruptSnapshotError as error:
                self._add_finding(path, FileKind.SNAPSHOT, str(error), offset=at)
                continue
            if at > self._next_offset:
                if self._trusted:
                    reason = f"is of offset {at}, but the log ends at {self._next_offset}"
                    self._add_finding(path, FileKind.SNAPSHOT, reason, offset=at, wrong=False)
            elif self._trusted and not self._may_have_gaps and (reason := self._disagreement(entries)):
                self._add_finding(path, FileKind.SNAPSHOT, reason, offset=at)

    def _disagreement(self, entries: list[ProducerEntry]) -> str:
        """Return how a snapshot differs from the replayed state, apart from expired producers; or an empty string."""
        listed = {entry.producer_id: entry for entry in entries}
        for entry in entries:
            known = self._state.producers.get(entry.producer_id)
            if known is None:
                continue  # its records were deleted by retention
            for name in ("producer_epoch", "last_data_offset", "last_sequence", "current_txn_first_offset"):
                theirs, ours = getattr(entry, name), getattr(known, name)
                if theirs != ours:
                    return f"producer {entry.producer_id} has {name.replace('_', ' ')} {theirs}, the log gives {ours}"
        for first_offset, producer_id in self._state.ongoing.items():
            if producer_id not in listed:
                return f"the open transaction of producer {producer_id} from offset {first_offset} is missing"
        return ""

    # Leader epochs -----------------------------------------------------------------------------------------------

    def _read_epochs(self) -> list[tuple[int, int]] | None:
        path = f"{self._folder.path}/{names.LEADER_EPOCH_CHECKPOINT}"
        try:
            entries = decode_epochs(self._disk.read(path))
        except FileNotFoundError:
            if self._folder.size:
                self._add_finding(path, FileKind.EPOCHS, "not there", wrong=False)
            return None
        except CorruptCheckpointError as error:
            self._add_finding(path, FileKind.EPOCHS, str(error))
            return None
        for (epoch, start), (later_epoch, later_start) in pairwise(entries):
            if later_epoch <= epoch or later_start <= start:
                reason = f"epoch {later_epoch} from {later_start} follows epoch {epoch} from {start}"
                self._add_finding(path, FileKind.EPOCHS, reason, offset=later_start)
                return None
        return entries

    def _check_epoch(self, header: BatchHeader) -> None:
        """Compare a batch's leader epoch with the checkpoint; report only the first difference."""
        if self._epochs is None or self._epoch_fault or header.partition_leader_epoch < 0:
            return
        while self._epoch < len(self._epochs) and self._epochs[self._epoch][1] <= header.base_offset:
            self._epoch += 1
        expected = self._epochs[self._epoch - 1][0] if self._epoch else None
        if expected is None:
            # Before the first epoch: below the log's start, or the last batches before a crash.
            if self._epochs:
                return
        elif expected == header.partition_leader_epoch:
            return
        self._epoch_fault = True
        checkpointed = "nothing" if expected is None else f"epoch {expected}"
        self._add_finding(
            f"{self._folder.path}/{names.LEADER_EPOCH_CHECKPOINT}",
            FileKind.EPOCHS,
            f"has {checkpointed} for offset {header.base_offset}, the batch has epoch {header.partition_leader_epoch}",
            offset=header.base_offset,
        )

    def _check_epoch_bounds(self) -> None:
        if self._epochs and self._trusted and self._epochs[-1][1] > self._next_offset:
            epoch, start = self._epochs[-1]
            reason = f"epoch {epoch} starts at {start}, the log ends at {self._next_offset}"
            self._add_finding(
                f"{self._folder.path}/{names.LEADER_EPOCH_CHECKPOINT}", FileKind.EPOCHS, reason, offset=start
            )


def wrong_records(header: BatchHeader, data: memoryview) -> str:
    """Return what is wrong with the records of a batch with a right CRC, or an empty string."""
    if header.magic != MAGIC:
        return ""
    try:
        content = record_bytes(data, header._replace(position=0))
        walk = kernel.RecordWalk(content, 0, len(content), header.record_count)
        last = -1
        while walk.advance():
            if not last < walk.offset_delta <= header.last_offset_delta:
                return f"record {walk.index} has offset delta {walk.offset_delta} after {last}"
            last = walk.offset_delta
        if walk.error:
            return str(invalid_record(walk).message)
    except InvalidRecords as error:
        return error.message
    return ""
