"""Changes that a test applies to a broker's state at once: leaders, coordinators, timeouts, log cleaning.

Without a test they need an operator, load or time. All functions run on the cluster's event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.nodes.membership import move_leader, set_replicas
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from ottla.cluster.topics import delete_topics
from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
from ottla.storage.cleaner import compaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime

GROUP, TRANSACTION = "group", "transaction"


def coordinator_partition(runtime: BrokerRuntime, key: str, kind: str) -> tuple[str, int]:
    """Return the partition whose leader coordinates a group or a transactional id; its topic is created if needed."""
    if kind not in (GROUP, TRANSACTION):
        raise ValueError(f"kind must be {GROUP!r} or {TRANSACTION!r}, not {kind!r}")
    topic = GROUP_METADATA_TOPIC if kind == GROUP else TRANSACTION_STATE_TOPIC
    if runtime.image.topic(topic) is None:
        runtime.create_topic(topic)
    node = runtime.controller
    return topic, (node.groups if kind == GROUP else node.transactions).partition_for(key)


def move_coordinator(runtime: BrokerRuntime, key: str, node_id: int, kind: str) -> None:
    """Make a node the coordinator of a group or transactional id, and of all others in the same partition."""
    move_leader(runtime, *coordinator_partition(runtime, key, kind), node_id)


def find_coordinator(runtime: BrokerRuntime, key: str, kind: str) -> int:
    """Return the node that coordinates a group or a transactional id."""
    topic, index = coordinator_partition(runtime, key, kind)
    return runtime.partitions[topic, index].state.leader


def rehash_coordinators(runtime: BrokerRuntime) -> None:
    """Move every coordinator partition to another node."""
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        topic = runtime.image.topic(name)
        for index in list(topic.partitions if topic is not None else ()):
            _move_to_other_node(runtime, name, index)


def shuffle_leaders(runtime: BrokerRuntime, topics: Sequence[str] = ()) -> None:
    """Move the leader of every partition of these topics (all but internal ones without any) to another node."""
    for name in topics:
        if runtime.image.topic(name) is None:
            raise KeyError(f"there is no topic {name}")
    for name, index in list(runtime.partitions):
        if name in topics or (not topics and name not in INTERNAL_TOPICS):
            _move_to_other_node(runtime, name, index)


def _move_to_other_node(runtime: BrokerRuntime, topic: str, index: int) -> None:
    leader = runtime.partitions[topic, index].state.leader
    others = [node for node in runtime.nodes if node != leader and runtime.image.broker_is_active(node)]
    if others:
        move_leader(runtime, topic, index, others[runtime.world.random.below(len(others))])


def set_followers(runtime: BrokerRuntime, topic: str, index: int, followers: Iterable[int]) -> None:
    """Make these nodes the followers of a partition, in sync with its leader."""
    leader = runtime.partitions[topic, index].state.leader
    set_replicas(runtime, topic, index, [leader, *(node for node in followers if node != leader)])


def _find_partitions(runtime: BrokerRuntime, topic: str | None) -> list[Partition]:
    partitions = [partition for (name, _), partition in runtime.partitions.items() if topic is None or name == topic]
    if topic is not None and not partitions:
        raise KeyError(topic)
    return partitions


def roll_segments(runtime: BrokerRuntime, topic: str | None = None) -> None:
    """Roll the active segments that contain records."""
    for partition in _find_partitions(runtime, topic):
        if partition.log.log_end_offset > partition.log.active_segment.base_offset:
            partition.log.roll()


def apply_retention(runtime: BrokerRuntime, topic: str | None = None) -> int:
    """Delete segments beyond their retention now, and return how many were deleted."""
    return sum(partition.log.delete_old_segments() for partition in _find_partitions(runtime, topic))


def compact(runtime: BrokerRuntime, topic: str | None = None) -> None:
    """Compact all compacted logs completely: their active segments are rolled first."""
    now = runtime.world.clock.now_ms()
    logs = {partition.log.topic_partition: partition.log for partition in _find_partitions(runtime, topic)}
    for node in runtime.nodes.values():
        for directory in node.directories:
            for topic_partition, log in directory.logs.items():
                if logs.get(topic_partition) is not log or not log.config.compact:
                    continue
                if log.log_end_offset > log.active_segment.base_offset:
                    log.roll()
                log.flush_closed()
                cleanable = compaction.find_cleanable(log, directory.cleaner_offsets.get(topic_partition), now)
                directory.cleaned(log, compaction.clean(cleanable, now))


def expire_transaction(runtime: BrokerRuntime, transactional_id: str) -> None:
    """Time out an open transaction now; KeyError if there is none."""
    for node in runtime.nodes.values():
        if node.transactions.time_out(transactional_id):
            return
    raise KeyError(f"no open transaction of {transactional_id}")


def expire_member(runtime: BrokerRuntime, group_id: str, member_id: str | None = None) -> None:
    """Expire the session of a member, or of all members of a group; KeyError if there is none.

    The coordinator evicts or fences the member, as after its session timeout.
    """
    expired = False
    for node in runtime.nodes.values():
        for shard in node.groups.shards():
            group = shard.groups.get(group_id)
            for member in list(group.members if group is not None else ()):
                if member_id in (None, member):
                    expired |= shard.timers.fire(("heartbeat", group_id, member))
                    expired |= shard.timers.fire(("session", group_id, member))
    if not expired:
        raise KeyError(f"no member {member_id or ''} in group {group_id}")


def delete_everything(runtime: BrokerRuntime) -> None:
    """Delete all topics; with the internal ones, all groups and transactional ids are gone too."""
    topics = [DeleteTopicState(name=name) for name in runtime.image.topic_ids]
    runtime.change(delete_topics(runtime.image, topics)[1])
