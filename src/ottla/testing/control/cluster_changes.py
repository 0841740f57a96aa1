"""Changes that a test applies to a broker's state at once: leaders, coordinators, timeouts, log cleaning.

Without a test they need an operator, load or time. All functions run on the cluster's event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.nodes.membership import move_leader, set_replicas
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from ottla.cluster.topics import delete_topics
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.membership import prepare_rebalance
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.environment import RequestContext
from ottla.groups.modern import JOIN_EPOCH, LEAVE_GROUP_EPOCH
from ottla.protocol.messages.k20_delete_topics import DeleteTopicState
from ottla.protocol.messages.k68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.uuids import Uuid
from ottla.storage.cleaner import compaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.broker.runtime import BrokerRuntime

GROUP, TRANSACTION = "group", "transaction"
REBALANCE_TIMEOUT_MS = 10_000
SHORT_MEMBERSHIP_SECONDS = 0.3
FENCING_TIMEOUT_MS = 60_000


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


def start_rebalance(cluster: BrokerRuntime, group_id: str) -> None:
    """Start a rebalance of a group, as when a member joins and leaves again; no effect on an empty group."""
    for node in cluster.nodes.values():
        for shard in node.groups.shards():
            group = shard.groups.get(group_id)
            if isinstance(group, ClassicGroup):
                if group.members and group.can_rebalance:
                    shard.execute(("rebalance", group_id), partial(prepare_rebalance, shard, group))
            elif isinstance(group, ConsumerGroup) and group.members:
                _join_for_a_moment(cluster, node, group)


def _join_for_a_moment(cluster: BrokerRuntime, node: Broker, group: ConsumerGroup) -> None:
    """Add a member with the subscription of the others, and let it leave after the next heartbeats."""
    topics = sorted({topic for member in group.members.values() for topic in member.subscribed_topic_names})
    member_id = str(Uuid(cluster.world.random.bytes(16)))
    context = RequestContext(version=1, client_id="rebalance")

    def heartbeat(epoch: int) -> None:
        node.groups.consumer_group_heartbeat(
            context,
            ConsumerGroupHeartbeatRequest(
                group_id=group.group_id,
                member_id=member_id,
                member_epoch=epoch,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                subscribed_topic_names=topics,
                topic_partitions=[],
            ),
        )

    heartbeat(JOIN_EPOCH)
    cluster.world.clock.call_later(SHORT_MEMBERSHIP_SECONDS, heartbeat, LEAVE_GROUP_EPOCH)


def fence_producer(cluster: BrokerRuntime, transactional_id: str) -> None:
    """Initialize another producer with this transactional id: the earlier one is fenced, its transaction aborted."""
    node = cluster.nodes[find_coordinator(cluster, transactional_id, TRANSACTION)]
    node.transactions.init_producer_id(transactional_id, FENCING_TIMEOUT_MS)


def recreate_topic(cluster: BrokerRuntime, name: str) -> None:
    """Delete a topic and create it again, empty, with its partitions, replication factor and configs."""
    topic = cluster.image.topic(name)
    if topic is None:
        raise KeyError(f"there is no topic {name}")
    partitions = len(topic.partitions)
    replicas = len(cluster.partitions[name, 0].state.replicas)
    configs = dict(cluster.image.config(ConfigResourceType.TOPIC, name))
    cluster.change(delete_topics(cluster.image, [DeleteTopicState(name=name)])[1])
    cluster.create_topic(name, partitions, replicas, configs)


def delete_everything(runtime: BrokerRuntime) -> None:
    """Delete all topics; with the internal ones, all groups and transactional ids are gone too."""
    topics = [DeleteTopicState(name=name) for name in runtime.image.topic_ids]
    runtime.change(delete_topics(runtime.image, topics)[1])
