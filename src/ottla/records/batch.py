"""The header of a record batch: parsed at a position of a buffer, checked, and stamped in place (DefaultRecordBatch).

Covers the 61 bytes before the records and the CRC-32C; `kernel` and `iterate` read the records.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.records.crc import crc32c
from ottla.records.errors import ErrorCode, InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import ReadableBuffer, WriteableBuffer

MAGIC: Final = 2
LOG_OVERHEAD: Final = 12  # base offset and batch length, which the length does not count
HEADER_SIZE: Final = 61
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21  # the CRC covers everything from here on
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_POSITION: Final = 43

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1
MAX_INT32: Final = 0x7FFFFFFF

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40
KNOWN_ATTRIBUTES: Final = 0x7F

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC: Final = struct.Struct(">I")
_LENGTH_AND_MAGIC = struct.Struct(">i4xb")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC_AND_ATTRIBUTES = struct.Struct(">Ih")
_PRODUCER = struct.Struct(">qhi")


class TimestampType(IntEnum):
    """The source of the records' timestamps: CreateTime (the producer) or LogAppendTime (the broker)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header of one batch; `position` is where the batch starts in its buffer."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def end(self) -> int:
        """The position after the batch."""
        return self.position + LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record, also if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if the producer is not idempotent."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> int:
        """The codec's number: a `CompressionType`, or 5 to 7 in an invalid batch."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """CreateTime or LogAppendTime."""
        if self.attributes & LOG_APPEND_TIME_FLAG:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction; markers are, too."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether this is a control batch, which consumers skip."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the delete horizon that compaction wrote."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The delete horizon: when tombstones and markers of this batch may be removed; None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID


def increment_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence number, which wraps to 0 after 2**31 - 1."""
    if sequence > MAX_INT32 - increment:
        return increment - (MAX_INT32 - sequence) - 1
    return sequence + increment


def decrement_sequence(sequence: int, decrement: int) -> int:
    """Subtract from a sequence number, which wraps to 2**31 - 1 below 0."""
    if sequence < decrement:
        return MAX_INT32 - (decrement - sequence) + 1
    return sequence - decrement


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Return the header at a position; check only that its 61 bytes are there."""
    try:
        return BatchHeader._make((*HEADER.unpack_from(buffer, position), position))
    except struct.error:
        raise InvalidRecords(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch header needs {HEADER_SIZE} bytes at position {position}, fewer are there",
        ) from None


def iter_batches(buffer: ReadableBuffer, position: int = 0, end: int | None = None) -> Iterator[BatchHeader]:
    """Yield the headers of consecutive whole batches; stop at a batch that is cut off.

    Raise for an impossible length or another magic; contents are not checked (see `check_crc`).
    """
    if end is None:
        end = len(memoryview(buffer))
    while end - position >= MAGIC_POSITION + 1:
        length, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, position + 8)
        if magic != MAGIC:
            raise _wrong_magic(magic, position)
        size = LOG_OVERHEAD + length
        if size < HEADER_SIZE:
            raise InvalidRecords(
                ErrorCode.CORRUPT_MESSAGE,
                f"batch at position {position} claims {size} bytes, fewer than its header has",
            )
        if size > end - position:
            return
        yield BatchHeader._make((*HEADER.unpack_from(buffer, position), position))
        position += size


def _wrong_magic(magic: int, position: int) -> InvalidRecords:
    if magic in (0, 1):
        return InvalidRecords(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"batch at position {position} has message format {magic}; only format 2 can be read",
        )
    return InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"batch at position {position} has unknown magic {magic}")


def compute_crc(buffer: ReadableBuffer, position: int, size: int) -> int:
    """Return the CRC-32C of the batch of that size at that position, over everything after its CRC field."""
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : position + size])


def check_crc(buffer: ReadableBuffer, header: BatchHeader) -> bool:
    """Return whether the CRC of a batch is valid."""
    start = header.position + ATTRIBUTES_POSITION
    return crc32c(memoryview(buffer)[start : header.end]) == header.crc


def stamp_offset(buffer: WriteableBuffer, position: int, base_offset: int, partition_leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch; the CRC covers neither."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + LOG_OVERHEAD, partition_leader_epoch)


def stamp_timestamp(buffer: WriteableBuffer, position: int, timestamp_type: TimestampType, max_timestamp: int) -> bool:
    """Write timestamp type, largest timestamp and CRC into a batch, unless it has them already."""
    header = read_header(buffer, position)
    if header.timestamp_type == timestamp_type and header.max_timestamp == max_timestamp:
        return False
    attributes = header.attributes & KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_FLAG
    if timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    _CRC_AND_ATTRIBUTES.pack_into(buffer, position + CRC_POSITION, 0, attributes)
    _OFFSET.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = compute_crc(buffer, position, header.size)
    _CRC_AND_ATTRIBUTES.pack_into(buffer, position + CRC_POSITION, crc, attributes)
    return True


def stamp_producer(
    buffer: WriteableBuffer, position: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Write producer id, epoch and sequence into a batch that was read from a log, so that it can be produced again.

    The timestamp type becomes CreateTime, which is the only one that brokers accept from a producer.
    """
    header = read_header(buffer, position)
    attributes = header.attributes & KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_FLAG
    stamp_offset(buffer, position, 0, NO_LEADER_EPOCH)
    _PRODUCER.pack_into(buffer, position + PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC_AND_ATTRIBUTES.pack_into(buffer, position + CRC_POSITION, 0, attributes)
    crc = compute_crc(buffer, position, header.size)
    _CRC_AND_ATTRIBUTES.pack_into(buffer, position + CRC_POSITION, crc, attributes)
