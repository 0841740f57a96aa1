"""Validation of batches by a topic's config; the checks themselves are in `records.validate`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, TimestampType, check_crc, iter_batches
from ottla.records.compression import CompressionType
from ottla.records.errors import InvalidRecords
from ottla.records.validate import LogRules, ValidBatch, accept, validate

if TYPE_CHECKING:
    from ottla.storage.config import LogConfig
    from ottla.world.disk import Buffer

_CODECS = {
    "producer": None,
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


@lru_cache(maxsize=1024)
def rules_for(config: LogConfig, from_client: bool) -> LogRules:
    """Return a topic's config as rules for batches."""
    codec = _CODECS[config.compression_type]
    levels = {
        CompressionType.GZIP: config.compression_gzip_level,
        CompressionType.LZ4: config.compression_lz4_level,
        CompressionType.ZSTD: config.compression_zstd_level,
    }
    return LogRules(
        compacted=config.compact,
        timestamp_type=TimestampType.LOG_APPEND_TIME if config.log_append_time else TimestampType.CREATE_TIME,
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        max_message_bytes=config.max_message_bytes,
        compression=codec,
        compression_level=None if codec is None else levels.get(codec),
        from_client=from_client,
    )


class ValidatedRecords(NamedTuple):
    """Batches that were validated ahead of their append, and the rules that they passed."""

    batches: list[ValidBatch]
    rules: LogRules


def validate_as_leader(
    records: Buffer, rules: LogRules, now_ms: int, *, header: BatchHeader | None = None, inline: bool = False
) -> list[ValidBatch]:
    """Validate a batch that gets offsets here: a client's, which is not trusted, or a coordinator's.

    With `inline` raise `ValidationDeferredError` for a client's batch that would hold the event loop for long.
    """
    view = memoryview(records)
    if rules.from_client:
        return [validate(view, rules, now_ms, header=header, inline=inline)]
    return [accept(view, rules, now_ms)]


def validate_ahead(records: Buffer, rules: LogRules, now_ms: int) -> ValidatedRecords:
    """Validate a client's batch ahead of its append, in a worker; touch nothing that the event loop owns."""
    return ValidatedRecords(validate_as_leader(records, rules, now_ms), rules)


def stamp_append_time(batches: list[ValidBatch], now_ms: int) -> list[ValidBatch]:
    """Set LogAppendTime to the time of the append, for batches that were validated ahead of it."""
    return [
        batch
        if batch.log_append_time < 0
        else batch._replace(max_timestamp=now_ms, log_append_time=now_ms, timestamps_differ=True)
        for batch in batches
    ]


def validate_raw(records: Buffer, next_offset: int) -> list[BatchHeader]:
    """Check batches that keep their offsets: each is whole, has a valid CRC, and follows the one before."""
    headers = []
    for header in iter_batches(records):
        if not check_crc(records, header):
            raise InvalidRecords(ErrorCode.CORRUPT_MESSAGE, f"The batch at {header.base_offset} has a wrong CRC.")
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            raise ValueError(f"a batch at offset {header.base_offset} cannot follow {next_offset - 1}")
        next_offset = header.next_offset
        headers.append(header)
    if (headers[-1].end if headers else 0) != len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The last batch is cut off.")
    return headers
