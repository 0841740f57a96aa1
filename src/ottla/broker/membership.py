"""Nodes that come, go and come back while the cluster runs, and partitions that are moved by hand.

All nodes of a process share the partitions' logs, so that a node's death moves leadership and loses no record; what it
does lose are its sessions with clients. Sockets are the server's business.
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
from ottla.cluster.leadership import change_isr
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import PartitionChangeRecord
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.registrations import Partition, Topic


def stop_node(cluster: BrokerRuntime, node_id: int) -> None:
    """A node is gone: others lead what it led, and what nobody else holds has no leader."""
    node = cluster.nodes[node_id]
    if not cluster.image.broker_is_active(node_id):
        return
    cluster.change(begin_controlled_shutdown(cluster.image, node_id, layers=node.layers))
    cluster.change(fence_broker(cluster.image, node_id, layers=node.layers))
    node.events.emit("node.stopped", reason="stopped by the test kit")


def start_node(cluster: BrokerRuntime, node_id: int) -> None:
    """A stopped node is back, without its sessions, and in sync with what it follows."""
    node = cluster.nodes[node_id]
    node.fetch_sessions = FetchSessions(
        cluster.world.clock,
        cluster.world.random.fork(f"fetch sessions of node {node_id} at {cluster.metadata_offset}"),
        node.config_int("max.incremental.fetch.session.cache.slots"),
    )
    node.share_partitions.stop()
    known = cluster.image.brokers[node_id]
    node.epoch, records = register_broker(
        cluster.image,
        broker_id=node_id,
        incarnation_id=Uuid(cluster.world.random.uuid()),
        listeners=known.listeners,
        directories=known.directories,
        next_offset=cluster.metadata.next_offset,
        layers=node.layers,
        rack=node.rack,
        previous_epoch=known.epoch,
    )
    cluster.change(records)
    cluster.change(unfence_broker(cluster.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
    _catch_up(cluster, node)


def fence_node(cluster: BrokerRuntime, node_id: int) -> None:
    """The controller has not heard of a node for too long: others lead what it led, without its knowing."""
    if any(each != node_id and cluster.image.broker_is_active(each) for each in cluster.nodes):
        cluster.change(fence_broker(cluster.image, node_id, layers=cluster.nodes[node_id].layers))


def unfence_node(cluster: BrokerRuntime, node_id: int) -> None:
    """A node that was fenced is heard of again, and in sync with what it follows."""
    if not cluster.image.broker_is_active(node_id):
        node = cluster.nodes[node_id]
        cluster.change(unfence_broker(cluster.image, node_id, layers=node.layers, cordoned=node.cordoned_ids()))
        _catch_up(cluster, node)


def _catch_up(cluster: BrokerRuntime, node: Broker) -> None:
    for topic in list(cluster.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node.node_id in state.replicas and node.node_id not in state.isr and state.leader >= 0:
                isr = [each for each in state.replicas if each in (*state.isr, node.node_id)]
                cluster.change(change_isr(cluster.image, topic.name, index, isr, layers=node.layers))


def remove_node(cluster: BrokerRuntime, node_id: int) -> Broker:
    """A node leaves for good: what it held is held by the others."""
    if len(cluster.nodes) == 1:
        raise ValueError("the last node cannot be removed")
    others = [each for each in cluster.nodes if each != node_id and cluster.image.broker_is_active(each)]
    if not others:
        raise ValueError(f"no other node runs that could take over from node {node_id}")
    for topic in list(cluster.image.topics.values()):
        for index, state in list(topic.partitions.items()):
            if node_id in state.replicas:
                free = [each for each in others if each not in state.replicas]
                stay = [each for each in state.replicas if each != node_id]
                set_replicas(cluster, topic.name, index, [*stay, *free[:1]] if free else stay)
    stop_node(cluster, node_id)
    cluster.change(unregister_broker(cluster.image, node_id, layers=cluster.controller.layers))
    return cluster.nodes.pop(node_id)


def move_leader(cluster: BrokerRuntime, topic: str, index: int, node_id: int) -> None:
    """Let a node lead a partition; if it was no replica it takes the place of the leader before."""
    found, state = _find(cluster, topic, index)
    if not cluster.image.broker_is_active(node_id):
        raise ValueError(f"node {node_id} does not run")
    replicas = list(state.replicas)
    if node_id not in replicas:
        replicas[replicas.index(state.leader) if state.leader in replicas else 0] = node_id
    isr = [each for each in replicas if each in state.isr or each == node_id]
    cluster.change([_change(cluster, found, index, replicas, isr, node_id)])


def set_replicas(cluster: BrokerRuntime, topic: str, index: int, replicas: Sequence[int]) -> None:
    """Let these nodes hold a partition, all in sync; the leader stays if it is one of them."""
    found, state = _find(cluster, topic, index)
    unknown = [each for each in replicas if each not in cluster.nodes]
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise ValueError(f"replicas {list(replicas)}: there are nodes {sorted(cluster.nodes)}, each at most once")
    isr = [each for each in replicas if cluster.image.broker_is_active(each)]
    leader = state.leader if state.leader in isr else (isr[0] if isr else -1)
    cluster.change([_change(cluster, found, index, replicas, isr or replicas[:1], leader)])


def _find(cluster: BrokerRuntime, topic: str, index: int) -> tuple[Topic, Partition]:
    found = cluster.image.topic(topic)
    if found is None or index not in found.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    return found, found.partitions[index]


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
        directories=[_directory(cluster, each) for each in members],
    )


def _directory(cluster: BrokerRuntime, node_id: int) -> Uuid:
    return cluster.image.brokers[node_id].directories[0]
