"""What a log asks of batches before it takes them, by its topic's config; the checks themselves are in `records`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, TimestampType, check_crc, iter_batches, stamp_timestamp
from ottla.records.errors import InvalidRecords
from ottla.storage.producer_state import AppendOrigin

if TYPE_CHECKING:
    from ottla.storage.config import LogConfig
    from ottla.world.disk import Buffer


def validate_as_leader(
    records: Buffer, config: LogConfig, now_ms: int, origin: AppendOrigin
) -> tuple[bytearray | memoryview, list[BatchHeader], int, int]:
    """Check batches that are to get offsets.

    Returns a buffer that may be stamped, the batches in it, their largest timestamp, and the broker's time where the
    topic wants that in place of the producer's (else -1).
    """
    buffer: bytearray | memoryview
    if isinstance(records, bytes) or (isinstance(records, memoryview) and records.readonly):
        buffer = bytearray(records)
    else:
        buffer = records
    append_time = now_ms if config.log_append_time else -1
    headers = []
    max_timestamp = append_time
    try:
        for header in iter_batches(buffer):
            if origin is AppendOrigin.CLIENT and header.base_offset != 0:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, f"A produced batch has base offset 0, not {header.base_offset}."
                )
            if header.size > config.max_message_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"The batch has {header.size} bytes, more than max.message.bytes, {config.max_message_bytes}.",
                )
            if not check_crc(buffer, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The batch has a wrong CRC.")
            if append_time >= 0:
                stamp_timestamp(buffer, header.position, TimestampType.LOG_APPEND_TIME, append_time)
            elif header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
            headers.append(header)
    except InvalidRecords as error:
        raise KafkaError(error.code, error.message) from error
    if headers and headers[-1].end != len(buffer):
        buffer = memoryview(buffer)[: headers[-1].end]
    return buffer, headers, max_timestamp, append_time


def validate_raw(records: Buffer, next_offset: int) -> list[BatchHeader]:
    """Check batches that keep their offsets: whole, with right CRCs, and each behind the one before."""
    headers = []
    try:
        for header in iter_batches(records):
            if not check_crc(records, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "A batch has a wrong CRC.")
            if header.base_offset < next_offset:
                raise ValueError(f"a batch at offset {header.base_offset} cannot follow {next_offset - 1}")
            next_offset = header.next_offset
            headers.append(header)
    except InvalidRecords as error:
        raise KafkaError(error.code, error.message) from error
    if headers and headers[-1].end != len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The last batch is cut off.")
    return headers
