"""The records of `__share_group_state`: whole snapshots of a partition's state, and updates between them."""

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
    """What a record says of a partition: all of it, a change to it, or that nothing is kept any more."""

    key: SharePartitionKey
    value: ShareSnapshotValue | ShareUpdateValue | None

    def encode(self) -> tuple[bytes, bytes | None]:
        """The bytes of key and value: the type's number before the key, the version's before the value."""
        kind = 1 if isinstance(self.value, ShareUpdateValue) else 0
        key = _TYPES[kind][0](group_id=self.key.group_id, topic_id=self.key.topic_id, partition=self.key.partition)
        written = _INT16.pack(kind) + key.encode(0)
        return written, None if self.value is None else _INT16.pack(0) + self.value.encode(0)


def decode_record(key: bytes | None, value: bytes | None) -> ShareRecord | None:
    """Read a record of the log; None for a type that a later Kafka wrote, which is passed over as Kafka does."""
    if key is None or len(key) < _INT16.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of __share_group_state has no key")
    types = _TYPES.get(_INT16.unpack_from(key)[0])
    if types is None:
        return None
    key_type, value_type = types
    decoded = key_type.decode_from(key, _INT16.size, 0)[0]
    place = SharePartitionKey(decoded.group_id, decoded.topic_id, decoded.partition)
    if value is None:
        return ShareRecord(place, None)
    if len(value) < _INT16.size or _INT16.unpack_from(value)[0] != 0:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{value_type.__name__} is of a version that cannot be read here")
    return ShareRecord(place, value_type.decode_from(value, _INT16.size, 0)[0])


def written_batches(batches: list[StateBatch]) -> list[schemas.StateBatch]:
    """Batches as a record has them."""
    return [
        schemas.StateBatch(
            first_offset=each.first_offset,
            last_offset=each.last_offset,
            delivery_state=each.delivery_state,
            delivery_count=each.delivery_count,
        )
        for each in batches
    ]


def read_batches(batches: list[schemas.StateBatch]) -> list[StateBatch]:
    """Batches as a record had them."""
    return [
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in batches
    ]
