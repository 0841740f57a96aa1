"""Connects share coordinators with the broker: log, topics and configs, and access to the coordinator of a key.

All nodes are in one process, so that a leader calls the share coordinator directly (Kafka's DefaultStatePersister sends
requests). The APIs between brokers give the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.coordinators.environment import append_own
from ottla.cluster.internal_topics import SHARE_GROUP_STATE_TOPIC, partition_for
from ottla.pending import completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.coordinator import ShareConfig, ShareCoordinator, StateResult
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
    """Create the share coordinator of a node."""
    runtime = broker.runtime
    return ShareCoordinator(
        clock,
        _StateLog(broker),
        state_partition_count=lambda: state_partition_count(runtime),
        topic_partition_count=lambda topic_id: _partition_count(runtime, topic_id),
        config=share_config(broker),
    )


def share_config(broker: Broker) -> ShareConfig:
    """Return the broker's share coordinator configs."""
    return ShareConfig(
        updates_per_snapshot=broker.config_int("share.coordinator.snapshot.update.records.per.snapshot"),
        prune_interval_ms=broker.config_int("share.coordinator.state.topic.prune.interval.ms"),
        cold_snapshot_interval_ms=broker.config_int("share.coordinator.cold.partition.snapshot.interval.ms"),
        compression=broker.config_int("share.coordinator.state.topic.compression.codec"),
    )


def state_partition_count(runtime: BrokerRuntime) -> int:
    """Return the number of partitions that `__share_group_state` has or would be created with."""
    return runtime.partition_count(SHARE_GROUP_STATE_TOPIC, "share.coordinator.state.topic.num.partitions")


def _partition_count(runtime: BrokerRuntime, topic_id: Uuid) -> int | None:
    topic = runtime.image.topics.get(topic_id)
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
    """Reads and writes the state of share partitions through the share coordinator, on any node."""

    def __init__(self, runtime: BrokerRuntime) -> None:
        self._runtime = runtime

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> Pending[ErrorCode]:
        """Initialize a partition's state, or reset it with a later state epoch."""
        return self._call(key, lambda coordinator: coordinator.initialize(key, state_epoch, start_offset)).map(_error)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[ShareState]:
        """Return the state for a leader epoch, and fence earlier leader epochs."""
        return self._call(key, lambda coordinator: coordinator.read(key, leader_epoch)).map(_state)

    def write(
        self,
        key: SharePartitionKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[ErrorCode]:
        """Update the state; complete once it is durable."""
        return self._call(
            key,
            lambda coordinator: coordinator.write(
                key, state_epoch, leader_epoch, start_offset, delivery_complete_count, batches
            ),
        ).map(_error)

    def summary(self, key: SharePartitionKey) -> Pending[ShareState]:
        """Return the state without its batches."""
        return self._call(key, lambda coordinator: coordinator.summary(key)).map(_state)

    def delete(self, key: SharePartitionKey) -> Pending[ErrorCode]:
        """Drop the share partition on its leader and delete its state."""
        for node in self._runtime.nodes.values():
            node.share_partitions.drop([key])
        return self._call(key, lambda coordinator: coordinator.delete(key)).map(_error)

    def _call(
        self, key: SharePartitionKey, operation: Callable[[ShareCoordinator], Pending[StateResult]]
    ) -> Pending[StateResult]:
        runtime = self._runtime
        try:
            if runtime.image.topic(SHARE_GROUP_STATE_TOPIC) is None:
                runtime.create_topic(SHARE_GROUP_STATE_TOPIC)
        except KafkaError:
            return completed_with(StateResult(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        index = partition_for(f"{key.group_id}:{key.topic_id}:{key.partition}", state_partition_count(runtime))
        state = runtime.image.partition(SHARE_GROUP_STATE_TOPIC, index)
        node = None if state is None else runtime.nodes.get(state.leader)
        if node is None:
            return completed_with(StateResult(ShareState(ErrorCode.COORDINATOR_NOT_AVAILABLE)))
        return operation(node.share_coordinator)


def _error(response: StateResult) -> ErrorCode:
    return response.error


def _state(response: StateResult) -> ShareState:
    return response.state
