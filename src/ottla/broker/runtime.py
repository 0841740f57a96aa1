"""All nodes of one process, with the metadata, partitions and event loop that they share.

`ottla.cluster` defines the metadata and its changes. This module applies them: it opens logs of new partitions, deletes
the logs of deleted topics, loads coordinators and completes delayed fetches.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.coordinators.environment import write_marker
from ottla.broker.coordinators.loading import CoordinatorLoading
from ottla.broker.fetch.delayed_fetch import FetchPurgatory
from ottla.broker.housekeeping import Housekeeping
from ottla.broker.metadata.topic_cache import TopicDescriptions
from ottla.broker.nodes.log_moves import misplaced
from ottla.broker.nodes.replicas import find_log
from ottla.broker.partition import Partition
from ottla.cluster.brokers import cordon_directories
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import topic_values
from ottla.cluster.internal_topics import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    partition_for,
)
from ottla.cluster.partitions.leadership import change_isr
from ottla.cluster.partitions.state import NO_LEADER, UNASSIGNED_DIRECTORY
from ottla.cluster.topics import create_topics
from ottla.events import NO_EVENT_LOG
from ottla.groups.environment import DeletedTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig
from ottla.storage.config import LogConfig
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.broker.broker import Broker
    from ottla.cluster.image import ClusterImage, ImageChanges
    from ottla.cluster.metadata.log import MetadataLog
    from ottla.cluster.partitions.state import Partition as PartitionState
    from ottla.cluster.partitions.state import Topic
    from ottla.events import Events
    from ottla.protocol.releases import Release
    from ottla.protocol.schema import Message
    from ottla.security.authorizer import Authorizer
    from ottla.transactions.coordinator import TransactionCoordinator
    from ottla.transactions.environment import TransactionMarker
    from ottla.world.world import World

log = logging.getLogger(__name__)

LOG_CONFIG_FIELDS = {name.replace("_", "."): name for name in LogConfig.__slots__}


class StorageLost:
    """Set when a node cannot continue: its last log directory failed, or the one with the metadata."""

    def __init__(self) -> None:
        self.is_set = False
        self.then: Callable[[], object] = lambda: None

    def set(self) -> None:
        """Record the failure and call `then`."""
        self.is_set = True
        self.then()


class BrokerRuntime:
    """All nodes of this process and what they share. One loop owns it; no method blocks."""

    def __init__(
        self,
        world: World,
        metadata: MetadataLog,
        *,
        cluster_id: str,
        sync: bool = False,
        events: Events | None = None,
    ) -> None:
        self.world = world
        self.events = NO_EVENT_LOG if events is None else events
        self.metadata = metadata
        self.cluster_id = cluster_id
        self.sync = sync
        self.release: Release | None = None
        self.nodes: dict[int, Broker] = {}
        self.partitions: dict[tuple[str, int], Partition] = {}
        self._log_configs: dict[tuple[str, int], tuple[LogConfig, int]] = {}
        self.authorizer: Authorizer | None = None
        self.storage_lost = StorageLost()
        self.allow_unsigned_tokens = False  # set by the test kit, never by a config
        self.fetch_purgatory = FetchPurgatory(world.clock)
        self.housekeeping = Housekeeping(self)
        self.topic_descriptions = TopicDescriptions()
        self.coordinator_loading = CoordinatorLoading(world.clock)

    @property
    def image(self) -> ClusterImage:
        """Return the metadata image."""
        return self.metadata.image

    @property
    def metadata_offset(self) -> int:
        """Return the offset of the last metadata record."""
        return self.metadata.next_offset - 1

    @property
    def controller(self) -> Broker:
        """Return the node that acts as controller: the active one with the lowest id."""
        image = self.metadata.image
        return self.nodes[min([node_id for node_id in self.nodes if image.broker_is_active(node_id)] or self.nodes)]

    def reachable_brokers(self, listener: str) -> list[tuple[int, str, int, str | None]]:
        """Return node id, host, port and rack of every unfenced broker that has a listener."""
        return [
            (node_id, endpoint.host or "localhost", endpoint.port, node.rack)
            for node_id, node in sorted(self.nodes.items())
            if (endpoint := node.endpoints.get(listener)) is not None and not self.image.brokers[node_id].fenced
        ]

    @staticmethod
    def is_internal(topic: str) -> bool:
        """Return whether a topic is internal: only brokers write to it."""
        return topic in INTERNAL_TOPICS

    def internal_topic(self, name: str) -> CreatableTopic | None:
        """Return how an internal topic is created; None for any other topic."""
        broker = self.controller
        if name == GROUP_METADATA_TOPIC:
            prefix, size = "offsets.topic", "offsets.topic.segment.bytes"
        elif name == TRANSACTION_STATE_TOPIC:
            prefix, size = "transaction.state.log", "transaction.state.log.segment.bytes"
        elif name == SHARE_GROUP_STATE_TOPIC:
            prefix, size = "share.coordinator.state.topic", "share.coordinator.state.topic.segment.bytes"
        else:
            return None
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(broker.config_int(size)),
        }
        replicas = min(broker.config_int(f"{prefix}.replication.factor"), len(self.nodes))
        if name == TRANSACTION_STATE_TOPIC:
            # With fewer nodes than the default replication factor, all nodes are replicas.
            configs["min.insync.replicas"] = str(min(broker.config_int("transaction.state.log.min.isr"), replicas))
            configs["unclean.leader.election.enable"] = "false"
            configs["compression.type"] = "uncompressed"
        elif name == SHARE_GROUP_STATE_TOPIC:
            # The share coordinator prunes records; retention must not delete any (KIP-932).
            configs["cleanup.policy"] = "delete"
            configs["retention.ms"] = "-1"
            least = broker.config_int("share.coordinator.state.topic.min.isr")
            configs["min.insync.replicas"] = str(min(least, replicas))
        return CreatableTopic(
            name=name,
            num_partitions=broker.config_int(f"{prefix}.num.partitions"),
            replication_factor=replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )

    def partition_count(self, topic: str, config: str) -> int:
        """Return the number of partitions of an internal topic, or what it would be created with."""
        topic_image = self.image.topic(topic)
        return self.controller.config_int(config) if topic_image is None else len(topic_image.partitions)

    def transaction_partition_count(self) -> int:
        """Return the number of partitions of `__transaction_state`, or what it would be created with."""
        return self.partition_count(TRANSACTION_STATE_TOPIC, "transaction.state.log.num.partitions")

    def transaction_coordinator(self, transactional_id: str) -> TransactionCoordinator | None:
        """Return the transaction coordinator of a transactional id, on any node; None if there is none."""
        index = partition_for(transactional_id, self.transaction_partition_count())
        state = self.image.partition(TRANSACTION_STATE_TOPIC, index)
        node = None if state is None else self.nodes.get(state.leader)
        return None if node is None else node.transactions

    def write_marker(self, topic_partition: TopicPartition, marker: TransactionMarker) -> ErrorCode:
        """Write the marker of a transaction to one of its partitions."""
        return write_marker(self, topic_partition, marker)

    # Changes

    def create_topic(
        self, name: str, partitions: int = -1, replication_factor: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic as the broker itself; keep an existing one."""
        topic = self.internal_topic(name) or CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        for code, message in self.add_topics([topic]).values():
            raise KafkaError(code, message)

    def add_topics(self, topics: Sequence[CreatableTopic]) -> dict[str, tuple[ErrorCode, str | None]]:
        """Create topics as the broker itself, in one change; return the error of each that failed.

        Existing topics are kept. Raise KafkaError if the topics have too many partitions for one request.
        """
        results, records = create_topics(self.image, topics, layers=self.controller.layers, random=self.world.random)
        self.change(records)
        return {
            result.name: (ErrorCode(result.error_code), result.error_message)
            for result in results
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }

    def change(self, records: Sequence[Message]) -> None:
        """Write metadata records, replay them, and apply the changes."""
        if records:
            changes = self.metadata.append(records).changes
            self.apply(changes)
            self._report_directories(changes)

    def _report_directories(self, changes: ImageChanges) -> None:
        """Write facts that only nodes have: the directory of a new log, and cordoned directories."""
        unassigned = {
            topic.id: topic for topic, _, _, after in changes.partitions if UNASSIGNED_DIRECTORY in after.directories
        }
        for node in self.nodes.values():
            if unassigned:
                self.change(misplaced(node, unassigned.values()))
            if (changes.configs or changes.features) and self.image.broker_is_active(node.node_id):
                self.change(cordon_directories(self.image, node.node_id, node.cordoned_ids()))

    def open_partitions(self) -> None:
        """Open every partition of the image, at start."""
        for topic in self.image.topics.values():
            for index, state in topic.partitions.items():
                self._open_partition(topic, index, state)

    def complete_reassignments(self) -> None:
        """Complete reassignments: replicas that are added are in sync at once, because they share the leader's log."""
        layers = self.controller.layers
        for topic in list(self.image.topics.values()):
            for index, state in list(topic.partitions.items()):
                missing = [
                    replica for replica in state.adding_replicas if replica in self.nodes and replica not in state.isr
                ]
                if missing:
                    isr = [*state.isr, *missing]
                    self.change(change_isr(self.image, topic.name, index, isr, layers=layers))

    def apply(self, changes: ImageChanges) -> None:
        """Apply changes of the image to configs, quotas, logs, coordinators and groups."""
        self.topic_descriptions.invalidate(changes)
        if changes.configs or changes.brokers or changes.deleted_topics:
            self._log_configs.clear()
        if any(resource.type is ConfigResourceType.BROKER for resource in changes.configs) or changes.brokers:
            for node in self.nodes.values():
                node.configs_changed()
        if changes.client_quotas:
            for node in self.nodes.values():
                node.quotas.quotas_changed()
        if changes.acls and self.authorizer is not None:
            self.authorizer.acls_changed()
        if self.events.enabled:
            _emit_topic_events(self.events, changes)
        for topic in changes.deleted_topics:
            self._remove(topic)
        for topic, index, _, after in changes.partitions:
            if topic.id in self.image.topics:
                self._open_partition(topic, index, after)
        self._notify_groups(changes)
        for resource in changes.configs:
            if resource.type is ConfigResourceType.TOPIC:
                self._reconfigure(resource.name)
            elif resource.type is ConfigResourceType.BROKER:
                for name in self.image.topic_ids:
                    self._reconfigure(name)

    def _notify_groups(self, changes: ImageChanges) -> None:
        created = [topic.name for topic in changes.created_topics]
        changed = list(dict.fromkeys(topic.name for topic, _, _, _ in changes.partitions if topic.name not in created))
        deleted = [DeletedTopic(topic.id, topic.name) for topic in changes.deleted_topics]
        for node in self.nodes.values():
            if created or changed or deleted:
                node.groups.topics_changed(created=created, changed=changed, deleted=deleted)
            if deleted:
                node.share_coordinator.topics_deleted({topic.id for topic in deleted})
            if any(resource.type is ConfigResourceType.GROUP for resource in changes.configs):
                node.group_configs.configs_changed()
                node.share_partitions.configs_changed()

    def log_config(self, topic: str, node: Broker) -> tuple[LogConfig, int]:
        """Return a topic's log config on a node, and its `min.insync.replicas`."""
        cached = self._log_configs.get((topic, node.node_id))
        if cached is not None:
            return cached
        overrides = self.image.config(ConfigResourceType.TOPIC, topic)
        if not overrides and topic:
            # Topics without overrides share one LogConfig: a start with many topics computes it once.
            shared = self._log_configs[topic, node.node_id] = self.log_config("", node)
            return shared
        values = topic_values(overrides, node.layers)
        fields = {field: values[name] for name, field in LOG_CONFIG_FIELDS.items() if name in values}
        insync = values["min.insync.replicas"]
        assert isinstance(insync, int)
        computed = LogConfig(**fields), insync  # type: ignore[arg-type]
        self._log_configs[topic, node.node_id] = computed
        return computed

    def stop_waiting(self) -> None:
        """Complete every delayed fetch, because the cluster stops."""
        for partition in self.partitions.values():
            for delayed in list(partition.delayed):
                delayed.force_complete()

    # Private parts

    def _open_partition(self, topic: Topic, index: int, after: PartitionState) -> None:
        """Apply a partition's new state; open its log, or create it, if the partition is new."""
        partition = self.partitions.get((topic.name, index))
        if partition is not None and partition.topic_id == topic.id:
            before, partition.state = partition.state, after
            if before.leader_epoch != after.leader_epoch:
                self._leader_changed(partition, before.leader)
            return
        node = self.nodes.get(after.leader) or self.controller
        config, insync = self.log_config(topic.name, node)
        topic_partition = TopicPartition(topic.name, index)
        owned = find_log(self, topic_partition, after)
        if owned is None:
            existing = node.directory_for(after).create_log(topic_partition, config, topic.id)
        else:
            existing = owned.log
            existing.config = config
        partition = self.partitions[topic.name, index] = Partition(
            topic.name, topic.id, index, after, existing, insync, self.fetch_purgatory.add
        )
        self._leader_changed(partition, NO_LEADER)

    def _leader_changed(self, partition: Partition, before: int) -> None:
        """Complete the partition's delayed fetches, start the leader epoch, and unload and load its coordinator."""
        self.events.of_node(max(partition.state.leader, 0)).emit(
            "leader.changed",
            topic=partition.topic,
            partition=partition.index,
            leader=partition.state.leader,
            previous=before,
            leader_epoch=partition.state.leader_epoch,
        )
        self._stop_sharing(partition)
        for delayed in list(partition.delayed):
            delayed.force_complete()
        if partition.state.leader in self.nodes:
            partition.log.start_epoch(partition.state.leader_epoch)
        if partition.topic in INTERNAL_TOPICS:
            if before in self.nodes:
                self.coordinator_loading.unload(self.nodes[before], partition)
            if partition.state.leader in self.nodes:
                self.coordinator_loading.load(self.nodes[partition.state.leader], partition)

    def _stop_sharing(self, partition: Partition, *, deleted: bool = False) -> None:
        """Release the share partitions of nodes that do not lead a partition."""
        for node_id, node in self.nodes.items():
            if deleted or node_id != partition.state.leader:
                node.share_partitions.partition_gone(partition.topic_id, partition.index)

    def _remove(self, topic: Topic) -> None:
        for index in topic.partitions:
            partition = self.partitions.pop((topic.name, index), None)
            if partition is None or partition.topic_id != topic.id:
                continue
            topic_partition = TopicPartition(topic.name, index)
            for node in self.nodes.values():
                for directory in node.directories:
                    if topic_partition in directory.logs:
                        directory.delete_log(topic_partition)
            if topic.name in INTERNAL_TOPICS and partition.state.leader in self.nodes:
                self.coordinator_loading.unload(self.nodes[partition.state.leader], partition)
            self._stop_sharing(partition, deleted=True)
            for delayed in list(partition.delayed):
                delayed.force_complete()

    def _reconfigure(self, name: str) -> None:
        topic = self.image.topic(name)
        if topic is None:
            return
        for index, state in topic.partitions.items():
            partition = self.partitions.get((name, index))
            if partition is not None:
                node = self.nodes.get(state.leader) or self.controller
                partition.log.config, partition.min_insync_replicas = self.log_config(name, node)


def _emit_topic_events(events: Events, changes: ImageChanges) -> None:
    cluster = events.of_node(0)
    for topic in changes.deleted_topics:
        cluster.emit("topic.deleted", topic=topic.name, topic_id=str(topic.id))
    for topic in changes.created_topics:
        cluster.emit(
            "topic.created",
            topic=topic.name,
            topic_id=str(topic.id),
            partitions={topic.name: sorted(topic.partitions)},
        )
