"""The files of one log: segments and producer snapshots, found by offset, replaced, moved and deleted.

Contents and offsets are `Log`'s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from ottla.storage.log.segment import Segment
from ottla.storage.names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, offset_name, parse_numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.storage.config import LogConfig
    from ottla.storage.environment import StorageEnvironment
    from ottla.world.disk import File


class LogFiles:
    """The folder of a log: its segments and producer snapshots, in step with the files (Kafka's LogSegments)."""

    __slots__ = ("_folder", "_new_names", "_segments", "bases", "config", "env", "snapshots", "txn_bases")

    def __init__(self, env: StorageEnvironment, folder: str, config: LogConfig) -> None:
        self.env = env
        self.config = config
        self.bases: list[int] = []
        self.txn_bases: list[int] = []
        self.snapshots: list[int] = []
        self._segments: list[Segment] = []
        self._folder = folder
        self._new_names = False

    @property
    def folder(self) -> str:
        """The folder of the log's files."""
        return self._folder

    def _take_names(self, names: list[str]) -> bool:
        """Note segments and snapshots by file name; return False if recovery has to look at the files."""
        indexed: set[int] = set()
        for name in names:
            file = parse_numbered(name)
            if file is None:
                continue
            if file.mark:
                return False
            if file.kind == ".log":
                self.bases.append(file.offset)
            elif file.kind == ".index":
                indexed.add(file.offset)
            elif file.kind == TXN_INDEX_SUFFIX:
                self.txn_bases.append(file.offset)
            elif file.kind == SNAPSHOT_SUFFIX:
                self.snapshots.append(file.offset)
        if not self.bases or indexed != set(self.bases):
            self.bases, self.txn_bases, self.snapshots = [], [], []
            return False
        self._segments = [Segment(self.env, self._folder, base) for base in self.bases]
        return True

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> list[Segment]:
        """All segments, oldest first; the last one is active."""
        return self._segments

    def segments_from(self, offset: int) -> list[Segment]:
        """Return the segment that holds an offset and all after it."""
        return self._segments[max(bisect_right(self.bases, offset) - 1, 0) :]

    def segments_between(self, start: int, end: int) -> list[Segment]:
        """Return the segments that may hold offsets of [start, end)."""
        if start >= end:
            return []
        first = max(bisect_right(self.bases, start) - 1, 0)
        return self._segments[first : bisect_left(self.bases, end)]

    def replace_segment_list(self, segments: list[Segment]) -> None:
        """Replace the list of segments by those that recovery or compaction made."""
        self._segments = segments
        self.bases = [segment.base_offset for segment in segments]

    def remove_segments(self, gone: list[Segment]) -> None:
        """Remove segments from the log; rename their files now, delete them after `file.delete.delay.ms`."""
        bases = {segment.base_offset for segment in gone}
        self.replace_segment_list([s for s in self._segments if s.base_offset not in bases])
        self.txn_bases = [base for base in self.txn_bases if base not in bases]
        for segment in gone:
            self.discard(segment)
            self.discard_snapshot(segment.base_offset, later=True)
        self._new_names = True

    def segment_at(self, base_offset: int) -> Segment | None:
        """Return the segment with that base offset, or None."""
        slot = bisect_left(self.bases, base_offset)
        exists = slot < len(self.bases) and self.bases[slot] == base_offset
        return self._segments[slot] if exists else None

    def swap_segments(self, old: list[Segment], made: Segment) -> None:
        """Replace segments by the cleaned one that was made from them."""
        bases = {segment.base_offset for segment in old}
        kept = [segment for segment in self._segments if segment.base_offset not in bases]
        self.replace_segment_list(sorted([*kept, made], key=lambda segment: segment.base_offset))
        self.txn_bases = [base for base in self.txn_bases if base not in bases]
        if made.txn_index.entries:
            self.txn_bases = sorted([*self.txn_bases, made.base_offset])
        for base in sorted(bases - {made.base_offset}):
            self.discard_snapshot(base, later=True)

    def discard(self, segment: Segment) -> None:
        """Rename a segment's files to `.deleted`, and delete them later, when no read has them pinned."""
        segment.active = False
        if segment.mark != DELETED_SUFFIX:
            segment.change_mark(DELETED_SUFFIX)
        self.env.later(
            self.config.file_delete_delay_ms, lambda: segment.when_unpinned(lambda: self._delete_files(segment))
        )

    def _delete_files(self, segment: Segment) -> None:
        try:
            segment.delete_files()
        except OSError as error:
            self.env.fail(error)

    def discard_snapshot(self, offset: int, *, later: bool = False) -> None:
        """Delete a producer snapshot, at once or (`later`) with its segment."""
        if offset not in self.snapshots:
            return
        self.snapshots.remove(offset)
        path = self.snapshot_path(offset)
        if not later:
            self.env.remove_if_exists(path)
            return
        try:
            self.env.disk.rename(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return
        self.env.later(self.config.file_delete_delay_ms, lambda: self._delete_file(path + DELETED_SUFFIX))

    def _delete_file(self, path: str) -> None:
        try:
            self.env.remove_if_exists(path)
        except OSError as error:
            self.env.fail(error)

    def close_files(self) -> None:
        """Close the files of all segments."""
        for segment in self._segments:
            self.env.files.drop(segment.log_path)

    def move_to(self, folder: str) -> None:
        """Rename the log's folder; open files stay valid."""
        self.env.files.drop_under(self._folder)
        self.env.disk.rename(self._folder, folder)
        self._folder = folder
        for segment in self._segments:
            segment.move_to(folder)

    def when_unpinned(self, action: Callable[[], None]) -> None:
        """Call `action` once no read has any segment pinned."""
        waiting = len(self._segments)

        def one() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                action()

        for segment in list(self._segments):
            segment.when_unpinned(one)

    def snapshot_path(self, offset: int) -> str:
        """Return the path of the producer snapshot at an offset."""
        return f"{self._folder}/{offset_name(offset, SNAPSHOT_SUFFIX)}"

    def _sync_names(self) -> None:
        """Fsync the folder if it has new files."""
        if self._new_names:
            self.env.disk.sync_dir(self._folder)
            self._new_names = False

    def _open_all(self, paths: Iterable[str]) -> list[File]:
        return [file for path in paths if (file := self.env.open_if_exists(path)) is not None]
