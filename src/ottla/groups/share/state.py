"""How the state of a share group's partitions comes and goes: initializing, initialized, deleting.

The group notes in a record what it is about to do, has the share coordinators do it, and notes when it is done; what
was begun and never noted as done is begun again after a while.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.groups.shard import Outcome
from ottla.groups.share import records as share_records
from ottla.groups.share.group import InitializedTopic, ShareGroup, StatePartitions
from ottla.shares.environment import NO_START_OFFSET, SharePartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.groups.shard import Shard
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.uuids import Uuid

    TopicPartitions = Mapping[Uuid, frozenset[int]]
    StateErrors = dict[SharePartitionKey, ErrorCode]

log = logging.getLogger(__name__)


def uninitialized(shard: Shard, group: ShareGroup, topics: Iterable[str]) -> dict[Uuid, InitializedTopic]:
    """The partitions of subscribed topics whose state was never initialized, or was begun too long ago."""
    now = shard.clock.now_ms()
    state = group.state_partitions or StatePartitions()
    retry = shard.settings.coordinator().share_initialize_retry_interval_ms
    found: dict[Uuid, InitializedTopic] = {}
    for name in topics:
        topic = shard.topics.by_name(name)
        if topic is None:
            continue
        begun: set[int] = set()
        if topic.id in state.initialized:
            begun |= state.initialized[topic.id].partitions
        initializing = state.initializing.get(topic.id)
        if initializing is not None and now - initializing.timestamp_ms < retry:
            begun |= initializing.partitions
        if len(begun) < topic.partition_count:
            missing = frozenset(range(topic.partition_count)) - begun
            found[topic.id] = InitializedTopic(topic.name, missing, now)
    return found


def initializing_record(group: ShareGroup, topics: Mapping[Uuid, InitializedTopic]) -> GroupRecord:
    """These partitions are being initialized, whatever was being done to them before."""
    state = group.state_partitions or StatePartitions()
    initializing = _joined(state.initializing, topics)
    deleting = {topic_id: name for topic_id, name in state.deleting.items() if topic_id not in initializing}
    return share_records.state_partitions(group.group_id, StatePartitions(initializing, state.initialized, deleting))


def initialize(
    shard: Shard,
    group_id: str,
    state_epoch: int,
    offsets: Mapping[SharePartitionKey, int],
    done: Callable[[StateErrors], None],
    *,
    undo: bool = True,
) -> None:
    """Have the state of partitions initialized, and note that it was; `done` is told what became of each.

    If one of them failed, none is noted, and with `undo` they are noted as not begun, so that all are done again.
    """

    def finished(errors: StateErrors) -> None:
        if not shard.closed:
            failed = any(errors.values())
            if failed:
                log.warning("group %s: share state was not initialized: %s", group_id, set(errors.values()))
            note = _uninitialized if failed else _initialized
            partitions = _by_topic(offsets)
            if undo or not failed:
                shard.run(lambda: note(shard, group_id, partitions), lambda code, _: _not_noted(group_id, code))
        done(errors)

    _for_all(offsets, lambda key: shard.share_states.initialize(key, state_epoch, offsets[key]), finished)


def initialize_later(shard: Shard, group_id: str, state_epoch: int, topics: Mapping[Uuid, InitializedTopic]) -> None:
    """The same for partitions that were never read, once the request at hand is done with."""
    keys = {
        SharePartitionKey(group_id, topic_id, partition): NO_START_OFFSET
        for topic_id, topic in topics.items()
        for partition in sorted(topic.partitions)
    }

    def begin() -> None:
        if not shard.closed:
            initialize(shard, group_id, state_epoch, keys, lambda _: None)

    shard.clock.call_soon(begin)


def delete(shard: Shard, keys: Iterable[SharePartitionKey], done: Callable[[StateErrors], None]) -> None:
    """Have the state of partitions deleted; `done` is told what became of each."""
    _for_all(keys, shard.share_states.delete, done)


def forget_deleted_topics(shard: Shard, topic_ids: Collection[Uuid]) -> Outcome[None]:
    """Topics are no more; their state goes without being asked to, and here too nothing is left of them."""
    written = []
    for group in shard.groups.values():
        state = group.state_partitions if isinstance(group, ShareGroup) else None
        if state is None or not any(
            topic_id in each
            for each in (state.initializing, state.initialized, state.deleting)
            for topic_id in topic_ids
        ):
            continue
        left = StatePartitions(
            {key: each for key, each in state.initializing.items() if key not in topic_ids},
            {key: each for key, each in state.initialized.items() if key not in topic_ids},
            {key: name for key, name in state.deleting.items() if key not in topic_ids},
        )
        written.append(share_records.state_partitions(group.group_id, left))
    return Outcome(None, written, atomic=False)


# Inside


def _for_all(
    keys: Iterable[SharePartitionKey],
    ask: Callable[[SharePartitionKey], Pending[ErrorCode]],
    done: Callable[[StateErrors], None],
) -> None:
    wanted = list(dict.fromkeys(keys))
    errors: StateErrors = {}
    if not wanted:
        done(errors)

    def answered(key: SharePartitionKey, code: ErrorCode) -> None:
        errors[key] = code
        if len(errors) == len(wanted):
            done({each: errors[each] for each in wanted})

    for key in wanted:
        ask(key).on_complete(lambda code, key=key: answered(key, code))  # type: ignore[misc]


def _by_topic(keys: Iterable[SharePartitionKey]) -> dict[Uuid, frozenset[int]]:
    found: dict[Uuid, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, set()).add(key.partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in found.items()}


def _initialized(shard: Shard, group_id: str, partitions: TopicPartitions) -> Outcome[None]:
    group = shard.groups.get(group_id)
    if not isinstance(group, ShareGroup) or not partitions:
        return Outcome(None)
    state = group.state_partitions or StatePartitions()
    now = shard.clock.now_ms()
    topics = {}
    for topic_id, indexes in partitions.items():
        topic = shard.topics.by_id(topic_id)
        topics[topic_id] = InitializedTopic("<UNKNOWN>" if topic is None else topic.name, indexes, now)
    left = replace(
        state, initializing=_without(state.initializing, partitions), initialized=_joined(state.initialized, topics)
    )
    return Outcome(None, [share_records.state_partitions(group_id, left)])


def _uninitialized(shard: Shard, group_id: str, partitions: TopicPartitions) -> Outcome[None]:
    group = shard.groups.get(group_id)
    state = group.state_partitions if isinstance(group, ShareGroup) else None
    if state is None or not state.initializing or not partitions:
        return Outcome(None)
    left = replace(state, initializing=_without(state.initializing, partitions))
    return Outcome(None, [share_records.state_partitions(group_id, left)])


def _not_noted(group_id: str, code: ErrorCode) -> None:
    log.warning("group %s: what became of its share state could not be written: %s", group_id, code.name)


def _joined(
    first: Mapping[Uuid, InitializedTopic], second: Mapping[Uuid, InitializedTopic]
) -> dict[Uuid, InitializedTopic]:
    joined = dict(first)
    for topic_id, topic in second.items():
        before = joined.get(topic_id)
        joined[topic_id] = topic if before is None else topic._replace(partitions=before.partitions | topic.partitions)
    return joined


def _without(topics: Mapping[Uuid, InitializedTopic], partitions: TopicPartitions) -> dict[Uuid, InitializedTopic]:
    left = {}
    for topic_id, topic in topics.items():
        rest = topic.partitions - partitions.get(topic_id, frozenset())
        if rest:
            left[topic_id] = topic._replace(partitions=rest)
    return left
