"""Encodes and decodes the records of `__transaction_state` (Kafka's TransactionLog).

A key begins with its type and a value with its version, two bytes each.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.transaction import PartitionsSchema, TransactionLogKey, TransactionLogValue
from ottla.storage.names import TopicPartition
from ottla.transactions.metadata import Partitions, TransactionRecord
from ottla.transactions.states import WRITTEN, TransactionState, TransactionVersion

_INT16 = struct.Struct(">h")
_TRANSACTION_LOG = 0
_VALUE_VERSIONS = TransactionLogValue.__schema__.versions


@lru_cache(maxsize=1 << 12)  # a transaction writes several records with the same key
def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id's records."""
    return _INT16.pack(_TRANSACTION_LOG) + TransactionLogKey(transactional_id=transactional_id).encode(0)


def encode_value(record: TransactionRecord, transaction_version: TransactionVersion) -> bytes:
    """Return a record's value in the version that belongs to the transaction version."""
    version = transaction_version.log_value_version
    value = TransactionLogValue(
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        transaction_timeout_ms=record.timeout_ms,
        transaction_status=record.state,
        transaction_partitions=None if record.state is TransactionState.EMPTY else _by_topic(record.partitions),
        transaction_last_update_timestamp_ms=record.last_update_timestamp,
        transaction_start_timestamp_ms=record.start_timestamp,
    )
    if version >= 1:
        value.previous_producer_id = record.previous_producer_id
        value.next_producer_id = record.next_producer_id
        value.client_transaction_version = record.client_transaction_version
    return _INT16.pack(version) + value.encode(version)


def _by_topic(partitions: Partitions) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, TransactionRecord | None] | None:
    """Return the transactional id and its record (None for a tombstone), or None for a key of an unknown type.

    Raise ProtocolError if key or value cannot be decoded, an unknown version of the value included, as Kafka's
    TransactionLog does.
    """
    if key is None:
        raise ProtocolError("expected a key, got null", message="TransactionLogKey")
    kind, key_body = _prefixed(key, "TransactionLogKey")
    if kind != _TRANSACTION_LOG:
        return None
    transactional_id = TransactionLogKey.decode_from(key_body, 0, 0)[0].transactional_id
    if value is None:
        return transactional_id, None
    version, value_body = _prefixed(value, "TransactionLogValue")
    if version not in _VALUE_VERSIONS:
        raise ProtocolError(f"version {version} is unknown", message="TransactionLogValue")
    return transactional_id, _record(TransactionLogValue.decode_from(value_body, 0, version)[0])


def _prefixed(data: bytes, message: str) -> tuple[int, bytes]:
    if len(data) < _INT16.size:
        raise ProtocolError(f"expected two bytes of type or version, got {len(data)}", message=message)
    return _INT16.unpack_from(data)[0], bytes(data[_INT16.size :])


def _record(value: TransactionLogValue) -> TransactionRecord:
    if value.transaction_status not in WRITTEN:
        raise ProtocolError(
            f"expected the number of a state, got {value.transaction_status}",
            message="TransactionLogValue",
            path="transaction_status",
        )
    state = TransactionState(value.transaction_status)
    partitions: Partitions = {}
    if state is not TransactionState.EMPTY:
        for topic in value.transaction_partitions or ():
            for partition in topic.partition_ids:
                partitions[TopicPartition(topic.topic, partition)] = None
    return TransactionRecord(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        start_timestamp=value.transaction_start_timestamp_ms,
        last_update_timestamp=value.transaction_last_update_timestamp_ms,
        client_transaction_version=_version(value.client_transaction_version),
    )


def _version(level: int) -> TransactionVersion:
    """Return a transaction version; an unknown higher level is read as the highest known, which bumps epochs too."""
    return TransactionVersion(min(max(level, 0), TransactionVersion.TV_2))
