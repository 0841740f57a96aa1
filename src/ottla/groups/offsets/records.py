"""The records of committed offsets in `__consumer_offsets`: types 0 and 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.records import GroupRecord
from ottla.protocol.record_schemas.group import (
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from ottla.groups.offsets.store import OffsetAndMetadata


def offset_commit(group_id: str, topic: str, partition: int, offset: OffsetAndMetadata) -> GroupRecord:
    """Return the record of a committed offset; only version 1 has an expiry timestamp."""
    value = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_timestamp_ms,
        expire_timestamp=offset.expire_timestamp_ms,
        topic_id=offset.topic_id,
    )
    version = 4 if offset.expire_timestamp_ms == -1 else 1
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    """Return the tombstone of a committed offset."""
    return GroupRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
