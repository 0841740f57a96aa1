"""The native kernel: reads and moves batches and records in place, without a Python object for each record.

`walk` iterates over records and checks them, `encode` writes them, `keys` serves compaction, `columns` fills Arrow
columns; the callers decide the rules. `setup.py` joins the four into one module, `_compiled`, so that the compilers
inline calls between them; without it they run uncompiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from . import _compiled as _kernel  # type: ignore[attr-defined]
except ImportError:
    _kernel = None

if TYPE_CHECKING or _kernel is None:
    from .columns import (
        TOTAL_HEADER_KEY_BYTES,
        TOTAL_HEADER_VALUE_BYTES,
        TOTAL_HEADERS,
        TOTAL_KEY_BYTES,
        TOTAL_ROWS,
        TOTAL_VALUE_BYTES,
        TOTALS_WIDTH,
        BatchScan,
        BinaryColumn,
        ColumnWriter,
        fill,
        measure,
    )
    from .encode import encode_record
    from .keys import SLOT_WIDTH, KeyHash, copy_records
    from .walk import (
        BAD_HEADER_COUNT,
        BAD_HEADER_KEY,
        BAD_HEADER_VALUE,
        BAD_KEY,
        BAD_OFFSET_DELTA,
        BAD_RECORD_LENGTH,
        BAD_TIMESTAMP_DELTA,
        BAD_VALUE,
        COMPILED,
        INDEX_HEADER_COUNT,
        INDEX_HEADERS_POSITION,
        INDEX_KEY_LENGTH,
        INDEX_KEY_POSITION,
        INDEX_OFFSET_DELTA,
        INDEX_TIMESTAMP_DELTA,
        INDEX_VALUE_LENGTH,
        INDEX_VALUE_POSITION,
        INDEX_WIDTH,
        OFFSET_GAP,
        RECORD_SIZE_MISMATCH,
        TRAILING_BYTES,
        RecordWalk,
        check_records,
        index_records,
        read_headers,
    )
else:
    from ._compiled import (
        BAD_HEADER_COUNT,
        BAD_HEADER_KEY,
        BAD_HEADER_VALUE,
        BAD_KEY,
        BAD_OFFSET_DELTA,
        BAD_RECORD_LENGTH,
        BAD_TIMESTAMP_DELTA,
        BAD_VALUE,
        COMPILED,
        INDEX_HEADER_COUNT,
        INDEX_HEADERS_POSITION,
        INDEX_KEY_LENGTH,
        INDEX_KEY_POSITION,
        INDEX_OFFSET_DELTA,
        INDEX_TIMESTAMP_DELTA,
        INDEX_VALUE_LENGTH,
        INDEX_VALUE_POSITION,
        INDEX_WIDTH,
        OFFSET_GAP,
        RECORD_SIZE_MISMATCH,
        SLOT_WIDTH,
        TOTAL_HEADER_KEY_BYTES,
        TOTAL_HEADER_VALUE_BYTES,
        TOTAL_HEADERS,
        TOTAL_KEY_BYTES,
        TOTAL_ROWS,
        TOTAL_VALUE_BYTES,
        TOTALS_WIDTH,
        TRAILING_BYTES,
        BatchScan,
        BinaryColumn,
        ColumnWriter,
        KeyHash,
        RecordWalk,
        check_records,
        copy_records,
        encode_record,
        fill,
        index_records,
        measure,
        read_headers,
    )

__all__ = [
    "BAD_HEADER_COUNT",
    "BAD_HEADER_KEY",
    "BAD_HEADER_VALUE",
    "BAD_KEY",
    "BAD_OFFSET_DELTA",
    "BAD_RECORD_LENGTH",
    "BAD_TIMESTAMP_DELTA",
    "BAD_VALUE",
    "COMPILED",
    "INDEX_HEADERS_POSITION",
    "INDEX_HEADER_COUNT",
    "INDEX_KEY_LENGTH",
    "INDEX_KEY_POSITION",
    "INDEX_OFFSET_DELTA",
    "INDEX_TIMESTAMP_DELTA",
    "INDEX_VALUE_LENGTH",
    "INDEX_VALUE_POSITION",
    "INDEX_WIDTH",
    "OFFSET_GAP",
    "RECORD_SIZE_MISMATCH",
    "SLOT_WIDTH",
    "TOTALS_WIDTH",
    "TOTAL_HEADERS",
    "TOTAL_HEADER_KEY_BYTES",
    "TOTAL_HEADER_VALUE_BYTES",
    "TOTAL_KEY_BYTES",
    "TOTAL_ROWS",
    "TOTAL_VALUE_BYTES",
    "TRAILING_BYTES",
    "BatchScan",
    "BinaryColumn",
    "ColumnWriter",
    "KeyHash",
    "RecordWalk",
    "check_records",
    "copy_records",
    "encode_record",
    "fill",
    "index_records",
    "measure",
    "read_headers",
]
