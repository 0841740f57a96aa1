"""Implements the interfaces of the group and transaction coordinators: logs, topics, configs, producer ids, markers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.cluster.brokers import allocate_producer_ids
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import group_values
from ottla.cluster.features import TRANSACTION_VERSION
from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.groups.environment import Appended
from ottla.groups.settings import CoordinatorSettings, GroupSettings
from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType
from ottla.storage.log.producer_state import AppendOrigin
from ottla.transactions.environment import NO_LEADER, ProducerIdBlock, TransactionConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.runtime import BrokerRuntime
    from ottla.cluster.partitions.state import Topic as TopicState
    from ottla.groups.environment import Topic
    from ottla.protocol.schema import Uuid
    from ottla.storage.names import TopicPartition
    from ottla.transactions.environment import LogRecord, TransactionMarker

log = logging.getLogger(__name__)


class CoordinatorLogs:
    """Appends to the partitions of `__consumer_offsets` and `__transaction_state` that one node leads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def append(self, partition: int, batch: bytearray) -> Appended:
        """Append a batch of group records."""
        return Appended(*append_own(self._broker, GROUP_METADATA_TOPIC, partition, batch))

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        """Append a batch of transaction records."""
        batch = BatchBuilder()
        for record in records:
            batch.append(record.key, record.value, (), record.timestamp_ms)
        try:
            _, durable = append_own(self._broker, TRANSACTION_STATE_TOPIC, partition, batch.build())
        except KafkaError as error:
            return completed_with(error.code)
        return durable or completed_with(ErrorCode.NONE)


def append_own(broker: Broker, topic: str, partition: int, batch: bytearray) -> tuple[int, Pending[ErrorCode] | None]:
    """Append a coordinator's batch; return its base offset, and with `--sync` a Pending of its fsync."""
    led = broker.leader_partition(topic, partition)
    offset = led.append(batch, origin=AppendOrigin.COORDINATOR).first_offset
    if not broker.runtime.sync:
        return offset, None
    return offset, broker.when_durable([led.log], ErrorCode.NONE, lambda: ErrorCode.KAFKA_STORAGE_ERROR)


class GroupTopic:
    """A topic of the metadata image, as the group coordinator reads it."""

    __slots__ = ("_runtime", "_state")

    def __init__(self, runtime: BrokerRuntime, state: TopicState) -> None:
        self._runtime = runtime
        self._state = state

    @property
    def id(self) -> Uuid:
        """The topic's id."""
        return self._state.id

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._state.name

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self._state.partitions)

    def racks(self, partition: int) -> Sequence[str]:
        """Return the racks of a partition's replicas."""
        nodes = self._runtime.nodes
        racks = [nodes[replica].rack for replica in self._state.partitions[partition].replicas if replica in nodes]
        return [rack for rack in racks if rack is not None]


class GroupTopics:
    """The topics of the current metadata image."""

    def __init__(self, runtime: BrokerRuntime) -> None:
        self._runtime = runtime

    @property
    def version(self) -> int:
        """The offset of the last metadata record."""
        return self._runtime.metadata_offset

    def by_name(self, name: str) -> Topic | None:
        """Return a topic by name, if it exists."""
        topic = self._runtime.image.topic(name)
        return None if topic is None else GroupTopic(self._runtime, topic)

    def by_id(self, topic_id: Uuid) -> Topic | None:
        """Return a topic by id, if it exists."""
        topic = self._runtime.image.topics.get(topic_id)
        return None if topic is None else GroupTopic(self._runtime, topic)

    def names(self) -> Iterable[str]:
        """Return the names of all topics, in the order of creation."""
        return self._runtime.image.topic_ids


class GroupConfigs:
    """The group configs of one node, parsed once per change."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._coordinator: CoordinatorSettings | None = None
        self._groups: dict[str, GroupSettings] = {}

    def coordinator(self) -> CoordinatorSettings:
        """Return the group coordinator's settings of the broker."""
        if self._coordinator is None:
            self._coordinator = CoordinatorSettings.read(self._broker.config)
        return self._coordinator

    def group(self, group_id: str) -> GroupSettings:
        """Return the settings of one group."""
        own = self._broker.runtime.image.config(ConfigResourceType.GROUP, group_id)
        name = group_id if own else ""
        settings = self._groups.get(name)
        if settings is None:
            values = group_values(own, self._broker.layers)
            settings = self._groups[name] = GroupSettings.read(values.__getitem__)
        return settings

    def configs_changed(self) -> None:
        """Discard the parsed settings after a config change."""
        self._coordinator = None
        self._groups.clear()


class TransactionEnvironment:
    """The broker's side of the transaction coordinator: configs, producer ids, markers and metadata."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def config(self) -> TransactionConfig:
        """Return the broker's transaction configs."""
        broker = self._broker
        return TransactionConfig(
            transaction_max_timeout_ms=broker.config_int("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=broker.config_int("transactional.id.expiration.ms"),
            abort_timed_out_transaction_cleanup_interval_ms=broker.config_int(
                "transaction.abort.timed.out.transaction.cleanup.interval.ms"
            ),
            remove_expired_transaction_cleanup_interval_ms=broker.config_int(
                "transaction.remove.expired.transaction.cleanup.interval.ms"
            ),
            two_phase_commit_enable=broker.config_bool("transaction.two.phase.commit.enable"),
            partition_verification_enable=broker.config_bool("transaction.partition.verification.enable"),
            add_partitions_to_txn_retry_backoff_ms=broker.config_int("add.partitions.to.txn.retry.backoff.ms"),
            add_partitions_to_txn_retry_backoff_max_ms=broker.config_int("add.partitions.to.txn.retry.backoff.max.ms"),
        )

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        """Allocate the next block of producer ids and record it in the metadata log."""
        runtime = self._broker.runtime
        try:
            block, records = allocate_producer_ids(runtime.image, self._broker.node_id)
            runtime.change(records)
        except KafkaError as error:
            log.warning("no producer ids can be allocated: %s", error)
            return completed_with(None)
        return completed_with(ProducerIdBlock(block.start, len(block)))

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        """Write a transaction marker to partitions, whichever nodes lead them."""
        results: dict[TopicPartition, ErrorCode] = {}
        written = []
        for topic_partition in partitions:
            results[topic_partition] = self._broker.runtime.write_marker(topic_partition, marker)
            if results[topic_partition] is ErrorCode.NONE:
                written.append(self._broker.runtime.partitions[topic_partition.topic, topic_partition.partition].log)
        if written and self._broker.runtime.sync:
            failed = dict.fromkeys(results, ErrorCode.KAFKA_STORAGE_ERROR)
            return self._broker.when_durable(written, results, lambda: failed)
        return completed_with(results)

    def leader_of(self, partition: TopicPartition) -> int | None:
        """Return a partition's leader, NO_LEADER, or None for an unknown partition."""
        state = self._broker.runtime.image.partition(partition.topic, partition.partition)
        if state is None:
            return None
        return state.leader if state.leader >= 0 else NO_LEADER

    def transaction_partition_count(self) -> int:
        """Return the number of partitions that `__transaction_state` has or would be created with."""
        return self._broker.runtime.transaction_partition_count()

    def transaction_version(self) -> int:
        """Return the finalized level of transaction.version."""
        return self._broker.runtime.image.features.get(TRANSACTION_VERSION, 0)


def write_marker(runtime: BrokerRuntime, target: TopicPartition, marker: TransactionMarker) -> ErrorCode:
    """Append a transaction marker to a partition; in `__consumer_offsets` it commits or discards pending offsets."""
    partition = runtime.partitions.get((target.topic, target.partition))
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        partition.log.append_marker(
            ControlType.COMMIT if marker.committed else ControlType.ABORT,
            partition.state.leader_epoch,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
    except KafkaError as error:
        _emit_marker(runtime, target, marker, error.code)
        return error.code
    _emit_marker(runtime, target, marker, ErrorCode.NONE)
    partition.verifications.appended(marker.producer_id, marker.producer_epoch, is_control=True)
    if target.topic == GROUP_METADATA_TOPIC:
        leader = runtime.nodes.get(partition.state.leader)
        if leader is not None:
            leader.groups.complete_transaction(target.partition, marker.producer_id, committed=marker.committed)
    return ErrorCode.NONE


def _emit_marker(runtime: BrokerRuntime, target: TopicPartition, marker: TransactionMarker, code: ErrorCode) -> None:
    runtime.events.of_node(runtime.partitions[target.topic, target.partition].state.leader).emit(
        "transaction.marker",
        topic=target.topic,
        partition=target.partition,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        committed=marker.committed,
        **({} if code is ErrorCode.NONE else {"error": code.name}),
    )
