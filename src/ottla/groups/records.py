"""The records of `__consumer_offsets` as bytes (Kafka's GroupCoordinatorRecordSerde).

The `records` modules of the group types build them, the `replay` modules apply them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypeAlias

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas import group as schemas
from ottla.protocol.schema import Message

_INT16: Final = struct.Struct(">h")

Key: TypeAlias = Message
Value: TypeAlias = Message


class GroupRecord(NamedTuple):
    """A key with a value in a version; a record without a value is a tombstone."""

    key: Key
    value: Value | None
    version: int = 0

    def encode(self) -> tuple[bytes, bytes | None]:
        """Encode key and value: the record type precedes the key, the version precedes the value."""
        number = self.key.__schema__.api_key
        assert number is not None
        key = _INT16.pack(number) + self.key.encode(0)
        if self.value is None:
            return key, None
        return key, _INT16.pack(self.version) + self.value.encode(self.version)


def _types() -> dict[int, tuple[type[Message], type[Message]]]:
    """Return key class and value class by record type."""
    by_number: dict[int, list[type[Message]]] = {}
    for name in sorted(vars(schemas)):
        cls = getattr(schemas, name)
        if isinstance(cls, type) and issubclass(cls, Message) and cls.__schema__.kind.startswith("coordinator-"):
            number = cls.__schema__.api_key
            assert number is not None
            by_number.setdefault(number, []).append(cls)
    return {
        number: (
            next(cls for cls in classes if cls.__schema__.kind == "coordinator-key"),
            next(cls for cls in classes if cls.__schema__.kind == "coordinator-value"),
        )
        for number, classes in by_number.items()
    }


_TYPES: Final = _types()


def decode_record(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Decode a record; return None for an unknown record type, which a newer Kafka wrote and Kafka ignores as well."""
    if key is None or len(key) < 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the record has no key with a record type")
    types = _TYPES.get(_INT16.unpack_from(key)[0])
    if types is None:
        return None
    key_type, value_type = types
    decoded_key = key_type.decode_from(key, 2, 0)[0]  # Kafka ignores bytes after a key or value
    if value is None:
        return GroupRecord(decoded_key, None)
    if len(value) < 2:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the record has a value without a version")
    version = _INT16.unpack_from(value)[0]
    if version not in value_type.__schema__.versions:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unsupported version {version} of {value_type.__name__}")
    return GroupRecord(decoded_key, value_type.decode_from(value, 2, version)[0], version)
