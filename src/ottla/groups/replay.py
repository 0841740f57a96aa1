"""Replay of a record: the only way in which hard state changes, live and while loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ottla.groups.classic.group import classic_group_from_record
from ottla.groups.consumer import replay as consumer_replay
from ottla.groups.offsets.store import OffsetAndMetadata
from ottla.groups.share import replay as share_replay
from ottla.groups.streams import replay as streams_replay
from ottla.groups.streams.records import StreamsKey
from ottla.protocol.record_schemas.group import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard


def replay(shard: Shard, record: GroupRecord, offset: int, producer_id: int) -> None:
    """Apply a record to the shard's state; unknown record types are ignored."""
    key, value = record.key, record.value
    if isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
        _replay_offset(
            shard, key, cast("OffsetCommitValue | LegacyOffsetCommitValue | None", value), offset, producer_id
        )
    elif isinstance(key, GroupMetadataKey):
        if value is None:
            shard.groups.pop(key.group, None)
        else:
            shard.groups[key.group] = classic_group_from_record(key, cast("GroupMetadataValue", value))
    elif isinstance(key, share_replay.ShareKey):
        share_replay.replay(shard, key, record)
    elif isinstance(key, StreamsKey):
        streams_replay.replay(shard, key, record)
    else:
        consumer_replay.replay(shard, record)


def _replay_offset(
    shard: Shard,
    key: OffsetCommitKey | LegacyOffsetCommitKey,
    value: OffsetCommitValue | LegacyOffsetCommitValue | None,
    record_offset: int,
    producer_id: int,
) -> None:
    if value is None:
        shard.offsets.remove(key.group, key.topic, key.partition)
        return
    if key.group not in shard.groups:
        # A client committed without joining.
        shard.new_classic_group(key.group)
    if isinstance(value, LegacyOffsetCommitValue):
        value = OffsetCommitValue(offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp)
    offset = OffsetAndMetadata(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
        record_offset,
    )
    if producer_id == -1:
        shard.offsets.put(key.group, key.topic, key.partition, offset)
    else:
        shard.offsets.put_pending(producer_id, key.group, key.topic, key.partition, offset)
