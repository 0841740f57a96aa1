"""Describing, altering and deleting the offsets of share groups, and deleting groups with the state that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.groups import describe
from ottla.groups.shard import Outcome
from ottla.groups.share import records as share_records
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
    from collections.abc import Callable

    from ottla.groups.shard import Shard
    from ottla.groups.share.state import StateErrors
    from ottla.protocol.uuids import Uuid


def initialized_partitions(shard: Shard, group_id: str) -> dict[Uuid, list[int]]:
    """The partitions of a group that have state; of a group that is not there, none."""
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None:
        return {}
    return {topic_id: sorted(topic.partitions) for topic_id, topic in state.initialized.items()}


# Altering


def alter(
    shard: Shard, request: AlterShareGroupOffsetsRequest, answer: Pending[AlterShareGroupOffsetsResponse]
) -> Outcome[None]:
    """Let a group without members, or one that is not there yet, begin at other offsets."""
    group = share_group(shard, request.group_id, create=True)
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))
    response = AlterShareGroupOffsetsResponse()
    begun: dict[Uuid, InitializedTopic] = {}
    offsets: dict[SharePartitionKey, int] = {}
    now = shard.clock.now_ms()
    for wanted in request.topics:
        topic = shard.topics.by_name(wanted.topic_name)
        count = 0 if topic is None else topic.partition_count
        result = AlterShareGroupOffsetsResponseTopic(topic_name=wanted.topic_name)
        response.responses.append(result)
        for each in wanted.partitions:
            answered = AlterShareGroupOffsetsResponsePartition(partition_index=each.partition_index)
            result.partitions.append(answered)
            if topic is None or each.partition_index >= count:
                answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answered.error_message = error_text(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                offsets[SharePartitionKey(request.group_id, topic.id, each.partition_index)] = each.start_offset
        if topic is not None:
            result.topic_id = topic.id
            indexes = frozenset(each.partition_index for each in wanted.partitions if each.partition_index < count)
            begun[topic.id] = InitializedTopic(topic.name, indexes, now)

    def initialized(errors: StateErrors) -> None:
        for result in response.responses:
            for each in result.partitions:
                code = errors.get(SharePartitionKey(request.group_id, result.topic_id, each.partition_index))
                if code and not each.error_code:
                    each.error_code = code
                    each.error_message = error_text(code)
        if not answer.settled:
            answer.complete(response)

    def begin(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            share_state.initialize(shard, request.group_id, group.group_epoch, offsets, initialized, undo=False)

    written = [share_state.initializing_record(group, begun)] if begun else []
    return Outcome(None, written, on_durable=begin)


# Deleting offsets


def delete_offsets(
    shard: Shard, request: DeleteShareGroupOffsetsRequest, answer: Pending[DeleteShareGroupOffsetsResponse]
) -> Outcome[None]:
    """Forget how far a group without members has come in some topics."""
    group = shard.share_group(request.group_id)
    group.validate_delete()
    state = group.state_partitions
    response = DeleteShareGroupOffsetsResponse()
    if state is None:
        answer.complete(response)
        return Outcome(None)
    initialized = dict(state.initialized)
    deleting = dict(state.deleting)
    keys: list[SharePartitionKey] = []
    names: dict[Uuid, str] = {}
    for wanted in request.topics:
        topic = shard.topics.by_name(wanted.topic_name)
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
                    topic_name=wanted.topic_name, error_code=code, error_message=message
                )
            )
            continue
        names[topic.id] = topic.name
        keys += [SharePartitionKey(request.group_id, topic.id, each) for each in partitions]

    def deleted(errors: StateErrors) -> None:
        done: dict[Uuid, str] = {}
        for topic_id, name in names.items():
            code = next((each for key, each in errors.items() if key.topic_id == topic_id and each), ErrorCode.NONE)
            if code is ErrorCode.NONE:
                done[topic_id] = name
                continue
            response.responses.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=name, topic_id=topic_id, error_code=code, error_message=error_text(code)
                )
            )
        response.responses += [
            DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id) for topic_id, name in done.items()
        ]
        _then(
            shard,
            lambda: _note_deleted(shard, request.group_id, done),
            lambda code: answer.complete(
                DeleteShareGroupOffsetsResponse(error_code=code, error_message=error_text(code)) if code else response
            ),
        )

    def begin(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            share_state.delete(shard, keys, deleted)

    record = share_records.state_partitions(
        request.group_id, StatePartitions(state.initializing, initialized, deleting)
    )
    if not keys:
        return Outcome(None, [record], on_durable=lambda code: None if code else answer.complete(response))
    return Outcome(None, [record], on_durable=begin)


def _note_deleted(shard: Shard, group_id: str, topics: dict[Uuid, str]) -> Outcome[None]:
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None or not topics:
        return Outcome(None)
    deleting = {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in topics}
    left = StatePartitions(state.initializing, state.initialized, deleting)
    return Outcome(None, [share_records.state_partitions(group_id, left)])


# Deleting groups


def delete_group(shard: Shard, group_id: str, answer: Pending[list[DeletableGroupResult]]) -> Outcome[None]:
    """Delete a share group: first the state of its partitions, then what is known of itself."""
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
        found = shard.topics.by_id(topic_id)  # what an earlier attempt left behind
        if found is not None:
            deleting[topic_id] = found.name
            keys += [SharePartitionKey(group_id, topic_id, each) for each in range(found.partition_count)]

    def deleted(errors: StateErrors) -> None:
        code = next((each for each in errors.values() if each), ErrorCode.NONE)
        if code:
            answer.complete([DeletableGroupResult(group_id=group_id, error_code=code)])
            return
        results: list[DeletableGroupResult] = []

        def bury() -> Outcome[None]:
            outcome = describe.delete_groups(shard, [group_id])
            results.extend(outcome.response)
            return Outcome(None, outcome.records)

        _then(
            shard,
            bury,
            lambda code: answer.complete(
                [DeletableGroupResult(group_id=group_id, error_code=code)] if code else results
            ),
        )

    def begin(code: ErrorCode) -> None:
        if code is ErrorCode.NONE and not shard.closed:
            share_state.delete(shard, keys, deleted)

    if group.state_partitions is None:
        return Outcome(None, on_durable=begin)
    record = share_records.state_partitions(group_id, StatePartitions(deleting=deleting))
    return Outcome(None, [record], on_durable=begin)


def _then(shard: Shard, operation: Callable[[], Outcome[None]], done: Callable[[ErrorCode], None]) -> None:
    """Do another operation on the shard, and tell when it is durable, or what kept it from being so."""
    if shard.closed:
        done(ErrorCode.NOT_COORDINATOR)
        return
    answer = shard.run(lambda: _answered(operation()), lambda code, _: code)
    if isinstance(answer, Pending):
        answer.on_complete(done)
    else:
        done(answer)


def _answered(outcome: Outcome[None]) -> Outcome[ErrorCode]:
    return Outcome(ErrorCode.NONE, outcome.records)
