"""The offsets of share groups: describe, alter and delete them, and delete a group with its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ottla.groups import delete
from ottla.groups.outcome import Outcome, no_change
from ottla.groups.share import records
from ottla.groups.share import state as share_state
from ottla.groups.share.group import InitializedTopic, ShareGroup, StatePartitions
from ottla.groups.share.heartbeat import share_group
from ottla.pending import Pending
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k42_delete_groups import DeletableGroupResult
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ottla.shares.environment import SharePartitionKey

if TYPE_CHECKING:
    from ottla.groups.shard import Shard
    from ottla.groups.share.state import StateErrors
    from ottla.protocol.uuids import Uuid

R = TypeVar("R")


def initialized_partitions(shard: Shard, group_id: str) -> dict[Uuid, list[int]]:
    """Return the initialized partitions of a group; none if it does not exist."""
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None:
        return {}
    return {topic_id: sorted(topic.partitions) for topic_id, topic in state.initialized.items()}


# AlterShareGroupOffsets


def alter(shard: Shard, request: AlterShareGroupOffsetsRequest) -> Outcome[AlterShareGroupOffsetsResponse]:
    """Set the start offsets of a group without members; the group is created if it does not exist."""
    group = share_group(shard, request.group_id, create=True)
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))
    response = AlterShareGroupOffsetsResponse()
    initializing: dict[Uuid, InitializedTopic] = {}
    offsets: dict[SharePartitionKey, int] = {}
    now = shard.clock.now_ms()
    for requested in request.topics:
        topic = shard.topics.by_name(requested.topic_name)
        count = 0 if topic is None else topic.partition_count
        result = AlterShareGroupOffsetsResponseTopic(topic_name=requested.topic_name)
        response.responses.append(result)
        for partition in requested.partitions:
            index = partition.partition_index
            altered = AlterShareGroupOffsetsResponsePartition(partition_index=index)
            result.partitions.append(altered)
            if topic is None or index >= count:
                altered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                altered.error_message = error_text(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                offsets[SharePartitionKey(request.group_id, topic.id, index)] = partition.start_offset
        if topic is not None:
            result.topic_id = topic.id
            indexes = [partition.partition_index for partition in requested.partitions]
            existing = frozenset(index for index in indexes if index < count)
            initializing[topic.id] = InitializedTopic(topic.name, existing, now)
    pending: Pending[AlterShareGroupOffsetsResponse] = Pending(effect_applied=True)

    def initialized(errors: StateErrors) -> None:
        for result in response.responses:
            for altered in result.partitions:
                code = errors.get(SharePartitionKey(request.group_id, result.topic_id, altered.partition_index))
                if code and not altered.error_code:
                    altered.error_code = code
                    altered.error_message = error_text(code)
        pending.complete(response)

    def initialize(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            group_id, epoch = request.group_id, group.group_epoch
            share_state.initialize(shard, group_id, epoch, offsets, undo=False).on_complete(initialized)

    written = [share_state.initializing_record(group, initializing)] if initializing else []
    return Outcome(pending, written, on_durable=initialize)


# DeleteShareGroupOffsets


def delete_offsets(shard: Shard, request: DeleteShareGroupOffsetsRequest) -> Outcome[DeleteShareGroupOffsetsResponse]:
    """Delete the state of all partitions of some topics, in a group without members."""
    group = shard.share_group(request.group_id)
    group.validate_delete()
    state = group.state_partitions
    response = DeleteShareGroupOffsetsResponse()
    if state is None:
        return Outcome(response)
    initialized = dict(state.initialized)
    deleting = dict(state.deleting)
    keys: list[SharePartitionKey] = []
    names: dict[Uuid, str] = {}
    for requested in request.topics:
        topic = shard.topics.by_name(requested.topic_name)
        if topic is not None and topic.id in initialized:
            partitions = sorted(initialized.pop(topic.id).partitions)
            deleting[topic.id] = topic.name
        elif topic is not None and topic.id in deleting:
            partitions = list(range(topic.partition_count))
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = error_text(code) if topic is None else "There is no offset information to delete."
            response.responses.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=requested.topic_name, error_code=code, error_message=message
                )
            )
            continue
        names[topic.id] = topic.name
        keys += [SharePartitionKey(request.group_id, topic.id, partition) for partition in partitions]
    record = records.state_partitions(request.group_id, StatePartitions(state.initializing, initialized, deleting))
    if not keys:
        return Outcome(response, [record])
    pending: Pending[DeleteShareGroupOffsetsResponse] = Pending(effect_applied=True)

    def deleted(errors: StateErrors) -> None:
        deleted_topics: dict[Uuid, str] = {}
        for topic_id, name in names.items():
            codes = [code for key, code in errors.items() if key.topic_id == topic_id and code]
            if not codes:
                deleted_topics[topic_id] = name
                continue
            response.responses.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=name, topic_id=topic_id, error_code=codes[0], error_message=error_text(codes[0])
                )
            )
        response.responses += [
            DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
            for topic_id, name in deleted_topics.items()
        ]
        recorded = shard.run(
            lambda: _remove_from_deleting(shard, request.group_id, deleted_topics).with_response(response),
            lambda code, _: DeleteShareGroupOffsetsResponse(error_code=code, error_message=error_text(code)),
        )
        _forward(recorded, pending)

    def delete(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            share_state.delete(shard, keys).on_complete(deleted)

    return Outcome(pending, [record], on_durable=delete)


def _remove_from_deleting(shard: Shard, group_id: str, topics: dict[Uuid, str]) -> Outcome[None]:
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None or not topics:
        return no_change()
    deleting = {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in topics}
    remaining = StatePartitions(state.initializing, state.initialized, deleting)
    return Outcome(None, [records.state_partitions(group_id, remaining)])


# DeleteGroups


def delete_group(shard: Shard, group_id: str) -> Outcome[DeletableGroupResult]:
    """Delete a share group: first the state of its partitions, then the group itself."""
    group = shard.share_group(group_id)
    group.validate_delete()
    state = group.state_partitions or StatePartitions()
    keys = [
        SharePartitionKey(group_id, topic_id, partition)
        for topics in (state.initialized, state.initializing)
        for topic_id, topic in topics.items()
        for partition in sorted(topic.partitions)
    ]
    deleting = {
        topic_id: topic.name for topics in (state.initialized, state.initializing) for topic_id, topic in topics.items()
    }
    for topic_id in state.deleting:
        existing = shard.topics.by_id(topic_id)  # an earlier deletion was not completed
        if existing is not None:
            deleting[topic_id] = existing.name
            keys += [SharePartitionKey(group_id, topic_id, index) for index in range(existing.partition_count)]
    pending: Pending[DeletableGroupResult] = Pending(effect_applied=True)

    def failed(code: ErrorCode, _: str | None) -> DeletableGroupResult:
        return DeletableGroupResult(group_id=group_id, error_code=code)

    def deleted(errors: StateErrors) -> None:
        code = next((code for code in errors.values() if code), ErrorCode.NONE)
        if code:
            pending.complete(failed(code, None))
        else:
            _forward(shard.run(lambda: delete.delete_group(shard, group_id), failed), pending)

    def delete_state(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            share_state.delete(shard, keys).on_complete(deleted)

    if group.state_partitions is None:
        return Outcome(pending, on_durable=delete_state)
    record = records.state_partitions(group_id, StatePartitions(deleting=deleting))
    return Outcome(pending, [record], on_durable=delete_state)


def _forward(response: R | Pending[R], pending: Pending[R]) -> None:
    """Complete a Pending with a response, now or when it is known."""
    if isinstance(response, Pending):
        response.on_complete(pending.complete)
    else:
        pending.complete(response)
