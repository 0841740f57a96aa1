"""Nodes that stop, start, join and leave while the cluster runs, and partitions that are moved by hand.

Nodes of a process share the partitions' logs: a stopped node moves leadership and loses no record, only its sessions
with clients. Sockets are in `ottla.server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.fetch.fetch_sessions import FetchSessions
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


def stop_node(runtime: BrokerRuntime, node_id: int) -> None:
    """Stop a node: move its leadership to other replicas; partitions without another replica lose their leader."""
    node = runtime.nodes[node_id]
    if not runtime.image.broker_is_active(node_id):
        return
    runtime.change(begin_controlled_shutdown(runtime.image, node_id, layers=node.layers))
    runtime.change(fence_broker(runtime.image, node_id, layers=node.layers))
    node.events.emit("node.stopped", reason="stopped by the test kit")


def start_node(runtime: BrokerRuntime, node_id: int) -> None:
    """Start a stopped node with empty fetch sessions; its replicas are in sync at once."""
    node = runtime.nodes[node_id]
    node.fetch_sessions = FetchSessions(
        runtime.world.clock,
        runtime.world.random.fork(f"fetch sessions of node {node_id} at {runtime.metadata_offset}"),
        node.config_int("max.incremental.fetch.session.cache.slots"),
    )
    node.share_partitions.stop()
    registration = runtime.image.brokers[node_id]
    node.epoch, records = register_broker(
        runtime.image,
        broker_id=node_id,
        incarnation_id=Uuid(runtime.world.random.uuid()),
        listeners=registration.listeners,
        directories=registration.directories,
        next_offset=runtime.metadata.next_offset,
        layers=node.layers,
        rack=node.rack,
        previous_epoch=registration.epoch,
    )
    runtime.change(records)
    runtime.change(unfence_broker(runtime.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
    _catch_up(runtime, node)


def fence_node(runtime: BrokerRuntime, node_id: int) -> None:
    """Fence a node as the controller does when heartbeats are missing; the node itself is not notified."""
    if any(candidate != node_id and runtime.image.broker_is_active(candidate) for candidate in runtime.nodes):
        runtime.change(fence_broker(runtime.image, node_id, layers=runtime.nodes[node_id].layers))


def unfence_node(runtime: BrokerRuntime, node_id: int) -> None:
    """Unfence a node; its replicas are in sync at once."""
    if not runtime.image.broker_is_active(node_id):
        node = runtime.nodes[node_id]
        runtime.change(unfence_broker(runtime.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
        _catch_up(runtime, node)


def _catch_up(runtime: BrokerRuntime, node: Broker) -> None:
    for topic in list(runtime.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node.node_id in state.replicas and node.node_id not in state.isr and state.leader >= 0:
                isr = [replica for replica in state.replicas if replica in (*state.isr, node.node_id)]
                runtime.change(change_isr(runtime.image, topic.name, index, isr, layers=node.layers))


def remove_node(runtime: BrokerRuntime, node_id: int) -> Broker:
    """Remove a node for good and assign its replicas to other nodes."""
    if len(runtime.nodes) == 1:
        raise ValueError("the last node cannot be removed")
    active = [
        candidate for candidate in runtime.nodes if candidate != node_id and runtime.image.broker_is_active(candidate)
    ]
    if not active:
        raise ValueError(f"no other node runs that could take over from node {node_id}")
    for topic in list(runtime.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node_id in state.replicas:
                free = [candidate for candidate in active if candidate not in state.replicas]
                stay = [candidate for candidate in state.replicas if candidate != node_id]
                set_replicas(runtime, topic.name, index, [*stay, *free[:1]] if free else stay)
    stop_node(runtime, node_id)
    runtime.change(unregister_broker(runtime.image, node_id, layers=runtime.controller.layers))
    return runtime.nodes.pop(node_id)


def move_leader(runtime: BrokerRuntime, topic: str, index: int, node_id: int) -> None:
    """Make a node the leader of a partition; if it is no replica, it replaces the leader."""
    topic_image, state = _find(runtime, topic, index)
    if not runtime.image.broker_is_active(node_id):
        raise ValueError(f"node {node_id} is not running")
    replicas = list(state.replicas)
    if node_id not in replicas:
        replicas[replicas.index(state.leader) if state.leader in replicas else 0] = node_id
    isr = [replica for replica in replicas if replica in state.isr or replica == node_id]
    runtime.change([_change(runtime, topic_image, index, replicas, isr, node_id)])


def set_replicas(runtime: BrokerRuntime, topic: str, index: int, replicas: Sequence[int]) -> None:
    """Assign the replicas of a partition, all in sync; the leader stays if it is one of them."""
    topic_image, state = _find(runtime, topic, index)
    unknown = [replica for replica in replicas if replica not in runtime.nodes]
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas {list(replicas)}: there are nodes {sorted(runtime.nodes)}, each at most once")
    isr = [replica for replica in replicas if runtime.image.broker_is_active(replica)]
    leader = state.leader if state.leader in isr else (isr[0] if isr else -1)
    runtime.change([_change(runtime, topic_image, index, replicas, isr or replicas[:1], leader)])


def _find(runtime: BrokerRuntime, topic: str, index: int) -> tuple[Topic, Partition]:
    topic_image = runtime.image.topic(topic)
    if topic_image is None or index not in topic_image.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    return topic_image, topic_image.partitions[index]


def _change(
    runtime: BrokerRuntime, topic: Topic, index: int, replicas: Iterable[int], isr: Iterable[int], leader: int
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
        directories=[_directory(runtime, member) for member in members],
    )


def _directory(runtime: BrokerRuntime, node_id: int) -> Uuid:
    return runtime.image.brokers[node_id].directories[0]
