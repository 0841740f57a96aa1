"""The encoding of single records, for batches that this process builds.

The C types of the compiled form are in `encode.pxd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .walk import _zigzag

if TYPE_CHECKING:
    from collections.abc import Sequence


def encode_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str | bytes, bytes | None]],
) -> None:
    """Append one encoded record to `out`."""
    body = bytearray(1)  # attributes, all unused
    _write_varint(body, timestamp_delta)
    _write_varint(body, offset_delta)
    _write_bytes(body, key)
    _write_bytes(body, value)
    _write_varint(body, len(headers))
    for name, content in headers:
        _write_bytes(body, name.encode() if isinstance(name, str) else name)
        _write_bytes(body, content)
    _write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)  # the length -1
    else:
        _write_varint(out, len(data))
        out += data


def _write_varint(out: bytearray, value: int) -> None:
    rest = _zigzag(value)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
