"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete and offset expiry (Kafka's OffsetMetadataManager)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups.classic.group import ClassicGroup, ClassicState
from ottla.groups.classic.membership import schedule_session_timeout
from ottla.groups.offsets import records
from ottla.groups.offsets.store import OffsetAndMetadata
from ottla.groups.outcome import Outcome
from ottla.groups.share.group import ShareGroup
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.k09_offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.groups.environment import DeletedTopic, RequestContext
    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Group, Shard
    from ottla.protocol.uuids import Uuid

FIRST_VERSION_WITH_MEMBER_EPOCH = 9
LAST_TIMESTAMP = 2**63 - 1


def commit(shard: Shard, context: RequestContext, request: OffsetCommitRequest) -> Outcome[OffsetCommitResponse]:
    """Commit offsets of a member in its generation or epoch, or of a client that never joined."""
    group_id, generation = request.group_id, request.generation_id_or_member_epoch
    group = shard.groups.get(group_id)
    if group is None:
        if generation >= 0:
            if context.version >= FIRST_VERSION_WITH_MEMBER_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        group = ClassicGroup(group_id, shard.clock.now_ms())  # replay creates the group with its first offset
    validate = _commit_check(
        group, request.member_id, request.group_instance_id, generation, context.version, transactional=False
    )
    if isinstance(group, ClassicGroup) and group.state in (ClassicState.STABLE, ClassicState.PREPARING_REBALANCE):
        # A commit counts as a heartbeat.
        schedule_session_timeout(shard, group, group.members[request.member_id])
    now = shard.clock.now_ms()
    # Cap the expiry at the largest timestamp; Kafka's sum overflows and expires the offset at once.
    expires = -1 if request.retention_time_ms == -1 else min(now + request.retention_time_ms, LAST_TIMESTAMP)
    max_bytes = shard.settings.coordinator().offset_metadata_max_bytes
    response = OffsetCommitResponse()
    written: list[GroupRecord] = []
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            code = ErrorCode.NONE
            if _too_large(metadata, max_bytes):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                if validate is not None:
                    validate(topic.name, topic.topic_id, index)
                offset = OffsetAndMetadata(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    metadata,
                    now,
                    expires,
                    topic.topic_id,
                )
                written.append(records.offset_commit(group_id, topic.name, index, offset))
            results.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
        response.topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=results))
    return Outcome(response, written)


def commit_transactional(
    shard: Shard, context: RequestContext, request: TxnOffsetCommitRequest
) -> Outcome[TxnOffsetCommitResponse]:
    """Commit offsets as part of a transaction; they become visible with its commit marker."""
    group_id = request.group_id
    group = shard.groups.get(group_id)
    if group is None:
        if request.generation_id >= 0:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        group = ClassicGroup(group_id, shard.clock.now_ms())  # replay creates the group with its first offset
    now = shard.clock.now_ms()
    max_bytes = shard.settings.coordinator().offset_metadata_max_bytes
    response = TxnOffsetCommitResponse()
    written: list[GroupRecord] = []
    try:
        validate = _commit_check(
            group,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            context.version,
            transactional=True,
        )
        for topic in request.topics:
            existing = shard.topics.by_name(topic.name)
            if existing is None and validate is not None:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            results = []
            for partition in topic.partitions:
                index, metadata = partition.partition_index, partition.committed_metadata or ""
                code = ErrorCode.NONE
                if _too_large(metadata, max_bytes):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    if validate is not None and existing is not None:
                        validate(topic.name, existing.id, index)
                    offset = OffsetAndMetadata(
                        partition.committed_offset, partition.committed_leader_epoch, metadata, now
                    )
                    written.append(records.offset_commit(group_id, topic.name, index, offset))
                results.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
            response.topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=results))
    except KafkaError as error:
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            # TxnOffsetCommit has no STALE_MEMBER_EPOCH.
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION) from None
        raise
    return Outcome(response, written)


def _commit_check(
    group: Group, member_id: str, instance_id: str | None, generation: int, version: int, *, transactional: bool
) -> Callable[[str, Uuid, int], None] | None:
    """Validate the commit; return the check of each partition, if there is one."""
    if isinstance(group, ClassicGroup):
        group.validate_offset_commit(member_id, instance_id, generation, transactional=transactional)
        return None
    return group.validate_offset_commit(member_id, instance_id, generation, version, transactional=transactional)


def _too_large(metadata: str, max_bytes: int) -> bool:
    if len(metadata) * 2 <= max_bytes:
        return False
    return len(metadata.encode("utf-16-le", "surrogatepass")) // 2 > max_bytes


def fetch(shard: Shard, request: OffsetFetchRequestGroup, *, require_stable: bool) -> Outcome[OffsetFetchResponseGroup]:
    """Return the committed offsets of some or all topics; an error where `require_stable` meets a pending offset."""
    response = OffsetFetchResponseGroup(group_id=request.group_id)
    group = shard.groups.get(request.group_id)
    if group is not None and not isinstance(group, ClassicGroup):
        group.validate_offset_fetch(request.member_id, request.member_epoch)
    committed = shard.offsets.of_group(request.group_id) if group is not None else {}
    if request.topics is None:
        topics = [(topic, ZERO_UUID, list(partitions)) for topic, partitions in committed.items()]
    else:
        topics = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in request.topics]
    for name, topic_id, partitions in topics:
        offsets = committed.get(name, {})
        results = []
        for partition in partitions:
            offset = offsets.get(partition)
            if require_stable and shard.offsets.is_open(request.group_id, name, partition):
                results.append(_no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            elif offset is None or _is_of_deleted_topic(offset.topic_id, topic_id):
                results.append(_no_offset(partition, ErrorCode.NONE))
            else:
                results.append(
                    OffsetFetchResponsePartitions(
                        partition_index=partition,
                        committed_offset=offset.offset,
                        committed_leader_epoch=offset.leader_epoch,
                        metadata=offset.metadata,
                    )
                )
        response.topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=results))
    return Outcome(response)


def _no_offset(partition: int, code: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
    )


def _is_of_deleted_topic(committed: Uuid, requested: Uuid) -> bool:
    """Return whether the offset was committed for a deleted topic of the same name."""
    return ZERO_UUID not in (committed, requested) and committed != requested


def delete(shard: Shard, request: OffsetDeleteRequest) -> Outcome[OffsetDeleteResponse]:
    """Delete the offsets of topics to which the group does not subscribe."""
    group = shard.group(request.group_id)
    group.validate_offset_delete()
    response = OffsetDeleteResponse()
    written: list[GroupRecord] = []
    for topic in request.topics:
        subscribed = group.is_subscribed_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            results.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            is_committed = shard.offsets.get(request.group_id, topic.name, index) is not None
            if not subscribed and (is_committed or shard.offsets.is_open(request.group_id, topic.name, index)):
                written.append(records.offset_tombstone(request.group_id, topic.name, index))
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
    return Outcome(response, written)


def tombstones_of_group(shard: Shard, group_id: str) -> list[GroupRecord]:
    """Return the tombstones of all offsets of a group."""
    committed = [
        (topic, partition) for topic, offsets in shard.offsets.of_group(group_id).items() for partition in offsets
    ]
    distinct = set(committed)
    pending = [partition for partition in shard.offsets.open_partitions(group_id) if partition not in distinct]
    return [records.offset_tombstone(group_id, topic, partition) for topic, partition in (*committed, *pending)]


def tombstones_of_topics(shard: Shard, deleted: Sequence[DeletedTopic]) -> Outcome[None]:
    """Delete the offsets of deleted topics, but not those of a new topic of the same name."""
    ids = {topic.name: topic.id for topic in deleted}
    tombstones = [
        records.offset_tombstone(group, topic, partition)
        for group, topic, partition, offset in shard.offsets.of_topics(ids)
        if offset.topic_id in (ZERO_UUID, ids[topic])
    ]
    return Outcome(None, tombstones, atomic=False)


def expire(shard: Shard) -> Outcome[None]:
    """Delete expired offsets, and empty groups that have no offsets left."""
    written: list[GroupRecord] = []
    for group_id, group in shard.groups.items():
        if isinstance(group, ShareGroup):
            continue  # a share group's offsets are in `__share_group_state` and do not expire
        tombstones, all_expired = _expired_offsets(shard, group_id, group)
        written += tombstones
        if all_expired and group.is_empty:
            written += group.tombstones()
    return Outcome(None, written, atomic=False)


def _expired_offsets(shard: Shard, group_id: str, group: Group) -> tuple[list[GroupRecord], bool]:
    """Return the tombstones of a group's expired offsets, and whether no offset is left."""
    now = shard.clock.now_ms()
    retention_ms = shard.settings.coordinator().offsets_retention_minutes * 60_000
    tombstones: list[GroupRecord] = []
    all_expired = not shard.offsets.has_open_transaction(group_id)
    for topic, offsets in shard.offsets.of_group(group_id).items():
        if group.is_subscribed_to(topic):
            all_expired = False
            continue
        for partition, offset in offsets.items():
            base = group.offset_expiry_base(offset.commit_timestamp_ms)
            if base is None:
                return tombstones, False
            due = offset.expire_timestamp_ms if offset.expire_timestamp_ms != -1 else base + retention_ms
            if now >= due and not shard.offsets.is_open(group_id, topic, partition):
                tombstones.append(records.offset_tombstone(group_id, topic, partition))
            else:
                all_expired = False
    return tombstones, all_expired
