"""Validates a batch by the rules of Kafka's LogValidator, with Kafka's error for each.

Header rules are here, the walk over the records is `kernel`'s, and producer state is `storage`'s.

Where Kafka fails on a batch, or appends what no consumer can read, this answers INVALID_RECORD: offset deltas must
count up from 0 (Kafka ignores them in uncompressed batches and answers UNKNOWN_SERVER_ERROR otherwise), and a record's
length must equal the length of its fields in compressed batches as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.records import kernel
from ottla.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    compute_crc,
    read_header,
    stamp_offset,
    stamp_timestamp,
)
from ottla.records.builder import seal_batch
from ottla.records.compression import (
    MAX_DECOMPRESSED,
    CompressionType,
    DecompressionLimitError,
    compress,
    decompress,
)
from ottla.records.errors import ErrorCode, InvalidRecords, RecordError
from ottla.records.iterate import invalid_record

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from ottla.records.compression import Plain

MAX_INT64: Final = 2**63 - 1
_NONE: Final = int(CompressionType.NONE)  # looked up once, because every batch takes this path
_LAST_CODEC: Final = int(CompressionType.ZSTD)
_CREATE_TIME: Final = TimestampType.CREATE_TIME
_LEGACY_OVERHEAD: Final = 14  # the least bytes after the length, in any format


# What one validation may cost while the event loop waits for it: about two milliseconds.
INLINE_BYTES: Final = 1024 * 1024  # of uncompressed records
INLINE_RECOMPRESSED_BYTES: Final = 64 * 1024
INLINE_REJECTED_RECORDS: Final = 1000


class ValidationDeferredError(Exception):
    """A batch takes more work to validate than the event loop allows; validate it in a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRules:
    """The rules of a log for a batch: the topic configs that matter, and whether a client appends."""

    compacted: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = MAX_INT64
    timestamp_after_max_ms: int = 3_600_000
    max_message_bytes: int = 1_048_588
    compression: CompressionType | None = None  # None keeps what the producer chose
    compression_level: int | None = None
    from_client: bool = True  # coordinators may write control batches and set offsets, clients may not
    max_decompressed: int = MAX_DECOMPRESSED


class ValidBatch(NamedTuple):
    """A batch that passed; `batch` is the one given, or re-encoded if the topic asks for another codec."""

    batch: memoryview
    header: BatchHeader  # of the batch as given, at position 0
    rewritten: bool
    timestamp_type: TimestampType
    max_timestamp: int
    max_timestamp_delta: int  # the offset delta of the first record with the largest timestamp, -1 without timestamps
    log_append_time: int  # -1 unless the topic uses LogAppendTime
    timestamps_differ: bool  # whether the header has another timestamp type or maximum

    @property
    def record_count(self) -> int:
        """The number of offsets that the batch takes."""
        return self.header.record_count

    def stamp(self, base_offset: int, partition_leader_epoch: int) -> memoryview:
        """Write offset, leader epoch and timestamps into the batch (a copy if its buffer is read-only); return it."""
        batch = self.batch
        if batch.readonly:
            batch = memoryview(bytearray(batch))
        stamp_offset(batch, 0, base_offset, partition_leader_epoch)
        if self.timestamps_differ:
            stamp_timestamp(batch, 0, self.timestamp_type, self.max_timestamp)
        return batch


def validate(
    buffer: ReadableBuffer, rules: LogRules, now: int, *, header: BatchHeader | None = None, inline: bool = False
) -> ValidBatch:
    """Check the one batch that a produce request has for a partition; raise `InvalidRecords` to refuse it.

    With `header` the buffer is one whole batch and this its header (from `only_batch`); it is not parsed again.
    Bytes behind the batch that are no whole batch are left out, as Kafka does. With `inline` raise
    `ValidationDeferredError` before more than a few milliseconds of work: the compressed size does not bound
    the uncompressed size.
    """
    batch = memoryview(buffer)
    if header is None:
        batch, header = only_batch(batch)
    attributes = header.attributes
    codec = attributes & COMPRESSION_MASK
    if inline and INLINE_BYTES < len(batch) <= rules.max_message_bytes:
        raise ValidationDeferredError
    _check_header(batch, header, rules)

    start, records = HEADER_SIZE, batch
    plain: Plain | None = None
    if codec != _NONE:
        plain = _decompress(codec, batch[HEADER_SIZE:], rules.max_decompressed, inline)
        start, records = 0, memoryview(plain)
    target = rules.compression
    recompress = target is not None and target != codec and (codec != _NONE or not attributes & CONTROL_FLAG)
    if inline and recompress and len(records) > INLINE_RECOMPRESSED_BYTES:
        raise ValidationDeferredError
    batch_stamped = attributes & LOG_APPEND_TIME_FLAG != 0
    create_time = rules.timestamp_type == _CREATE_TIME
    walk = kernel.RecordWalk(records, start, len(records), header.record_count)
    accepted = kernel.check_records(
        walk,
        header.max_timestamp if batch_stamped else header.base_timestamp,
        batch_stamped,
        rules.compacted,
        create_time,
        now,
        rules.timestamp_before_max_ms,
        rules.timestamp_after_max_ms,
    )
    if not accepted or (batch_stamped and (not create_time or header.max_timestamp == NO_TIMESTAMP)):
        if inline and not walk.error and header.record_count > INLINE_REJECTED_RECORDS:
            raise ValidationDeferredError
        raise _rejected(walk, header, rules, now)

    if create_time:
        max_timestamp, log_append_time = walk.max_timestamp, NO_TIMESTAMP
    else:
        max_timestamp = log_append_time = now
    differ = batch_stamped is create_time or max_timestamp != header.max_timestamp
    rewritten = False
    if recompress:
        assert target is not None
        body = batch[HEADER_SIZE:] if plain is None else plain
        batch = _recompress(body, header, target, rules, max_timestamp)
        rewritten, differ = True, False
    return ValidBatch(
        batch,
        header,
        rewritten,
        rules.timestamp_type,
        max_timestamp,
        walk.max_timestamp_index,
        log_append_time,
        differ,
    )


def _decompress(codec: int, data: memoryview, limit: int, inline: bool) -> Plain:
    if not inline or limit <= INLINE_BYTES:
        return decompress(codec, data, limit)
    try:
        return decompress(codec, data, INLINE_BYTES)
    except DecompressionLimitError:
        raise ValidationDeferredError from None


def accept(batch: memoryview, rules: LogRules, now: int) -> ValidBatch:
    """Accept a batch that this process has built; check its size only, if the log takes it as it is."""
    header = read_header(batch)
    codec = rules.compression
    if rules.timestamp_type != _CREATE_TIME or (codec is not None and header.attributes & COMPRESSION_MASK != codec):
        return validate(batch, rules, now)
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules)
    return ValidBatch(batch, header, False, _CREATE_TIME, header.max_timestamp, -1, NO_TIMESTAMP, False)


def only_batch(view: memoryview) -> tuple[memoryview, BatchHeader]:
    """Return the one whole batch of the current format in a buffer, without trailing bytes."""
    header = whole_batch_header(view)
    if header is not None:
        return view, header
    # The batch is invalid, or trailing bytes follow it.
    size = next_batch_size(view)
    if size is None:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, "a partition to produce to needs one whole record batch")
    if view[MAGIC_POSITION] != MAGIC:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"message format {view[MAGIC_POSITION]} is not 2")
    if size < HEADER_SIZE:
        raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes is smaller than its header")
    if size < len(view) and next_batch_size(view[size:]) is not None:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, "only one record batch is allowed for a partition")
    return view[:size], read_header(view)


def whole_batch_header(view: memoryview) -> BatchHeader | None:
    """Return the header of a buffer that is exactly one batch of the current format, else None."""
    if len(view) >= HEADER_SIZE:
        header = read_header(view)
        if header.magic == MAGIC and header.batch_length + LOG_OVERHEAD == len(view):
            return header
    return None


def next_batch_size(view: memoryview) -> int | None:
    """Return the size of the batch at the start of a buffer; None if it is not whole."""
    if len(view) < LOG_OVERHEAD:
        return None
    length = int.from_bytes(view[8:12], "big", signed=True)
    if length < _LEGACY_OVERHEAD:
        raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"no batch has a length of {length}")
    if len(view) <= MAGIC_POSITION:
        return None
    if view[MAGIC_POSITION] > MAGIC:
        raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {view[MAGIC_POSITION]}")
    return None if length + LOG_OVERHEAD > len(view) else length + LOG_OVERHEAD


def _check_header(batch: memoryview, header: BatchHeader, rules: LogRules) -> None:
    size = len(batch)
    if rules.from_client and header.base_offset != 0:
        raise _invalid(f"the base offset of a new batch is 0, not {header.base_offset}")
    if size > rules.max_message_bytes:
        raise _too_large(size, rules)
    crc = compute_crc(batch, 0, size)
    if crc != header.crc:
        raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"the batch has CRC {crc:#010x}, not {header.crc:#010x}")
    if header.attributes & COMPRESSION_MASK > _LAST_CODEC:
        raise InvalidRecords(ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown compression type {header.compression}")
    count = header.record_count
    if rules.from_client:
        last = header.last_offset_delta
        if last < 0:
            raise _invalid(f"the last offset delta is {last}")
        if count <= 0:
            raise _invalid(f"the batch claims {count} records")
        if last + 1 != count:
            raise _invalid(f"a last offset delta of {last} does not go with {count} records")
        if header.attributes & CONTROL_FLAG:
            raise _invalid("clients may not write control records")
        if header.base_sequence < 0 and header.has_producer_id:
            raise _invalid(f"producer {header.producer_id} sent the sequence number {header.base_sequence}")
    elif count < 0:
        raise _invalid(f"the batch claims {count} records")


def _invalid(message: str) -> InvalidRecords:
    return InvalidRecords(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, rules: LogRules) -> InvalidRecords:
    return InvalidRecords(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, the topic allows {rules.max_message_bytes}"
    )


def _rejected(walk: kernel.RecordWalk, header: BatchHeader, rules: LogRules, now: int) -> InvalidRecords:
    """Walk again over records that broke the rules, and return the error with a reason for each."""
    if walk.error:
        return invalid_record(walk)
    walk.rewind()
    stamped = header.attributes & LOG_APPEND_TIME_FLAG != 0
    errors: list[RecordError] = []
    code = ErrorCode.INVALID_RECORD
    earliest, latest = now - rules.timestamp_before_max_ms, now + rules.timestamp_after_max_ms
    while walk.advance():
        index = walk.index - 1
        timestamp = header.max_timestamp if stamped else _int64(header.base_timestamp + walk.timestamp_delta)
        if rules.compacted and walk.key_length < 0:
            errors.append(RecordError(index, "a compacted topic takes no record without a key"))
        elif rules.timestamp_type == _CREATE_TIME and timestamp != NO_TIMESTAMP:
            age = _int64(now - timestamp)
            if age > rules.timestamp_before_max_ms or _int64(-age) > rules.timestamp_after_max_ms:
                code = ErrorCode.INVALID_TIMESTAMP
                errors.append(RecordError(index, f"timestamp {timestamp} is not from {earliest} to {latest}"))
        elif stamped:
            code = ErrorCode.INVALID_TIMESTAMP
            errors.append(RecordError(index, "only the broker may set the timestamp type LogAppendTime"))
    why = "invalid timestamp"
    if code == ErrorCode.INVALID_RECORD:
        shown = ", ".join(
            f"RecordError(batchIndex={error.batch_index}, message='{error.message}')" for error in errors[:3]
        )
        why = f"{len(errors)} record errors in total, and only showing the first three errors at most: [{shown}]"
    return InvalidRecords(code, f"One or more records have been rejected due to {why}", tuple(errors))


def _int64(value: int) -> int:
    return (value + 2**63 & 2**64 - 1) - 2**63


def _recompress(plain: Plain, header: BatchHeader, codec: int, rules: LogRules, max_timestamp: int) -> memoryview:
    """Return the batch in the topic's codec; its records stay byte for byte."""
    attributes = header.attributes & KNOWN_ATTRIBUTES & ~(COMPRESSION_MASK | LOG_APPEND_TIME_FLAG)
    if rules.timestamp_type == TimestampType.LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    batch = seal_batch(
        compress(codec, plain, rules.compression_level) if codec != CompressionType.NONE else plain,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=attributes | codec,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )
    if len(batch) > rules.max_message_bytes:
        raise _too_large(len(batch), rules)
    return memoryview(batch)
