"""Kafka's internal records as plain data: metadata, offsets, transactions, share groups, control records."""

from __future__ import annotations

import base64
from typing import Any

from ottla.protocol.errors import ProtocolError
from ottla.protocol.inspect.secrets import HIDDEN, SECRET_FIELDS, is_secret_config
from ottla.protocol.record_schemas.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.record_values import (
    ControlRecordType,
    UnknownRecord,
    decode_control_key,
    decode_control_value,
    decode_offsets_key,
    decode_offsets_value,
    decode_share_key,
    decode_share_value,
    decode_transaction_key,
    decode_transaction_value,
    decode_versioned_metadata_record,
)
from ottla.protocol.schema import Message, Struct
from ottla.protocol.uuids import Uuid

KINDS = {
    "__cluster_metadata": "metadata",
    "__consumer_offsets": "offsets",
    "__transaction_state": "transactions",
    "__share_group_state": "share",
}
VALUES = tuple(KINDS.values())
TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def explain_control(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return the type and the fields of a control record."""
    try:
        kind = decode_control_key(key or b"")
        if isinstance(kind, UnknownRecord):
            return {"control": f"type {kind.type}"}
        explained = {"control": kind.name}
        if value is not None:
            explained |= as_plain(decode_control_value(kind, value), 0)
        if kind > ControlRecordType.COMMIT:
            explained.pop("version", None)
        return explained
    except ProtocolError as error:
        return {"control": None, "error": str(error)}


def explain(kind: str, key: bytes | None, value: bytes | None, *, show_secrets: bool = False) -> dict[str, Any]:
    """Return a record of an internal topic as plain data; `error` has the reason if it does not decode."""
    try:
        if kind == "metadata":
            return _metadata(value, show_secrets)
        if key is None:
            return {"error": "the record has no key"}
        if kind == "offsets":
            name = decode_offsets_key(key)
            content = None if value is None else decode_offsets_value(name, value)
        elif kind == "transactions":
            name = decode_transaction_key(key)
            content = None if value is None else decode_transaction_value(value)
        else:
            name = decode_share_key(key)
            content = None if value is None else decode_share_value(name, value)
        explained: dict[str, Any] = {"type": _type(name), "key": _message(name, 0, show_secrets), "value": None}
        if value is not None and content is not None:
            explained["version"] = int.from_bytes(value[:2], "big", signed=True)
            explained["value"] = _message(content, explained["version"], show_secrets)
        return explained
    except ProtocolError as error:
        return {"error": str(error)}


def _metadata(value: bytes | None, show_secrets: bool) -> dict[str, Any]:
    if value is None:
        return {"error": "the record has no value"}
    record, version = decode_versioned_metadata_record(value)
    return {"type": _type(record), "version": version, "value": _message(record, version, show_secrets)}


def _type(message: Message | UnknownRecord) -> str:
    if isinstance(message, UnknownRecord):
        return f"type {message.type} (unknown)"
    return message.__schema__.name.removesuffix("Key")


def _message(message: Message | UnknownRecord, version: int, show_secrets: bool) -> Any:
    if isinstance(message, UnknownRecord):
        return {"version": message.version, "data_base64": base64.b64encode(message.data).decode("ascii")}
    content = as_plain(message, version, show_secrets=show_secrets)
    name = message.__schema__.name
    if name == "GroupMetadataValue" and content.get("protocol_type") == "consumer":
        for member in content["members"]:
            _open(member, "subscription", ConsumerProtocolSubscription)
            _open(member, "assignment", ConsumerProtocolAssignment)
    elif name == "TransactionLogValue":
        number = content["transaction_status"]
        if 0 <= number < len(TRANSACTION_STATES):
            content["transaction_status"] = TRANSACTION_STATES[number]
    return content


def _open(member: dict[str, Any], field: str, cls: type[Message]) -> None:
    """Decode the metadata that a consumer wrote into a classic group's member; keep anything else as it is."""
    try:
        data = base64.b64decode(member[field])
        version = int.from_bytes(data[:2], "big", signed=True)
        newest = cls.__schema__.versions[-1]
        if version >= 0:
            version = min(version, newest)
            member[field] = as_plain(cls.decode_from(data, 2, version)[0], version)
    except (ProtocolError, ValueError, KeyError):
        return


def as_plain(value: Any, version: int | None = None, *, show_secrets: bool = False) -> Any:
    """Return a message as plain data: its fields in a version (default: all); bytes become base64."""
    if isinstance(value, Struct):
        fields = {}
        hide_value = is_secret_config(getattr(value, "name", None))
        for field in value.__schema__.fields:
            if version is None or version in field.versions:
                content = getattr(value, field.name)
                secret = field.name in SECRET_FIELDS or (hide_value and field.name == "value")
                secret = bool(secret and content and not show_secrets)
                fields[field.name] = HIDDEN if secret else as_plain(content, version, show_secrets=show_secrets)
        return fields
    if isinstance(value, list):
        return [as_plain(item, version, show_secrets=show_secrets) for item in value]
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    return value
