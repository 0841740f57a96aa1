"""Repair what `verify` finds: rebuild derived files from the log; truncate the log only on request.

A dry run returns the same steps. The caller holds the directory's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.storage import names
from ottla.storage.check.scan import read_folder, replay_batch, scan_batches
from ottla.storage.check.verify import FileKind, Finding, VerifyReport, verify
from ottla.storage.checkpoints import (
    CorruptCheckpointError,
    decode_offsets,
    encode_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from ottla.storage.log.indexes import AbortedTxn, TransactionIndex
from ottla.storage.log.leader_epochs import LeaderEpochCache
from ottla.storage.log.producer_state import ProducerState, decode_snapshot
from ottla.storage.log.segment import Segment
from ottla.world.disk import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.check.scan import PartitionFolder, SegmentFiles
    from ottla.storage.environment import StorageEnvironment
    from ottla.storage.names import TopicPartition

_INDEXES = (FileKind.INDEX, FileKind.TIME_INDEX)
_DERIVED = (*_INDEXES, FileKind.TXN_INDEX, FileKind.SNAPSHOT, FileKind.EPOCHS)


@dataclass(slots=True, frozen=True)
class Step:
    """One change to one file."""

    path: str
    action: str


@dataclass(slots=True)
class RepairReport:
    """Findings, the steps taken (or, in a dry run, planned), and what stays as it is."""

    before: VerifyReport
    steps: list[Step] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)
    needs_truncate: bool = False
    needs_metadata_choice: bool = False
    after: VerifyReport | None = None


def repair(
    env: StorageEnvironment,
    path: str,
    *,
    truncate: bool = False,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda size: None,
) -> RepairReport:
    """Repair a log directory or one partition's folder; without `truncate` no record is dropped."""
    path = path.rstrip("/") or "/"
    before = verify(env.disk, path, progress=progress)
    report = RepairReport(before)
    by_folder: dict[str, list[Finding]] = {}
    for finding in before.findings:
        if finding.kind in (FileKind.LOG, FileKind.GAP, FileKind.TOPIC_ID, *_DERIVED):
            by_folder.setdefault(finding.path.rpartition("/")[0], []).append(finding)
        elif finding.kind is not FileKind.CHECKPOINT and finding.wrong:
            report.left.append(finding)
    ends = dict(before.ends)
    for folder_path, findings in by_folder.items():
        folder = read_folder(env.disk, folder_path)
        mend = _PartitionRepair(env, folder, findings, report, truncate=truncate, dry_run=dry_run)
        mend.run()
        if mend.end is not None:
            ends[folder.partition] = mend.end
        elif mend.stays_damaged:
            ends.pop(folder.partition, None)  # its end is unknown until it is truncated
    if path not in by_folder:
        _mend_checkpoints(env, path, before, ends, report, dry_run)
    if not dry_run and report.steps:
        env.files.close()
        report.after = verify(env.disk, path, progress=progress)
    return report


def _mend_checkpoints(
    env: StorageEnvironment,
    root: str,
    before: VerifyReport,
    ends: dict[TopicPartition, int],
    report: RepairReport,
    dry_run: bool,
) -> None:
    """Rewrite checkpoints that are unreadable or have offsets beyond their logs."""
    for name in names.CHECKPOINTS:
        path = f"{root}/{name}"
        try:
            offsets = decode_offsets(env.disk.read(path))
            if not offsets and any(finding.path == path for finding in before.wrong):
                raise CorruptCheckpointError("empty")
        except FileNotFoundError:
            continue
        except CorruptCheckpointError:
            report.steps.append(Step(path, "replace by an empty file; the next start recomputes the offsets"))
            if not dry_run:
                write_atomic(env.disk, path, encode_offsets({}))
            continue
        mended = {tp: max(0, min(offset, ends.get(tp, offset))) for tp, offset in offsets.items()}
        if mended != offsets:
            wrong = [tp for tp in offsets if mended[tp] != offsets[tp]]
            shown = ", ".join(f"{tp} {offsets[tp]} becomes {mended[tp]}" for tp in wrong)
            report.steps.append(Step(path, f"correct offsets: {shown}"))
            if not dry_run:
                write_atomic(env.disk, path, encode_offsets(mended))


class _PartitionRepair:
    """Repair of one partition: truncate if requested, then rebuild wrong derived files."""

    def __init__(
        self,
        env: StorageEnvironment,
        folder: PartitionFolder,
        findings: list[Finding],
        report: RepairReport,
        *,
        truncate: bool,
        dry_run: bool,
    ) -> None:
        self.end: int | None = None
        self._env = env
        self._folder = folder
        self._findings = findings
        self._report = report
        self._truncate = truncate
        self._dry_run = dry_run
        self._damaged_from: int | None = None  # base offset of the first segment that stays damaged

    @property
    def stays_damaged(self) -> bool:
        """Whether the log stays damaged."""
        return self._damaged_from is not None

    def run(self) -> None:
        """Perform or plan the repair."""
        self._mend_topic_id()
        self._report.left += [finding for finding in self._findings if finding.kind is FileKind.GAP]
        cut = self._first_damage()
        if cut is not None:
            of_metadata = self._folder.partition.topic == names.METADATA_TOPIC
            if self._truncate and not of_metadata:
                self._cut(*cut)
            else:
                if of_metadata:
                    self._report.needs_metadata_choice = True
                else:
                    self._report.needs_truncate = True
                self._report.left += [finding for finding in self._findings if finding.kind is FileKind.LOG]
                self._damaged_from = cut[0].base_offset
        self._rebuild()

    # The topic's id ----------------------------------------------------------------------------------------------

    def _mend_topic_id(self) -> None:
        expected = self._report.before.topic_ids.get(self._folder.partition.topic)
        for finding in self._findings:
            if finding.kind is not FileKind.TOPIC_ID or not finding.wrong:
                continue
            if expected is None or "names topic" in finding.reason or "different topic ids" in finding.reason:
                self._report.left.append(finding)  # the tool cannot decide which id is right
                continue
            self._step(finding.path, f"write topic id {expected}, as the metadata log has it")
            if not self._dry_run:
                write_atomic(self._env.disk, finding.path, encode_partition_metadata(expected))

    # The log -----------------------------------------------------------------------------------------------------

    def _first_damage(self) -> tuple[SegmentFiles, Finding] | None:
        damage = {finding.path: finding for finding in reversed(self._findings) if finding.kind is FileKind.LOG}
        for segment in self._folder.segments:
            finding = damage.get(segment.path())
            if finding is not None:
                return segment, finding
        return None

    def _cut(self, segment: SegmentFiles, finding: Finding) -> None:
        """Truncate the log at the first damage: drop the rest of the segment, later segments and snapshots."""
        assert finding.position is not None
        assert finding.offset is not None
        later = [other for other in self._folder.segments if other.base_offset > segment.base_offset]
        dropped = segment.size - finding.position
        kept_offset = self._end_before(segment, finding.position)
        self._step(
            segment.path(),
            f"cut at byte {finding.position}: {dropped} bytes from offset {kept_offset} on are dropped",
        )
        for other in later:
            self._step(other.path(), f"remove: {other.size} bytes from offset {other.base_offset} on are dropped")
        gone = [offset for offset in self._folder.snapshots if offset > kept_offset]
        self.end = kept_offset
        if not self._dry_run:
            made = Segment(self._env, self._folder.path, segment.base_offset)
            made.truncate(finding.position)
            for other in later:
                Segment(self._env, self._folder.path, other.base_offset).delete_files()
            for offset in gone:
                self._env.remove_if_exists(self._snapshot_path(offset))
            self._env.disk.sync_dir(self._folder.path)
        segment.size = finding.position
        self._folder.segments = [other for other in self._folder.segments if other not in later]
        self._folder.snapshots = [offset for offset in self._folder.snapshots if offset <= kept_offset]
        # Rebuild everything derived from the part that was cut.
        for suffix, kind in (
            (names.INDEX_SUFFIX, FileKind.INDEX),
            (names.TXN_INDEX_SUFFIX, FileKind.TXN_INDEX),
        ):
            self._findings.append(Finding(segment.path(suffix), kind, "its log was cut"))
        if kept_offset > self._folder.segments[0].base_offset:
            self._findings.append(Finding(self._snapshot_path(kept_offset), FileKind.SNAPSHOT, "of the new end"))
        self._findings.append(
            Finding(f"{self._folder.path}/{names.LEADER_EPOCH_CHECKPOINT}", FileKind.EPOCHS, "its log was cut")
        )

    def _end_before(self, segment: SegmentFiles, position: int) -> int:
        """Return the offset after the last batch before a position."""
        end = segment.base_offset
        for header, _ in scan_batches(self._env.disk, segment.path(), position):
            end = header.next_offset
        return end

    # What is derived from it -------------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """Rebuild derived files in one pass over the log."""
        requested: dict[FileKind, list[str]] = {kind: [] for kind in _DERIVED}
        kept = {segment.path() for segment in self._folder.segments}
        for finding in self._findings:
            if finding.kind not in requested or finding.path in requested[finding.kind]:
                continue
            stem = finding.path.rpartition(".")[0]
            if finding.kind in (*_INDEXES, FileKind.TXN_INDEX) and f"{stem}{names.LOG_SUFFIX}" not in kept:
                continue  # deleted with its segment
            if finding.kind is FileKind.SNAPSHOT and self._offset_of(finding.path) > self._end_after_cut():
                if not finding.wrong:
                    self._remove(finding.path)
                continue
            requested[finding.kind].append(finding.path)
        self._rebuild_indexes([*requested[FileKind.INDEX], *requested[FileKind.TIME_INDEX]])
        replayed = [*requested[FileKind.TXN_INDEX], *requested[FileKind.SNAPSHOT], *requested[FileKind.EPOCHS]]
        if self._damaged_from is not None:
            self._leave(replayed)
        elif replayed:
            for path in replayed:
                self._step(path, "rebuild from the log")
            if not self._dry_run:
                self._replay(set(replayed))

    def _end_after_cut(self) -> int:
        if self.end is not None:
            return self.end
        return self._report.before.ends[self._folder.partition]

    def _offset_of(self, path: str) -> int:
        file = names.parse_numbered(path.rpartition("/")[2])
        assert file is not None
        return file.offset

    def _rebuild_indexes(self, paths: list[str]) -> None:
        for base in sorted({self._offset_of(path) for path in paths}):
            segment = Segment(self._env, self._folder.path, base)
            if self._damaged_from is not None and base >= self._damaged_from:
                self._leave([path for path in paths if self._offset_of(path) == base])
                continue
            self._step(segment.path(names.INDEX_SUFFIX), "rebuild with its time index from the log")
            if not self._dry_run:
                segment.rebuild_indexes()

    def _replay(self, requested: set[str]) -> None:
        """Replay producers and epochs through the log and write the requested files."""
        state = ProducerState()
        epochs = LeaderEpochCache()
        segments = self._folder.segments
        start = segments[0].base_offset if segments else 0
        snapshots = sorted(self._offset_of(path) for path in requested if path.endswith(names.SNAPSHOT_SUFFIX))
        if start in self._folder.snapshots and start not in snapshots:
            state.load(decode_snapshot(self._env.disk.read(self._snapshot_path(start))), start, 0)
        for segment in segments:
            index = TransactionIndex()
            for header, data in scan_batches(self._env.disk, segment.path(), segment.size):
                while snapshots and snapshots[0] <= header.base_offset:
                    self._write_snapshot(snapshots.pop(0), state)
                epochs.assign(header.partition_leader_epoch, header.base_offset)
                completed = replay_batch(state, header, data)
                if completed is not None:
                    if completed.aborted:
                        stable = state.last_stable_after(completed)
                        index.append(
                            AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, stable)
                        )
                    state.complete(completed, header.next_offset)
            if segment.path(names.TXN_INDEX_SUFFIX) in requested:
                Segment(self._env, self._folder.path, segment.base_offset).write_txn_index(index, sync=True)
        for offset in snapshots:
            self._write_snapshot(offset, state)
        path = f"{self._folder.path}/{names.LEADER_EPOCH_CHECKPOINT}"
        if path in requested:
            write_atomic(self._env.disk, path, encode_epochs(epochs.entries()))

    def _write_snapshot(self, offset: int, state: ProducerState) -> None:
        self._env.write_file(self._snapshot_path(offset), state.encode_snapshot(), sync=True)

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._folder.path}/{names.offset_name(offset, names.SNAPSHOT_SUFFIX)}"

    # Reporting ---------------------------------------------------------------------------------------------------

    def _step(self, path: str, action: str) -> None:
        self._report.steps.append(Step(path, action))

    def _remove(self, path: str) -> None:
        self._step(path, "remove: it belongs to no part of the log")
        if not self._dry_run:
            self._env.remove_if_exists(path)

    def _leave(self, paths: list[str]) -> None:
        self._report.left += [finding for finding in self._findings if finding.path in paths and finding.wrong]
