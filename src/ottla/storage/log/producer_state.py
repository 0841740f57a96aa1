"""Producer state of a log (Kafka's ProducerStateManager): last batches for idempotence, open transactions.

State and rules only; `Log` decides when snapshots are written. Formats are Kafka's.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import MAX_INT32, decrement_sequence
from ottla.records.control import ControlType, parse_marker
from ottla.records.crc import crc32c
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.storage.environment import DEFAULT_PRODUCER_EXPIRATION_MS
from ottla.storage.errors import CorruptSnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.records.batch import BatchHeader
    from ottla.records.control import EndTransactionMarker

BATCHES_TO_RETAIN = 5
MAX_PRODUCER_EPOCH = 0x7FFF

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6


class AppendOrigin(IntEnum):
    """The origin of an append: client, coordinator, replication, or the Raft leader."""

    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2


class BatchMetadata(NamedTuple):
    """The sequence numbers and offsets of an idempotent batch, to answer its duplicate (Kafka's BatchMetadata)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The batch's first sequence number."""
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        """The batch's first offset."""
        return self.last_offset - self.offset_delta


class CompletedTxn(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerEntry:
    """One producer's state (ProducerStateEntry); `current_txn_first_offset` is -1 without an open transaction."""

    producer_id: int
    producer_epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    current_txn_first_offset: int = -1
    batches: list[BatchMetadata] = field(default_factory=list)

    @property
    def last_sequence(self) -> int:
        """The last sequence number of the current epoch, or -1."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_data_offset(self) -> int:
        """The offset of the last data record of the current epoch, or -1."""
        return self.batches[-1].last_offset if self.batches else -1

    def find_duplicate(self, producer_epoch: int, first: int, last: int) -> BatchMetadata | None:
        """Return the retained batch with exactly these sequence numbers, or None."""
        if producer_epoch == self.producer_epoch:
            for batch in self.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
        return None

    def move_to_epoch(self, producer_epoch: int) -> None:
        """Begin a producer epoch: drop the batches of the earlier one; sequence numbers restart at 0."""
        if self.producer_epoch != producer_epoch:
            self.batches.clear()
            self.producer_epoch = producer_epoch

    def add_batch(self, batch: BatchMetadata) -> None:
        """Retain a batch; keep the last five."""
        if len(self.batches) == BATCHES_TO_RETAIN:
            del self.batches[0]
        self.batches.append(batch)


class ProducerAppend:
    """One producer's batches of an append (ProducerAppendInfo); changes nothing until `ProducerState.update`."""

    __slots__ = ("_current", "_origin", "_supports_epoch_bump", "entry", "started")

    def __init__(
        self, current: ProducerEntry | None, producer_id: int, origin: AppendOrigin, supports_epoch_bump: bool
    ) -> None:
        self._current = current
        self._origin = origin
        self._supports_epoch_bump = supports_epoch_bump
        if current is None:
            self.entry = ProducerEntry(producer_id)
        else:
            self.entry = ProducerEntry(
                producer_id,
                current.producer_epoch,
                current.coordinator_epoch,
                current.last_timestamp,
                current.current_txn_first_offset,
            )
        self.started: list[int] = []

    def append_data(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Check a data batch that will stand at `base_offset`, and note it."""
        entry = self.entry
        self._check_epoch(header.producer_epoch, -1)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(header.producer_epoch, header.base_sequence)
        entry.move_to_epoch(header.producer_epoch)
        entry.add_batch(
            BatchMetadata(
                header.last_sequence,
                base_offset + header.last_offset_delta,
                header.last_offset_delta,
                max_timestamp,
            )
        )
        entry.last_timestamp = max_timestamp
        if entry.current_txn_first_offset >= 0:
            if not header.is_transactional:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE,
                    f"Expected a transactional write from producer {entry.producer_id} at offset {base_offset}.",
                )
        elif header.is_transactional:
            entry.current_txn_first_offset = base_offset
            self.started.append(base_offset)

    def append_marker(
        self,
        marker: EndTransactionMarker,
        producer_epoch: int,
        offset: int,
        timestamp: int,
        transaction_version: int = 0,
    ) -> CompletedTxn | None:
        """Check the marker that ends a transaction, and note it; return the transaction if one was open."""
        entry = self.entry
        self._check_epoch(producer_epoch, transaction_version)
        if entry.coordinator_epoch > marker.coordinator_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {marker.coordinator_epoch} for producer {entry.producer_id} is older than "
                f"{entry.coordinator_epoch}.",
            )
        completed = None
        if entry.current_txn_first_offset >= 0:
            completed = CompletedTxn(
                entry.producer_id,
                entry.current_txn_first_offset,
                offset,
                marker.control_type == ControlType.ABORT,
            )
        entry.move_to_epoch(producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        entry.current_txn_first_offset = -1
        return completed

    def _check_epoch(self, producer_epoch: int, transaction_version: int) -> None:
        """Fence a zombie producer: raise INVALID_PRODUCER_EPOCH for an epoch older than the producer's last one.

        A marker of transaction version 2 must bump the epoch (KIP-890). Replicated batches are not refused.
        """
        entry = self.entry
        known = entry.producer_epoch
        if transaction_version < 2:
            if producer_epoch >= known:
                return
        elif producer_epoch > known:
            return
        elif producer_epoch == known and (entry.current_txn_first_offset < 0 or producer_epoch == MAX_PRODUCER_EPOCH):
            return  # the coordinator repeats a marker (KIP-890)
        if self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {entry.producer_id} is {producer_epoch}, which is older than {known}.",
            )

    def _check_sequence(self, producer_epoch: int, sequence: int) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER unless the sequence number follows the last one of its epoch."""
        entry, current = self.entry, self._current
        if self._supports_epoch_bump and sequence != 0 and (current is None or not current.batches):
            raise _out_of_order(entry.producer_id, sequence, "a new producer epoch starts with sequence 0")
        if producer_epoch != entry.producer_epoch:
            # A producer that is unknown here (new or expired) may start with any sequence number.
            if sequence != 0 and entry.producer_epoch != -1:
                raise _out_of_order(entry.producer_id, sequence, "a new producer epoch starts with sequence 0")
            return
        if current is None or current.producer_epoch == -1:
            return
        if entry.batches:
            last = entry.last_sequence
        elif producer_epoch == current.producer_epoch:
            last = current.last_sequence
        else:
            last = -1
        if sequence != last + 1 and not (sequence == 0 and last == MAX_INT32):
            raise _out_of_order(entry.producer_id, sequence, f"the last one was {last}")


def _out_of_order(producer_id: int, sequence: int, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"Out of order sequence number {sequence} of producer {producer_id}: {why}.",
    )


class ProducerState:
    """All producers of a log, and the transactions that hold back its last stable offset (ProducerStateManager)."""

    __slots__ = ("_unreplicated", "expiration_ms", "map_end_offset", "ongoing", "producers", "snapshot")

    def __init__(self, expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS) -> None:
        self.expiration_ms = expiration_ms
        self.map_end_offset = 0
        self.producers: dict[int, ProducerEntry] = {}
        self.ongoing: OrderedDict[int, int] = OrderedDict()  # first offset, increasing -> producer id
        self.snapshot: SnapshotInProgress | None = None
        self._unreplicated: dict[int, int] = {}  # first offset -> offset of its marker, at or above the high watermark

    def prepare(self, producer_id: int, origin: AppendOrigin, *, supports_epoch_bump: bool = False) -> ProducerAppend:
        """Begin a producer's part of an append."""
        return ProducerAppend(self.producers.get(producer_id), producer_id, origin, supports_epoch_bump)

    def update(self, append: ProducerAppend) -> None:
        """Apply an append that has been written."""
        new = append.entry
        if self.snapshot is not None:
            self.snapshot.encode_producer(new.producer_id)
        entry = self.producers.get(new.producer_id)
        if entry is None:
            self.producers[new.producer_id] = new
        else:
            entry.move_to_epoch(new.producer_epoch)
            for batch in new.batches:
                entry.add_batch(batch)
            entry.coordinator_epoch = new.coordinator_epoch
            entry.current_txn_first_offset = new.current_txn_first_offset
            entry.last_timestamp = new.last_timestamp
        for first_offset in append.started:
            self.ongoing[first_offset] = new.producer_id

    def last_stable_after(self, completed: CompletedTxn) -> int:
        """Return the last stable offset after this transaction."""
        for first_offset, producer_id in self.ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def complete(self, completed: CompletedTxn, high_watermark: int) -> None:
        """Close a transaction; it stays unstable until the high watermark passes its marker."""
        self.ongoing.pop(completed.first_offset, None)
        if completed.last_offset >= high_watermark:
            self._unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, high_watermark: int) -> None:
        """Release transactions whose markers are below the high watermark."""
        if self._unreplicated:
            for first_offset in [f for f, last in self._unreplicated.items() if last < high_watermark]:
                del self._unreplicated[first_offset]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open, or decided above the high watermark."""
        first = next(iter(self.ongoing)) if self.ongoing else None
        if self._unreplicated:
            other = min(self._unreplicated)
            return other if first is None else min(first, other)
        return first

    def remove_expired(self, now_ms: int) -> None:
        """Remove producers without open transaction that have written nothing for the expiration time."""
        latest = now_ms - self.expiration_ms
        expired = [
            producer_id
            for producer_id, entry in self.producers.items()
            if entry.last_timestamp <= latest and entry.current_txn_first_offset < 0
        ]
        for producer_id in expired:
            del self.producers[producer_id]

    def _expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.current_txn_first_offset < 0 and now_ms - entry.last_timestamp >= self.expiration_ms

    def clear(self, map_end_offset: int) -> None:
        """Remove all producers; the state is that of an empty log that ends at this offset."""
        self.snapshot = None
        self.producers.clear()
        self.ongoing.clear()
        self._unreplicated.clear()
        self.map_end_offset = map_end_offset

    def load(self, entries: Iterable[ProducerEntry], map_end_offset: int, now_ms: int) -> None:
        """Load a snapshot's entries, except those that have expired."""
        self.clear(map_end_offset)
        transactions = []
        for entry in entries:
            if self._expired(entry, now_ms):
                continue
            self.producers[entry.producer_id] = entry
            if entry.current_txn_first_offset >= 0:
                transactions.append((entry.current_txn_first_offset, entry.producer_id))
        self.ongoing.update(sorted(transactions))

    def encode_snapshot(self) -> bytes:
        """Return a `.snapshot` file of the state."""
        return _snapshot_file([_pack(entry) for entry in self.producers.values()])

    def begin_snapshot(self) -> SnapshotInProgress:
        """Begin a snapshot of the state as it is now, to be encoded in pieces while producers continue to write."""
        self.snapshot = SnapshotInProgress(dict(self.producers), self.map_end_offset)
        return self.snapshot


class SnapshotInProgress:
    """A producer snapshot that is encoded in pieces: tens of thousands of producers take too long for one turn.

    A producer that writes before its turn is encoded just before its state changes.
    """

    __slots__ = ("_entries", "_packed", "offset")

    def __init__(self, producers: dict[int, ProducerEntry], offset: int) -> None:
        self.offset = offset
        self._entries = producers
        self._packed: list[bytes] = []

    def encode_producer(self, producer_id: int) -> None:
        """Encode a producer that is about to change, unless that was done."""
        entry = self._entries.pop(producer_id, None)
        if entry is not None:
            self._packed.append(_pack(entry))

    def encode_some(self, most: int) -> bool:
        """Encode the next producers; return whether any are left."""
        entries, packed = self._entries, self._packed
        for _ in range(min(most, len(entries))):
            packed.append(_pack(entries.popitem()[1]))
        return bool(entries)

    def encoded(self) -> bytes:
        """Return the `.snapshot` file."""
        return _snapshot_file(self._packed)


def _pack(entry: ProducerEntry) -> bytes:
    sequence, offset, delta = -1, -1, 0
    if entry.batches:
        last = entry.batches[-1]
        sequence, offset, delta = last.last_sequence, last.last_offset, last.offset_delta
    return _SNAPSHOT_ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        sequence,
        offset,
        delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def _snapshot_file(entries: list[bytes]) -> bytes:
    body = struct.pack(">i", len(entries)) + b"".join(entries)
    return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Decode a `.snapshot` file; raise CorruptSnapshotError if it is damaged."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptSnapshotError(f"snapshot has only {len(data)} bytes")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"snapshot has unknown version {version}")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptSnapshotError("snapshot has a wrong CRC")
    if count < 0 or len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        raise CorruptSnapshotError(f"snapshot of {len(data)} bytes claims {count} producers")
    entries = []
    for pid, epoch, sequence, offset, delta, timestamp, coordinator, txn in _SNAPSHOT_ENTRY.iter_unpack(
        memoryview(data)[_SNAPSHOT_HEAD.size :]
    ):
        batches = [BatchMetadata(sequence, offset, delta, timestamp)] if offset >= 0 else []
        entries.append(ProducerEntry(pid, epoch, coordinator, timestamp, max(txn, -1), batches))
    return entries


def read_marker(buffer: bytes | bytearray | memoryview, header: BatchHeader) -> tuple[EndTransactionMarker, int] | None:
    """Return the marker in a control batch and its timestamp; None if compaction left the batch empty."""
    for record in iter_records(buffer, header):
        try:
            return parse_marker(record.key, record.value), record.timestamp
        except InvalidRecords:
            return None
    return None
