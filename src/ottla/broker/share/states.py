"""What the share coordinator asks of the broker (a log, topics, configs), and the way to the coordinator of a key.

All nodes are in one process, so that whoever needs a share partition's state asks the coordinator itself, wherever it
is; the APIs between brokers answer the same to others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.coordinators import append_own
from ottla.cluster.coordinator_partition import partition_for
from ottla.cluster.registrations import SHARE_GROUP_STATE_TOPIC
from ottla.pending import kept
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.coordinator import ShareConfig, ShareCoordinator, StateAnswer
from ottla.shares.environment import ShareState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.pending import Pending
    from ottla.protocol.schema import Uuid
    from ottla.shares.environment import SharePartitionKey, StateBatch
    from ottla.world.clock import Clock


def share_coordinator(broker: Broker, clock: Clock) -> ShareCoordinator:
    """The share coordinator of one node."""
    cluster = broker.cluster
    return ShareCoordinator(
        clock,
        _StateLog(broker),
        state_partition_count=lambda: state_partition_count(cluster),
        topic_partition_count=lambda topic_id: _partition_count(cluster, topic_id),
        config=share_config(broker),
    )


def share_config(broker: Broker) -> ShareConfig:
    """The broker's configs that rule it."""
    return ShareConfig(
        updates_per_snapshot=broker.config_int("share.coordinator.snapshot.update.records.per.snapshot"),
        prune_interval_ms=broker.config_int("share.coordinator.state.topic.prune.interval.ms"),
        cold_snapshot_interval_ms=broker.config_int("share.coordinator.cold.partition.snapshot.interval.ms"),
        compression=broker.config_int("share.coordinator.state.topic.compression.codec"),
    )


def state_partition_count(cluster: BrokerRuntime) -> int:
    """How many partitions `__share_group_state` has, or would be created with."""
    return cluster.partition_count(SHARE_GROUP_STATE_TOPIC, "share.coordinator.state.topic.num.partitions")


def _partition_count(cluster: BrokerRuntime, topic_id: Uuid) -> int | None:
    topic = cluster.image.topics.get(topic_id)
    return None if topic is None else len(topic.partitions)


class _StateLog:
    """The partitions of `__share_group_state` that one node leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(self, partition: int, batch: bytearray) -> tuple[int, Pending[ErrorCode] | None]:
        return append_own(self._broker, SHARE_GROUP_STATE_TOPIC, partition, batch)

    def delete_before(self, partition: int, offset: int) -> None:
        self._broker.leader_partition(SHARE_GROUP_STATE_TOPIC, partition).log.advance_log_start(offset)


class ShareStates:
    """The state of every share partition of the cluster, kept by whichever node coordinates it."""

    def __init__(self, cluster: BrokerRuntime) -> None:
        self._cluster = cluster

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        """Begin to keep a partition's state, or begin anew with a later epoch."""
        return self._ask(key, lambda found: found.initialize(key, state_epoch, start_offset)).map(_error)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        """The state, for the leader in that epoch; earlier leaders are fenced from then on."""
        return self._ask(key, lambda found: found.read(key, leader_epoch)).map(_state)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[ErrorCode]:
        """Change the state; the answer comes when that is durable."""
        return self._ask(
            key,
            lambda found: found.write(key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches),
        ).map(_error)

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        """The state without its batches."""
        return self._ask(key, lambda found: found.summary(key)).map(_state)

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        """Keep no state of a partition any more; its leader shares it no more either."""
        for node in self._cluster.nodes.values():
            node.share_partitions.drop([key])
        return self._ask(key, lambda found: found.delete(key)).map(_error)

    def _ask(
        self, key: SharePartitionKey, ask: Callable[[ShareCoordinator], Pending[StateAnswer]]
    ) -> Pending[StateAnswer]:
        cluster = self._cluster
        try:
            if cluster.image.topic(SHARE_GROUP_STATE_TOPIC) is None:
                cluster.create_topic(SHARE_GROUP_STATE_TOPIC)
        except KafkaError:
            return kept(StateAnswer(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        index = partition_for(f"{key.group_id}:{key.topic_id}:{key.partition}", state_partition_count(cluster))
        state = cluster.image.partition(SHARE_GROUP_STATE_TOPIC, index)
        node = None if state is None else cluster.nodes.get(state.leader)
        if node is None:
            return kept(StateAnswer(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        return ask(node.share_coordinator)


def _error(answer: StateAnswer) -> ErrorCode:
    return answer.error


def _state(answer: StateAnswer) -> ShareState:
    return answer.state
