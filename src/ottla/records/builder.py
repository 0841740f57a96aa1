"""Builds one record batch, from records or for a control record (Kafka's MemoryRecordsBuilder).

The caller chooses offsets, producer fields and timestamps; `validate` decides whether a log takes the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from ottla.records import batch as header_format
from ottla.records import kernel
from ottla.records.batch import (
    CONTROL_FLAG,
    CRC,
    CRC_POSITION,
    DELETE_HORIZON_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
)
from ottla.records.compression import CompressionType, compress
from ottla.records.control import ControlType, control_key, marker_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.records.iterate import Record


class BatchOptions(TypedDict, total=False):
    """The header fields of a batch besides its records; each is a keyword of `BatchBuilder`."""

    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    compression: int
    compression_level: int | None
    transactional: bool
    control: bool
    log_append_time: int | None
    delete_horizon_ms: int | None


class BatchBuilder:
    """Collects records and encodes them as one batch."""

    __slots__ = (
        "_base_timestamp",
        "_body",
        "_last_offset",
        "base_offset",
        "base_sequence",
        "compression",
        "compression_level",
        "control",
        "delete_horizon_ms",
        "log_append_time",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
        "transactional",
    )

    def __init__(
        self,
        base_offset: int = 0,
        *,
        partition_leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        compression: int = CompressionType.NONE,
        compression_level: int | None = None,
        transactional: bool = False,
        control: bool = False,
        log_append_time: int | None = None,
        delete_horizon_ms: int | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.partition_leader_epoch = partition_leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.compression = compression
        self.compression_level = compression_level
        self.transactional = transactional
        self.control = control
        self.log_append_time = log_append_time
        self.delete_horizon_ms = delete_horizon_ms
        self.record_count = 0
        self.max_timestamp = NO_TIMESTAMP
        self._base_timestamp = delete_horizon_ms
        self._last_offset = base_offset - 1
        self._body = bytearray()

    @property
    def uncompressed_size(self) -> int:
        """The bytes of the batch without compression."""
        return HEADER_SIZE + len(self._body)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str | bytes, bytes | None]] = (),
        timestamp: int = NO_TIMESTAMP,
        offset: int | None = None,
    ) -> int:
        """Add a record and return its offset; an explicit offset may leave a gap."""
        if offset is None:
            offset = self._last_offset + 1
        elif offset <= self._last_offset:
            raise ValueError(f"offset {offset} does not follow {self._last_offset}")
        if offset - self.base_offset > header_format.MAX_INT32:
            raise ValueError(f"offset {offset} is too far from the batch's base offset {self.base_offset}")
        if timestamp < NO_TIMESTAMP:
            raise ValueError(f"timestamp {timestamp} is negative")
        if self._base_timestamp is None:
            self._base_timestamp = timestamp
        kernel.encode_record(
            self._body, timestamp - self._base_timestamp, offset - self.base_offset, key, value, headers
        )
        self._last_offset = offset
        self.record_count += 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        return offset

    def build(self, last_offset: int | None = None) -> bytearray:
        """Return the batch's bytes; `last_offset` keeps the end of a batch whose last records compaction removed."""
        if last_offset is None:
            last_offset = self._last_offset
        elif last_offset < self._last_offset:
            raise ValueError(f"last offset {last_offset} lies before the last record's {self._last_offset}")
        attributes = self.compression
        max_timestamp = self.max_timestamp
        if self.log_append_time is not None:
            attributes |= LOG_APPEND_TIME_FLAG
            max_timestamp = self.log_append_time
        if self.transactional:
            attributes |= TRANSACTIONAL_FLAG
        if self.control:
            attributes |= CONTROL_FLAG
        if self.delete_horizon_ms is not None:
            attributes |= DELETE_HORIZON_FLAG
        body: bytes | bytearray = self._body
        if self.compression != CompressionType.NONE:
            body = compress(self.compression, body, self.compression_level)
        return seal_batch(
            body,
            base_offset=self.base_offset,
            partition_leader_epoch=self.partition_leader_epoch,
            attributes=attributes,
            last_offset_delta=last_offset - self.base_offset,
            base_timestamp=NO_TIMESTAMP if self._base_timestamp is None else self._base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=self.record_count,
        )


def seal_batch(
    body: bytes | bytearray | memoryview,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytearray:
    """Put a header with length and CRC before records that are encoded (and compressed) already."""
    size = HEADER_SIZE + len(body)
    sealed = bytearray(HEADER_SIZE)
    sealed += body
    HEADER.pack_into(
        sealed,
        0,
        base_offset,
        size - LOG_OVERHEAD,
        partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    CRC.pack_into(sealed, CRC_POSITION, header_format.compute_crc(sealed, 0, size))
    return sealed


def build_batch(records: Iterable[Record], base_offset: int = 0, **options: Unpack[BatchOptions]) -> bytearray:
    """Return one batch of these records, with offsets from the base offset on; options are `BatchBuilder`'s."""
    builder = BatchBuilder(base_offset, **options)
    for record in records:
        builder.append(record.key, record.value, record.headers, record.timestamp)
    return builder.build()


def build_control_batch(
    key: bytes,
    value: bytes,
    timestamp: int,
    base_offset: int = 0,
    *,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    """Return a control batch with one record."""
    builder = BatchBuilder(
        base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
    )
    builder.append(key, value, (), timestamp)
    return builder.build()


def build_end_transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return the control batch that commits or aborts a producer's transaction on a partition."""
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise ValueError(f"{control_type.name} does not end a transaction")
    return build_control_batch(
        control_key(control_type),
        marker_value(coordinator_epoch),
        timestamp,
        base_offset,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
    )
