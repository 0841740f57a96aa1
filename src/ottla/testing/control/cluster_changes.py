"""What a test makes happen that would else take time, load or an operator: moves, timeouts, cleaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.membership import move_leader, set_replicas
from ottla.cluster.registrations import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from ottla.cluster.topics import delete_topics
from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
from ottla.storage import compaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime

GROUP, TRANSACTION = "group", "transaction"


def coordinator_partition(cluster: BrokerRuntime, key: str, kind: str) -> tuple[str, int]:
    """The partition that decides who coordinates a group or a transactional id; it is made if it is not there yet."""
    if kind not in (GROUP, TRANSACTION):
        raise ValueError(f"a coordinator is of a {GROUP!r} or a {TRANSACTION!r}, not of a {kind!r}")
    topic = GROUP_METADATA_TOPIC if kind == GROUP else TRANSACTION_STATE_TOPIC
    if cluster.image.topic(topic) is None:
        cluster.create_topic(topic)
    node = cluster.controller
    return topic, (node.groups if kind == GROUP else node.transactions).partition_for(key)


def move_coordinator(cluster: BrokerRuntime, key: str, node_id: int, kind: str) -> None:
    """Let a node coordinate a group or a transactional id, and all that share its partition."""
    move_leader(cluster, *coordinator_partition(cluster, key, kind), node_id)


def coordinator_of(cluster: BrokerRuntime, key: str, kind: str) -> int:
    """The node that coordinates."""
    topic, index = coordinator_partition(cluster, key, kind)
    return cluster.partitions[topic, index].state.leader


def rehash_coordinators(cluster: BrokerRuntime) -> None:
    """Let another node coordinate each group and transactional id."""
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        topic = cluster.image.topic(name)
        for index in list(topic.partitions if topic is not None else ()):
            _move_on(cluster, name, index)


def shuffle_leaders(cluster: BrokerRuntime, topics: Sequence[str] = ()) -> None:
    """Let each partition be led by another node than now, as far as there are others."""
    for name in topics:
        if cluster.image.topic(name) is None:
            raise KeyError(f"there is no topic {name}")
    for name, index in list(cluster.partitions):
        if name in topics or (not topics and name not in INTERNAL_TOPICS):
            _move_on(cluster, name, index)


def _move_on(cluster: BrokerRuntime, topic: str, index: int) -> None:
    state = cluster.partitions[topic, index].state
    others = [each for each in cluster.nodes if each != state.leader and cluster.image.broker_is_active(each)]
    if others:
        move_leader(cluster, topic, index, others[cluster.world.random.below(len(others))])


def set_followers(cluster: BrokerRuntime, topic: str, index: int, followers: Iterable[int]) -> None:
    """Let these nodes follow a partition, in sync with its leader."""
    leader = cluster.partitions[topic, index].state.leader
    set_replicas(cluster, topic, index, [leader, *(each for each in followers if each != leader)])


def _chosen(cluster: BrokerRuntime, topic: str | None) -> Iterator[Partition]:
    found = [each for (name, _), each in cluster.partitions.items() if topic is None or name == topic]
    if topic is not None and not found:
        raise KeyError(topic)
    yield from found


def roll_segments(cluster: BrokerRuntime, topic: str | None = None) -> None:
    """Close the active segments that have records in them."""
    for partition in _chosen(cluster, topic):
        if partition.log.log_end_offset > partition.log.active_segment.base_offset:
            partition.log.roll()


def apply_retention(cluster: BrokerRuntime, topic: str | None = None) -> int:
    """Delete what has outlived its retention, now; returns how many segments went."""
    return sum(partition.log.delete_old_segments() for partition in _chosen(cluster, topic))


def compact(cluster: BrokerRuntime, topic: str | None = None) -> None:
    """Compact, now and whole, all that is to be compacted: the active segments are closed for it."""
    now = cluster.world.clock.now_ms()
    logs = {partition.log.topic_partition: partition.log for partition in _chosen(cluster, topic)}
    for node in cluster.nodes.values():
        for directory in node.directories:
            for place, log in directory.logs.items():
                if logs.get(place) is not log or not log.config.compact:
                    continue
                if log.log_end_offset > log.active_segment.base_offset:
                    log.roll()
                log.flush_closed()
                cleanable = compaction.find_cleanable(log, directory.cleaner_offsets.get(place), now)
                directory.cleaned(log, compaction.clean(cleanable, now))


def expire_transaction(cluster: BrokerRuntime, transactional_id: str) -> None:
    """Let an open transaction time out now; KeyError if there is none."""
    for node in cluster.nodes.values():
        if node.transactions.time_out(transactional_id):
            return
    raise KeyError(f"no open transaction of {transactional_id}")


def expire_member(cluster: BrokerRuntime, group_id: str, member_id: str | None = None) -> None:
    """Let the session of a member, or of all members, of a group time out now; KeyError if there is none."""
    found = False
    for node in cluster.nodes.values():
        for shard in node.groups.shards():
            group = shard.groups.get(group_id)
            for each in list(group.members if group is not None else ()):
                if member_id in (None, each):
                    found |= shard.timers.fire(("heartbeat", group_id, each))
                    found |= shard.timers.fire(("session", group_id, each))
    if not found:
        raise KeyError(f"no member {member_id or ''} in group {group_id}")


def delete_everything(cluster: BrokerRuntime) -> None:
    """Delete all topics, and with the broker's own ones all groups and transactional ids."""
    wanted = [DeleteTopicState(name=name) for name in cluster.image.topic_ids]
    cluster.change(delete_topics(cluster.image, wanted)[1])
