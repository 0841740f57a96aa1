"""Describes the records of an internal topic that a coordinator cannot load, for all coordinators alike.

A coordinator refuses the partition that holds such a record and nothing else, as Kafka's CoordinatorRuntime does when
it marks a shard FAILED. Reading the log and reporting the record is the broker's part.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import KafkaError, ProtocolError


class UnreadableRecord(NamedTuple):
    """A record that cannot be read, decoded or replayed: its offset in the partition, and why."""

    offset: int
    reason: str


def unreadable(offset: int, error: Exception) -> UnreadableRecord:
    """Describe what an exception says about the record at an offset, in printable characters."""
    if isinstance(error, KafkaError):
        reason = error.message or error.code.name
    elif isinstance(error, ProtocolError):
        reason = str(error)
    else:
        reason = f"{type(error).__name__}: {error}"
    return UnreadableRecord(offset, "".join(char if char.isprintable() else ascii(char)[1:-1] for char in reason))
