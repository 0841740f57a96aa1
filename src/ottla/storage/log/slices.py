"""A byte range of a segment that is sent unparsed, and the result of a read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from ottla.records.batch import BatchHeader
    from ottla.storage.log.indexes import AbortedTxn
    from ottla.storage.log.segment import Segment
    from ottla.storage.open_files import OpenFile


class FileSlice:
    """Whole batches of one segment; until it is released, the segment's file is neither closed nor deleted.

    Created and released on the loop; in between, one thread may read from it.
    """

    __slots__ = ("_entry", "_length", "_segment", "position")

    def __init__(self, segment: Segment, position: int, length: int) -> None:
        self._segment = segment
        self.position = position
        self._length = length
        self._entry: OpenFile | None = segment.pin() if length else None

    def __len__(self) -> int:
        return self._length

    def read(self, position: int, count: int) -> bytes:
        """Return up to `count` bytes from a position within the slice."""
        count = min(count, self._length - position)
        if count <= 0 or self._entry is None:
            return b""
        try:
            return self._entry.file.read_at(self.position + position, count)
        except OSError as error:
            raise self._segment.env.fail(error) from error

    def read_all(self) -> bytes:
        """Return all bytes."""
        return self.read(0, self._length)

    def batches(self) -> Iterator[BatchHeader]:
        """Yield the headers of the batches, with their positions in the segment."""
        return self._segment.batches(self.position, self.position + self._length)

    def narrow(self, position: int, length: int) -> None:
        """Reduce the slice to a part of it."""
        self.position += position
        self._length = length

    def release(self) -> None:
        """Unpin the segment. A second release does nothing."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._segment.unpin(entry)

    def __enter__(self) -> FileSlice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class LogRead(NamedTuple):
    """The result of a read (FetchDataInfo): the batches, their offset, and aborted transactions for read_committed."""

    start_offset: int
    records: FileSlice | None
    segment_base_offset: int
    position: int
    aborted: list[AbortedTxn] | None
    first_batch_too_large: bool

    def __len__(self) -> int:
        return 0 if self.records is None else len(self.records)


class TimestampOffset(NamedTuple):
    """A record's timestamp, its offset, and its leader epoch if known (Kafka's TimestampAndOffset)."""

    timestamp: int
    offset: int
    leader_epoch: int | None
