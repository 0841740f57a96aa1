"""The share-partition state of a share group: initializing, initialized, deleting.

The group writes a record before it asks the share coordinators and another one when they are done. Initializations
without the second record are retried after `group.share.initialize.retry.interval.ms`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ottla.groups.outcome import Outcome, no_change
from ottla.groups.share import records
from ottla.groups.share.group import InitializedTopic, ShareGroup, StatePartitions
from ottla.pending import Pending, completed_with
from ottla.shares.environment import NO_START_OFFSET, SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.uuids import Uuid

    TopicPartitions = Mapping[Uuid, frozenset[int]]
    StateErrors = dict[SharePartitionKey, ErrorCode]

log = logging.getLogger(__name__)


def uninitialized(shard: Shard, group: ShareGroup, topics: Iterable[str]) -> dict[Uuid, InitializedTopic]:
    """Return the partitions of subscribed topics that are not initialized, and not being initialized recently."""
    now = shard.clock.now_ms()
    state = group.state_partitions or StatePartitions()
    retry = shard.settings.coordinator().share_initialize_retry_interval_ms
    uninitialized_topics: dict[Uuid, InitializedTopic] = {}
    for name in topics:
        topic = shard.topics.by_name(name)
        if topic is None:
            continue
        started: set[int] = set()
        if topic.id in state.initialized:
            started |= state.initialized[topic.id].partitions
        initializing = state.initializing.get(topic.id)
        if initializing is not None and now - initializing.timestamp_ms < retry:
            started |= initializing.partitions
        if len(started) < topic.partition_count:
            missing = frozenset(range(topic.partition_count)) - started
            uninitialized_topics[topic.id] = InitializedTopic(topic.name, missing, now)
    return uninitialized_topics


def initializing_record(group: ShareGroup, topics: Mapping[Uuid, InitializedTopic]) -> GroupRecord:
    """Return the record that adds partitions to `initializing` and removes them from `deleting`."""
    state = group.state_partitions or StatePartitions()
    initializing = _merged(state.initializing, topics)
    deleting = {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in initializing}
    return records.state_partitions(group.group_id, StatePartitions(initializing, state.initialized, deleting))


def initialize(
    shard: Shard, group_id: str, state_epoch: int, offsets: Mapping[SharePartitionKey, int], *, undo: bool = True
) -> Pending[StateErrors]:
    """Have the share coordinators initialize partitions, record the result in the group, and return each error code.

    If one partition fails, none becomes `initialized`; with `undo` all of them leave `initializing` and are retried.
    """

    def record_result(errors: StateErrors) -> StateErrors:
        failed = any(errors.values())
        if failed:
            log.warning("group %s: share state was not initialized: %s", group_id, set(errors.values()))
        change = _uninitialized if failed else _initialized
        if not shard.closed and (undo or not failed):
            operation = partial(change, shard, group_id, _by_topic(offsets))
            shard.execute(("share state", group_id), operation)
        return errors

    return _for_all(offsets, lambda key: shard.share_states.initialize(key, state_epoch, offsets[key])).map(
        record_result
    )


def initialize_later(shard: Shard, group_id: str, state_epoch: int, topics: Mapping[Uuid, InitializedTopic]) -> None:
    """Initialize partitions without a start offset on the next turn of the event loop."""
    keys = {
        SharePartitionKey(group_id, topic_id, partition): NO_START_OFFSET
        for topic_id, topic in topics.items()
        for partition in sorted(topic.partitions)
    }

    def begin() -> None:
        if not shard.closed:
            initialize(shard, group_id, state_epoch, keys)

    shard.clock.call_soon(begin)


def delete(shard: Shard, keys: Iterable[SharePartitionKey]) -> Pending[StateErrors]:
    """Have the share coordinators delete the state of partitions; return each error code."""
    return _for_all(keys, shard.share_states.delete)


def remove_deleted_topics(shard: Shard, topic_ids: Collection[Uuid]) -> Outcome[None]:
    """Remove deleted topics from the groups; the share coordinators delete the state of deleted topics themselves."""
    written = []
    for group in shard.groups.values():
        state = group.state_partitions if isinstance(group, ShareGroup) else None
        if state is None or not any(
            topic_id in topics
            for topics in (state.initializing, state.initialized, state.deleting)
            for topic_id in topic_ids
        ):
            continue
        remaining = StatePartitions(
            {topic_id: topic for topic_id, topic in state.initializing.items() if topic_id not in topic_ids},
            {topic_id: topic for topic_id, topic in state.initialized.items() if topic_id not in topic_ids},
            {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in topic_ids},
        )
        written.append(records.state_partitions(group.group_id, remaining))
    return Outcome(None, written, atomic=False)


# Private parts


def _for_all(
    keys: Iterable[SharePartitionKey], request: Callable[[SharePartitionKey], Pending[ErrorCode]]
) -> Pending[StateErrors]:
    """Send one request per distinct key; return all error codes when the last one is known."""
    distinct = list(dict.fromkeys(keys))
    if not distinct:
        return completed_with({})
    errors: StateErrors = {}
    completed: Pending[StateErrors] = Pending()

    def complete(key: SharePartitionKey, code: ErrorCode) -> None:
        errors[key] = code
        if len(errors) == len(distinct):
            completed.complete({key: errors[key] for key in distinct})

    for key in distinct:
        request(key).on_complete(partial(complete, key))
    return completed


def _by_topic(keys: Iterable[SharePartitionKey]) -> dict[Uuid, frozenset[int]]:
    by_topic: dict[Uuid, set[int]] = {}
    for key in keys:
        by_topic.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()}


def _initialized(shard: Shard, group_id: str, partitions: TopicPartitions) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup) or not partitions:
        return no_change()
    state = group.state_partitions or StatePartitions()
    now = shard.clock.now_ms()
    topics = {}
    for topic_id, indexes in partitions.items():
        topic = shard.topics.by_id(topic_id)
        topics[topic_id] = InitializedTopic("<UNKNOWN>" if topic is None else topic.name, indexes, now)
    remaining = replace(
        state, initializing=_without(state.initializing, partitions), initialized=_merged(state.initialized, topics)
    )
    return Outcome(None, [records.state_partitions(group_id, remaining)])


def _uninitialized(shard: Shard, group_id: str, partitions: TopicPartitions) -> Outcome[None]:
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None or not state.initializing or not partitions:
        return no_change()
    remaining = replace(state, initializing=_without(state.initializing, partitions))
    return Outcome(None, [records.state_partitions(group_id, remaining)])


def _merged(
    first: Mapping[Uuid, InitializedTopic], second: Mapping[Uuid, InitializedTopic]
) -> dict[Uuid, InitializedTopic]:
    merged = dict(first)
    for topic_id, topic in second.items():
        other = merged.get(topic_id)
        merged[topic_id] = topic if other is None else topic._replace(partitions=other.partitions | topic.partitions)
    return merged


def _without(topics: Mapping[Uuid, InitializedTopic], partitions: TopicPartitions) -> dict[Uuid, InitializedTopic]:
    remaining = {}
    for topic_id, topic in topics.items():
        kept = topic.partitions - partitions.get(topic_id, frozenset())
        if kept:
            remaining[topic_id] = topic._replace(partitions=kept)
    return remaining
