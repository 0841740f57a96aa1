"""Encodes and decodes the records of `__share_group_state`: snapshots of a share partition's state, and updates."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas import share as schemas
from ottla.protocol.record_schemas.share import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from ottla.shares.environment import SharePartitionKey, StateBatch

_INT16: Final = struct.Struct(">h")
_TYPES: Final[
    dict[int, tuple[type[ShareSnapshotKey | ShareUpdateKey], type[ShareSnapshotValue | ShareUpdateValue]]]
] = {
    0: (ShareSnapshotKey, ShareSnapshotValue),
    1: (ShareUpdateKey, ShareUpdateValue),
}


class ShareRecord(NamedTuple):
    """A record of a share partition: a snapshot, an update, or a tombstone if `value` is None."""

    key: SharePartitionKey
    value: ShareSnapshotValue | ShareUpdateValue | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """Return the bytes of key and value, prefixed with the record type and the version."""
        kind = 1 if isinstance(self.value, ShareUpdateValue) else 0
        key = _TYPES[kind][0](group_id=self.key.group_id, topic_id=self.key.topic_id, partition=self.key.partition)
        written = _INT16.pack(kind) + key.encode(0)
        return written, None if self.value is None else _INT16.pack(0) + self.value.encode(0)


def decode_record(key: bytes | None, value: bytes | None) -> ShareRecord | None:
    """Decode a record of the log; return None for an unknown type, which Kafka ignores as well."""
    if key is None or len(key) < _INT16.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the key has no record type")
    types = _TYPES.get(_INT16.unpack_from(key)[0])
    if types is None:
        return None
    key_type, value_type = types
    decoded = key_type.decode_from(key, _INT16.size, 0)[0]
    partition_key = SharePartitionKey(decoded.group_id, decoded.topic_id, decoded.partition)
    if value is None:
        return ShareRecord(partition_key, None)
    if len(value) < _INT16.size or _INT16.unpack_from(value)[0] != 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{value_type.__name__} has an unknown version")
    return ShareRecord(partition_key, value_type.decode_from(value, _INT16.size, 0)[0])


def written_batches(batches: list[StateBatch]) -> list[schemas.StateBatch]:
    """Convert state batches to those of a record."""
    return [
        schemas.StateBatch(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in batches
    ]


def read_batches(batches: list[schemas.StateBatch]) -> list[StateBatch]:
    """Convert the state batches of a record."""
    return [
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
        for batch in batches
    ]
