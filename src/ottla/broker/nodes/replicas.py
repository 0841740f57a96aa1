"""Replicas of one process: all of them share the log that lies in one node's directory, the log's owner.

Keeps leader and ISR in the metadata true to that: at start every running replica is in sync, and a clean stop leaves
the owner as the only replica in sync, because another broker that opens the directories finds no other copy.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.brokers import directories_offline, fence_broker
from ottla.cluster.partitions.state import NO_LEADER, NO_LEADER_CHANGE, RECOVERED
from ottla.protocol.errors import KafkaError
from ottla.protocol.record_schemas.metadata import PartitionChangeRecord
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.partitions.state import Partition, Topic
    from ottla.protocol.schema import Message, Uuid
    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

log = logging.getLogger(__name__)


class OwnedLog(NamedTuple):
    """A partition's log and the node in whose directory it lies."""

    node_id: int
    log: Log


def find_log(runtime: BrokerRuntime, topic_partition: TopicPartition, state: Partition) -> OwnedLog | None:
    """Return the log that serves a partition, or None if no node of this process has one.

    Directories that several Kafka brokers wrote hold several copies. Copies of in-sync replicas come first, then the
    copy with the latest leader epoch and the highest log end offset, then the leader's.
    """
    copies = [
        OwnedLog(node_id, directory.logs[topic_partition])
        for node_id, node in runtime.nodes.items()
        for directory in node.directories
        if topic_partition in directory.logs
    ]
    if len(copies) < 2:
        return copies[0] if copies else None
    in_sync = [copy for copy in copies if copy.node_id in state.isr or copy.node_id in state.elr]

    def completeness(copy: OwnedLog) -> tuple[bool, int, int, bool]:
        end = copy.log.log_end_offset  # loads the log, and its epochs with it
        epoch = copy.log.epochs.latest
        return end > 0, -1 if epoch is None else epoch, end, copy.node_id == state.leader

    return max(in_sync or copies, key=completeness)


def owners_at_start(runtime: BrokerRuntime) -> dict[tuple[Uuid, int], int]:
    """Return the node that must lead each replicated partition, by topic id and index, before any node registers.

    Leave out a partition whose in-sync replicas are on brokers outside this process: the local copy may lack records.
    """
    owners: dict[tuple[Uuid, int], int] = {}
    for topic, index, state in _replicated(runtime):
        owned = find_log(runtime, TopicPartition(topic.name, index), state)
        eligible = (*state.isr, *state.elr)
        if owned is not None and (owned.node_id in eligible or all(node_id in runtime.nodes for node_id in eligible)):
            owners[topic.id, index] = owned.node_id
        elif owned is None and all(node_id in runtime.nodes for node_id in eligible):
            leader = state.leader if state.leader in runtime.nodes else state.replicas[0]
            if leader in runtime.nodes:
                owners[topic.id, index] = leader
    return owners


def bring_replicas_in_sync(runtime: BrokerRuntime, owners: dict[tuple[Uuid, int], int]) -> list[Message]:
    """Return the records that let each partition's log owner lead, with all replicas of this process in sync.

    Registration removes each node from every ISR, as Kafka's controller does for a broker that restarts. Kafka's
    followers then fetch until they are in sync again; in ottla they share the leader's log and need not.
    """
    records: list[Message] = []
    for topic, index, state in _replicated(runtime):
        owner = owners.get((topic.id, index))
        if owner is None or owner not in state.replicas:
            continue
        isr = [node_id for node_id in state.replicas if node_id in runtime.nodes or node_id in state.isr]
        records += _change(topic, index, state, owner, isr)
    return records


def fence_absent_brokers(runtime: BrokerRuntime) -> list[Message]:
    """Return the records that fence registered brokers without a node in this process: none of them can serve."""
    records: list[Message] = []
    for broker_id, broker in runtime.image.brokers.items():
        if broker_id not in runtime.nodes and not broker.fenced:
            log.warning("broker %d is registered, but has no node in this process; it is fenced", broker_id)
            records += fence_broker(runtime.image, broker_id, layers=runtime.controller.layers)
    return records


def leave_to_log_owners(runtime: BrokerRuntime) -> list[Message]:
    """Return the records that leave each partition's log owner as leader and only in-sync replica, before a stop."""
    records: list[Message] = []
    for topic, index, state in _replicated(runtime):
        owned = find_log(runtime, TopicPartition(topic.name, index), state)
        if owned is not None and state.leader in runtime.nodes and owned.node_id in state.replicas:
            records += _change(topic, index, state, owned.node_id, [owned.node_id])
    return records


def take_directory_offline(runtime: BrokerRuntime, node: Broker, directory: LogDirectory) -> None:
    """Leave the partitions on a failed log directory without a leader, as Kafka's controller does.

    Replicas on other nodes cannot take over, because they share the log that failed.
    """
    if not directory.is_open or not runtime.image.broker_is_active(node.node_id):
        return
    records: list[Message] = []
    for topic, index, state in _replicated(runtime):
        if TopicPartition(topic.name, index) in directory.logs:
            records += _change(topic, index, state, NO_LEADER, [node.node_id])
    lost = node.directory_ids[directory.path]
    try:
        runtime.change(records)
        runtime.change(directories_offline(runtime.image, node.node_id, [lost], layers=node.layers))
    except KafkaError as error:  # the directory of the metadata log failed as well: the node is about to stop
        log.warning("log directory %s is offline, which cannot be recorded: %s", directory.path, error)


def _replicated(runtime: BrokerRuntime) -> list[tuple[Topic, int, Partition]]:
    return [
        (topic, index, state)
        for topic in runtime.image.topics.values()
        for index, state in topic.partitions.items()
        if len(state.replicas) > 1
    ]


def _change(topic: Topic, index: int, state: Partition, leader: int, isr: Sequence[int]) -> list[Message]:
    record = PartitionChangeRecord(partition_id=index, topic_id=topic.id)
    if leader != state.leader:
        record.leader = leader
    if tuple(isr) != state.isr:
        record.isr = list(isr)
        if record.leader == NO_LEADER_CHANGE and not set(isr) >= set(state.isr):
            record.leader = leader  # an ISR that shrinks bumps the leader epoch
    if state.elr:
        record.eligible_leader_replicas = []
    if state.last_known_elr:
        record.last_known_elr = []
    if state.leader_recovery_state != RECOVERED:
        record.leader_recovery_state = RECOVERED
    unchanged = PartitionChangeRecord(partition_id=index, topic_id=topic.id)
    return [] if record == unchanged else [record]
