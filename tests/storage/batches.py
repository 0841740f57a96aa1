"""Batches for storage tests, small and readable."""

from __future__ import annotations

from ottla.records.batch import BatchHeader, check_crc, iter_batches
from ottla.records.builder import build_batch
from ottla.records.iterate import Record, iter_records


def batch(
    *values: bytes | str,
    timestamp: int = 1_700_000_000_000,
    keys: list[bytes | None] | None = None,
    **options: int | bool,
) -> bytearray:
    """Return one batch with a record for each value."""
    records = [
        Record(
            0,
            timestamp,
            keys[i] if keys is not None else None,
            value.encode() if isinstance(value, str) else value,
        )
        for i, value in enumerate(values)
    ]
    return build_batch(records, **options)  # type: ignore[arg-type]


def values(data: bytes) -> list[tuple[int, bytes | None]]:
    """Return offset and value of every data record; check the CRCs."""
    records = []
    for header in checked(data):
        if not header.is_control:
            records += [(record.offset, record.value) for record in iter_records(data, header)]
    return records


def checked(data: bytes) -> list[BatchHeader]:
    headers = list(iter_batches(data))
    assert sum(header.size for header in headers) == len(data)
    assert all(check_crc(data, header) for header in headers)
    return headers
