"""Keys and values of Kafka's internal records, with the small frame of each kind.

Metadata records begin with three varints (frame version, type, version). Keys of coordinator records begin with their
type, values with their version, each an int16. Control records have a key of version and type.
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from struct import Struct as Layout
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.codec.wire import read_uvarint, uvarint
from ottla.protocol.errors import ProtocolError
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    from ottla.protocol.schema import Buffer

_SHORT = Layout(">h")
_TWO_SHORTS = Layout(">hh")
_METADATA_FRAME_VERSION = 1

# The module that declares the records of each log; imported on first use.
_MODULES = {"metadata": "metadata", "offsets": "group", "transaction": "transaction", "share": "share"}
_MODULES["remote"] = "remote_storage"
_classes: dict[tuple[str, str], dict[int, type[Message]]] = {}


class UnknownRecord(NamedTuple):
    """A record of a type or version that is not declared, stored whole: `data` has the bytes after type and version."""

    type: int
    version: int
    data: bytes


def record_classes(log: str, kind: str) -> dict[int, type[Message]]:
    """Return the declared records of a log by type.

    The log is "metadata", "offsets", "transaction", "share" or "remote"; the kind is "metadata" for the first and
    the last, else "coordinator-key" or "coordinator-value".
    """
    classes = _classes.get((log, kind))
    if classes is None:
        module = import_module(f"ottla.protocol.record_schemas.{_MODULES[log]}")
        classes = {}
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value.__schema__.kind == kind:
                key = value.__schema__.api_key
                if key is not None:
                    classes[key] = value
        _classes[log, kind] = classes
    return classes


# -- metadata records ----------------------------------------------------------------------------------------------


def decode_metadata_record(value: Buffer, log: str = "metadata") -> Message | UnknownRecord:
    """Read the value of a record of __cluster_metadata (or of "remote", which has the same frame)."""
    return decode_versioned_metadata_record(value, log)[0]


def decode_versioned_metadata_record(value: Buffer, log: str = "metadata") -> tuple[Message | UnknownRecord, int]:
    """Read the value of a record of __cluster_metadata and the version in which it was written."""
    data = bytes(value)
    numbers = []
    position = 0
    for name in ("frame version", "type", "version"):
        start = position
        try:
            number, position = read_uvarint(data, position)
        except (IndexError, ValueError):
            number = -1
        if not 0 <= number <= 32767:
            raise ProtocolError(
                f"expected the {name} of a record as an unsigned varint", message="MetadataRecord", position=start
            )
        numbers.append(number)
    frame_version, record_type, version = numbers
    if frame_version != _METADATA_FRAME_VERSION:
        raise ProtocolError(f"expected frame version 1, got {frame_version}", message="MetadataRecord", position=0)
    cls = record_classes(log, "metadata").get(record_type)
    if cls is None or version not in cls.__schema__.versions:
        return UnknownRecord(record_type, version, data[position:]), version
    return cls.decode(data, version, position), version


def encode_metadata_record(record: Message | UnknownRecord, version: int | None = None) -> bytes:
    """Write the value of a record of __cluster_metadata, by default in its newest version."""
    if isinstance(record, UnknownRecord):
        head = uvarint(_METADATA_FRAME_VERSION) + uvarint(record.type) + uvarint(record.version)
        return head + record.data
    schema = record.__schema__
    if schema.kind != "metadata" or schema.api_key is None:
        raise ProtocolError("expected a metadata record", message=schema.name)
    if version is None:
        version = schema.versions[-1]
    head = uvarint(_METADATA_FRAME_VERSION) + uvarint(schema.api_key) + uvarint(version)
    return head + record.encode(version)


# -- records of coordinators ---------------------------------------------------------------------------------------


def _decode_key(key: Buffer, log: str, name: str) -> Message | UnknownRecord:
    record_type = _read_short(key, name, "the type of a record")
    cls = record_classes(log, "coordinator-key").get(record_type)
    data = bytes(key)
    if cls is None:
        return UnknownRecord(record_type, 0, data[2:])
    return cls.decode(data, 0, 2)


def _decode_value(key: Message | UnknownRecord | int, value: Buffer, log: str, name: str) -> Message | UnknownRecord:
    record_type = _record_type(key)
    version = _read_short(value, name, "the version of a record")
    cls = record_classes(log, "coordinator-value").get(record_type)
    data = bytes(value)
    if cls is None or version not in cls.__schema__.versions:
        return UnknownRecord(record_type, version, data[2:])
    return cls.decode(data, version, 2)


def _record_type(key: Message | UnknownRecord | int) -> int:
    if isinstance(key, UnknownRecord):
        return key.type
    if isinstance(key, Message):
        api_key = key.__schema__.api_key
        if key.__schema__.kind != "coordinator-key" or api_key is None:
            raise ProtocolError("expected the key of a coordinator's record", message=key.__schema__.name)
        return api_key
    return key


def _read_short(data: Buffer, name: str, expected: str) -> int:
    if len(data) < 2:
        raise ProtocolError(f"expected {expected} to be 2 bytes, got {len(data)}", message=name, position=0)
    number: int = _SHORT.unpack_from(data)[0]
    return number


def encode_coordinator_key(key: Message | UnknownRecord) -> bytes:
    """Write the key of a coordinator's record: its type, then the key itself."""
    if isinstance(key, UnknownRecord):
        return _SHORT.pack(key.type) + key.data
    return _SHORT.pack(_record_type(key)) + key.encode(0)


def encode_coordinator_value(value: Message | UnknownRecord, version: int | None = None) -> bytes:
    """Write the value of a coordinator's record: its version (by default the newest), then the value itself."""
    if isinstance(value, UnknownRecord):
        return _SHORT.pack(value.version) + value.data
    schema = value.__schema__
    if schema.kind != "coordinator-value":
        raise ProtocolError("expected the value of a coordinator's record", message=schema.name)
    if version is None:
        version = schema.versions[-1]
    return _SHORT.pack(version) + value.encode(version)


def decode_offsets_key(key: Buffer) -> Message | UnknownRecord:
    """Read the key of a record of __consumer_offsets."""
    return _decode_key(key, "offsets", "OffsetsKey")


def decode_offsets_value(key: Message | UnknownRecord | int, value: Buffer) -> Message | UnknownRecord:
    """Read the value that belongs to a key (or a type) of __consumer_offsets."""
    return _decode_value(key, value, "offsets", "OffsetsValue")


def decode_transaction_key(key: Buffer) -> Message | UnknownRecord:
    """Read the key of a record of __transaction_state."""
    return _decode_key(key, "transaction", "TransactionKey")


def decode_transaction_value(value: Buffer) -> Message | UnknownRecord:
    """Read the value of a record of __transaction_state, which has one type."""
    return _decode_value(0, value, "transaction", "TransactionValue")


def decode_share_key(key: Buffer) -> Message | UnknownRecord:
    """Read the key of a record of __share_group_state."""
    return _decode_key(key, "share", "ShareKey")


def decode_share_value(key: Message | UnknownRecord | int, value: Buffer) -> Message | UnknownRecord:
    """Read the value that belongs to a key (or a type) of __share_group_state."""
    return _decode_value(key, value, "share", "ShareValue")


# -- control records -----------------------------------------------------------------------------------------------


class ControlRecordType(IntEnum):
    """The type of a control record."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_VALUES = {
    ControlRecordType.ABORT: "EndTxnMarker",
    ControlRecordType.COMMIT: "EndTxnMarker",
    ControlRecordType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlRecordType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlRecordType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlRecordType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlRecordType.KRAFT_VOTERS: "VotersRecord",
}


def decode_control_key(key: Buffer) -> ControlRecordType | UnknownRecord:
    """Read the key of a control record; versions after 0 are read as 0, as Kafka does."""
    if len(key) < 4:
        raise ProtocolError(
            f"expected the key of a control record to be 4 bytes, got {len(key)}", message="ControlKey", position=0
        )
    version, number = _TWO_SHORTS.unpack_from(key)
    if version < 0:
        raise ProtocolError(f"expected a version of 0 or more, got {version}", message="ControlKey", position=0)
    try:
        return ControlRecordType(number)
    except ValueError:
        return UnknownRecord(number, version, bytes(key[4:]))


def encode_control_key(control_type: int) -> bytes:
    """Write the key of a control record."""
    return _TWO_SHORTS.pack(0, control_type)


def decode_control_value(control_type: ControlRecordType, value: Buffer) -> Message:
    """Decode the value of a control record; a marker has its version before it, the others inside."""
    cls = control_value_class(control_type)
    if control_type > ControlRecordType.COMMIT:
        return cls.decode(value, 0)
    version = _read_short(value, "EndTxnMarker", "the version of the marker")
    if version < 0:
        raise ProtocolError(f"expected a version of 0 or more, got {version}", message="EndTxnMarker", position=0)
    return cls.decode_from(bytes(value), 2, 0)[0]


def encode_control_value(value: Message) -> bytes:
    """Write the value of a control record."""
    if value.__schema__.name == "EndTxnMarker":
        return _SHORT.pack(0) + value.encode(0)
    return value.encode(0)


def control_value_class(control_type: ControlRecordType) -> type[Message]:
    """Return the class of a control record's value."""
    module = import_module("ottla.protocol.record_schemas.control")
    cls: type[Message] = getattr(module, _CONTROL_VALUES[control_type])
    return cls
