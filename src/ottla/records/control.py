"""Control records: their key, and the value of end-transaction markers (Kafka's EndTransactionMarker).

The values of the quorum's control records are messages in `protocol`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ottla.records.errors import ErrorCode, InvalidRecords

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type of a control record; readers skip unknown types."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTransactionMarker(NamedTuple):
    """The end of a transaction on one partition, with the coordinator epoch."""

    control_type: ControlType
    coordinator_epoch: int


def control_key(control_type: ControlType) -> bytes:
    """Return the key of a control record of that type."""
    if control_type == ControlType.UNKNOWN:
        raise ValueError("an unknown control type cannot be written")
    return _KEY.pack(0, control_type)


def parse_control_key(key: bytes | None) -> ControlType:
    """Return the type in a control record's key; later versions of the key only add fields."""
    if key is None or len(key) < _KEY.size:
        raise InvalidRecords(
            ErrorCode.INVALID_RECORD, f"a control record's key has 4 bytes or more, not {len(key or b'')}"
        )
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"a control record's key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def marker_value(coordinator_epoch: int) -> bytes:
    """Return the value of an end-transaction marker."""
    return _MARKER.pack(0, coordinator_epoch)


def parse_marker(key: bytes | None, value: bytes | None) -> EndTransactionMarker:
    """Return the end-transaction marker in a control record."""
    control_type = parse_control_key(key)
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"{control_type.name} does not end a transaction")
    if value is None or len(value) < _MARKER.size:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"a marker has 6 bytes or more, not {len(value or b'')}")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise InvalidRecords(ErrorCode.INVALID_RECORD, f"a marker has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)
