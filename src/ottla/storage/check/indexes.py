"""Check the indexes of a segment against its batches during one pass; report one fault per file.

The rules ensure correct lookups, so that indexes of all Kafka versions pass: older ones index several
batches by one entry, with the position of the first and the offset of the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.records.control import ControlType
from ottla.records.errors import InvalidRecords
from ottla.storage.log.indexes import OFFSET_ENTRY, TIME_ENTRY, AbortedTxn, OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.log.producer_state import read_marker
from ottla.storage.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX

if TYPE_CHECKING:
    from ottla.records.batch import BatchHeader
    from ottla.storage.log.producer_state import CompletedTxn

TXN_ENTRY = 34


class Fault(NamedTuple):
    """A fault in an index: reason, byte position and offset."""

    reason: str
    position: int
    offset: int


class OffsetIndexCheck:
    """Check that entries point at batches, and that no earlier batch reaches the entry's offset."""

    suffix = INDEX_SUFFIX

    def __init__(self, base_offset: int, data: bytes, log_size: int) -> None:
        self._index = OffsetIndex.decode(base_offset, data, log_size)
        self._entry = 0
        self._before = base_offset - 1  # the last offset before the batch
        self._end = 0
        self.fault: Fault | None = None

    def batch(self, header: BatchHeader) -> None:
        """Check the entries that point at this batch or, wrongly, into the one before."""
        index = self._index
        while self._entry < len(index) and index.positions[self._entry] <= header.position:
            entry, self._entry = self._entry, self._entry + 1
            offset, position = index.base_offset + index.relative[entry], index.positions[entry]
            if position != header.position:
                self._fail(entry, offset, f"offset {offset} at byte {position}, where no batch begins")
            elif offset < header.last_offset or offset <= self._before:
                at = f"the batch at byte {position} holds {header.base_offset} to {header.last_offset}"
                self._fail(entry, offset, f"offset {offset} at byte {position}, but {at}")
            elif entry and index.relative[entry] <= index.relative[entry - 1]:
                self._fail(entry, offset, f"offset {offset} is not above the one before it")
        self._before = header.last_offset
        self._end = header.position + header.size

    def end(self, whole: bool) -> None:
        """Finish the segment; one that was not read to its end is not judged."""
        if whole and self._entry < len(self._index):
            offset = self._index.base_offset + self._index.relative[self._entry]
            position = self._index.positions[self._entry]
            self._fail(self._entry, offset, f"offset {offset} at byte {position}, where no batch begins")
        if whole and len(self._index) and self._index.last_offset > self._before:
            last = len(self._index) - 1
            self._fail(last, self._index.last_offset, f"offset {self._index.last_offset}, after the segment's end")

    def _fail(self, entry: int, offset: int, what: str) -> None:
        if self.fault is None:
            self.fault = Fault(f"entry {entry} has {what}", entry * OFFSET_ENTRY, offset)


class TimeIndexCheck:
    """Check that the batch at an entry's offset has the entry's timestamp, and no earlier batch a later one."""

    suffix = TIME_INDEX_SUFFIX

    def __init__(self, base_offset: int, data: bytes) -> None:
        self._index = TimeIndex.decode(base_offset, data)
        self._entry = 0
        self._latest = -1
        self.fault: Fault | None = None

    def batch(self, header: BatchHeader) -> None:
        """Check the entries whose offset is in this batch."""
        index = self._index
        while self._entry < len(index) and index.offsets[self._entry] <= header.last_offset:
            entry, self._entry = self._entry, self._entry + 1
            offset, timestamp = index.offsets[entry], index.timestamps[entry]
            if timestamp < self._latest:
                self._fail(entry, offset, f"time {timestamp} at offset {offset}, but {self._latest} stands before it")
            elif timestamp != max(header.max_timestamp, self._latest):
                at = f"the batch there has {header.max_timestamp}"
                self._fail(entry, offset, f"time {timestamp} at offset {offset}, but {at}")
        self._latest = max(self._latest, header.max_timestamp)

    def end(self, whole: bool) -> None:
        """Finish the segment."""
        if whole and self._entry < len(self._index) and self._index.timestamps[self._entry] >= 0:
            offset = self._index.offsets[self._entry]
            # An empty segment's index may name its base offset.
            if self._latest >= 0 or offset != self._index.base_offset:
                self._fail(self._entry, offset, f"offset {offset}, after the segment's end")

    def _fail(self, entry: int, offset: int, what: str) -> None:
        if self.fault is None:
            self.fault = Fault(f"entry {entry} has {what}", entry * TIME_ENTRY, offset)


class TransactionIndexCheck:
    """Check that each entry ends at an abort marker of its producer, and that each aborted transaction has an entry."""

    suffix = TXN_INDEX_SUFFIX

    def __init__(self, base_offset: int, data: bytes, must_list_all: bool) -> None:
        self._entries = TransactionIndex.decode(base_offset, data).entries
        self._by_last = {entry.last_offset: number for number, entry in enumerate(self._entries)}
        self._must_list_all = must_list_all
        self._seen: set[int] = set()
        self.fault: Fault | None = None
        if len(data) % TXN_ENTRY:
            self._fail(len(self._entries), base_offset, "is cut off")

    def batch(self, header: BatchHeader, data: memoryview) -> None:
        """Check an abort marker that has an entry."""
        if not header.is_control or header.producer_id < 0:
            return
        number = self._by_last.get(header.base_offset)
        if number is None:
            return
        try:
            marker = read_marker(data, header._replace(position=0))
        except InvalidRecords:
            self._seen.add(number)  # a damaged marker is a fault of the log, not of the index
            return
        entry = self._entries[number]
        if marker is not None and marker[0].control_type == ControlType.ABORT:
            self._seen.add(number)
            if entry.producer_id != header.producer_id:
                what = f"has producer {entry.producer_id}, the marker has producer {header.producer_id}"
                self._fail(number, entry.last_offset, what)

    def ended(self, completed: CompletedTxn, last_stable_offset: int, trusted: bool) -> None:
        """Check the entry of a completed transaction whose records are still in the log."""
        if not completed.aborted or not self._must_list_all or not trusted:
            return
        expected = AbortedTxn(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)
        number = self._by_last.get(completed.last_offset)
        if number is None:
            what = f"has no entry for the transaction of producer {expected.producer_id} that was aborted at offset"
            self.fault = self.fault or Fault(f"{what} {expected.last_offset}", 0, expected.last_offset)
        elif self._entries[number] != expected:
            entry = self._entries[number]
            differing = [name for name in AbortedTxn._fields if getattr(entry, name) != getattr(expected, name)]
            what = ", ".join(
                f"{name.replace('_', ' ')} {getattr(entry, name)} instead of {getattr(expected, name)}"
                for name in differing
            )
            self._fail(number, expected.last_offset, f"has {what}")

    def end(self, whole: bool) -> None:
        """Finish the segment."""
        for number, entry in enumerate(self._entries if whole else []):
            if number not in self._seen:
                self._fail(number, entry.last_offset, f"names offset {entry.last_offset}, where nothing is aborted")
                return

    def _fail(self, entry: int, offset: int, what: str) -> None:
        if self.fault is None:
            self.fault = Fault(f"entry {entry} {what}", entry * TXN_ENTRY, offset)
