"""Errors that all coordinators share: failed appends to their topics, and records that they cannot load.

A coordinator refuses only the partition that holds an unreadable record, as Kafka's CoordinatorRuntime does when it
marks a shard FAILED. The broker reads the log and reports the record.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.printable import printable
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError

APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Client error codes for a failed append, common to all coordinators; some map further codes."""


class UnreadableRecord(NamedTuple):
    """A record that cannot be read, decoded or replayed: its offset in the partition, and why."""

    offset: int
    reason: str


def unreadable(offset: int, error: Exception) -> UnreadableRecord:
    """Describe why the record at an offset cannot be loaded, in printable characters."""
    if isinstance(error, KafkaError):
        reason = error.message or error.code.name
    elif isinstance(error, ProtocolError):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}"
    return UnreadableRecord(offset, printable(reason))
