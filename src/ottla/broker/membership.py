"""Nodes that stop, start, join and leave while the cluster runs, and partitions that are moved by hand.

Nodes of a process share the partitions' logs: a stopped node moves leadership and loses no record, only its sessions
with clients. Sockets are in `ottla.server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.fetch_sessions import FetchSessions
from ottla.cluster.brokers import (
    begin_controlled_shutdown,
    fence_broker,
    register_broker,
    unfence_broker,
    unregister_broker,
)
from ottla.cluster.partitions.leadership import change_isr
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import PartitionChangeRecord
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.partitions.state import Partition, Topic


def stop_node(cluster: BrokerRuntime, node_id: int) -> None:
    """Stop a node: move its leadership to other replicas; partitions without another replica lose their leader."""
    node = cluster.nodes[node_id]
    if not cluster.image.broker_is_active(node_id):
        return
    cluster.change(begin_controlled_shutdown(cluster.image, node_id, layers=node.layers))
    cluster.change(fence_broker(cluster.image, node_id, layers=node.layers))
    node.events.emit("node.stopped", reason="stopped by the test kit")


def start_node(cluster: BrokerRuntime, node_id: int) -> None:
    """Start a stopped node with empty fetch sessions; its replicas are in sync at once."""
    node = cluster.nodes[node_id]
    node.fetch_sessions = FetchSessions(
        cluster.world.clock,
        cluster.world.random.fork(f"fetch sessions of node {node_id} at {cluster.metadata_offset}"),
        node.config_int("max.incremental.fetch.session.cache.slots"),
    )
    node.share_partitions.stop()
    registration = cluster.image.brokers[node_id]
    node.epoch, records = register_broker(
        cluster.image,
        broker_id=node_id,
        incarnation_id=Uuid(cluster.world.random.uuid()),
        listeners=registration.listeners,
        directories=registration.directories,
        next_offset=cluster.metadata.next_offset,
        layers=node.layers,
        rack=node.rack,
        previous_epoch=registration.epoch,
    )
    cluster.change(records)
    cluster.change(unfence_broker(cluster.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
    _catch_up(cluster, node)


def fence_node(cluster: BrokerRuntime, node_id: int) -> None:
    """Fence a node as the controller does when heartbeats are missing; the node itself is not notified."""
    if any(candidate != node_id and cluster.image.broker_is_active(candidate) for candidate in cluster.nodes):
        cluster.change(fence_broker(cluster.image, node_id, layers=cluster.nodes[node_id].layers))


def unfence_node(cluster: BrokerRuntime, node_id: int) -> None:
    """Unfence a node; its replicas are in sync at once."""
    if not cluster.image.broker_is_active(node_id):
        node = cluster.nodes[node_id]
        cluster.change(unfence_broker(cluster.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
        _catch_up(cluster, node)


def _catch_up(cluster: BrokerRuntime, node: Broker) -> None:
    for topic in list(cluster.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node.node_id in state.replicas and node.node_id not in state.isr and state.leader >= 0:
                isr = [replica for replica in state.replicas if replica in (*state.isr, node.node_id)]
                cluster.change(change_isr(cluster.image, topic.name, index, isr, layers=node.layers))


def remove_node(cluster: BrokerRuntime, node_id: int) -> Broker:
    """Remove a node for good and assign its replicas to other nodes."""
    if len(cluster.nodes) == 1:
        raise ValueError("the last node cannot be removed")
    active = [
        candidate for candidate in cluster.nodes if candidate != node_id and cluster.image.broker_is_active(candidate)
    ]
    if not active:
        raise ValueError(f"no other node runs that could take over from node {node_id}")
    for topic in list(cluster.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node_id in state.replicas:
                free = [candidate for candidate in active if candidate not in state.replicas]
                stay = [candidate for candidate in state.replicas if candidate != node_id]
                set_replicas(cluster, topic.name, index, [*stay, *free[:1]] if free else stay)
    stop_node(cluster, node_id)
    cluster.change(unregister_broker(cluster.image, node_id, layers=cluster.controller.layers))
    return cluster.nodes.pop(node_id)


def move_leader(cluster: BrokerRuntime, topic: str, index: int, node_id: int) -> None:
    """Make a node the leader of a partition; if it is no replica, it replaces the leader."""
    topic_image, state = _find(cluster, topic, index)
    if not cluster.image.broker_is_active(node_id):
        raise ValueError(f"node {node_id} is not running")
    replicas = list(state.replicas)
    if node_id not in replicas:
        replicas[replicas.index(state.leader) if state.leader in replicas else 0] = node_id
    isr = [replica for replica in replicas if replica in state.isr or replica == node_id]
    cluster.change([_change(cluster, topic_image, index, replicas, isr, node_id)])


def set_replicas(cluster: BrokerRuntime, topic: str, index: int, replicas: Sequence[int]) -> None:
    """Assign the replicas of a partition, all in sync; the leader stays if it is one of them."""
    topic_image, state = _find(cluster, topic, index)
    unknown = [replica for replica in replicas if replica not in cluster.nodes]
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas {list(replicas)}: there are nodes {sorted(cluster.nodes)}, each at most once")
    isr = [replica for replica in replicas if cluster.image.broker_is_active(replica)]
    leader = state.leader if state.leader in isr else (isr[0] if isr else -1)
    cluster.change([_change(cluster, topic_image, index, replicas, isr or replicas[:1], leader)])


def _find(cluster: BrokerRuntime, topic: str, index: int) -> tuple[Topic, Partition]:
    topic_image = cluster.image.topic(topic)
    if topic_image is None or index not in topic_image.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    return topic_image, topic_image.partitions[index]


def _change(
    cluster: BrokerRuntime, topic: Topic, index: int, replicas: Iterable[int], isr: Iterable[int], leader: int
) -> PartitionChangeRecord:
    members = list(replicas)
    state = topic.partitions[index]
    moved = leader != state.leader
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic.id,
        replicas=members,
        isr=list(isr),
        leader=leader if moved else -2,
        directories=[_directory(cluster, member) for member in members],
    )


def _directory(cluster: BrokerRuntime, node_id: int) -> Uuid:
    return cluster.image.brokers[node_id].directories[0]
