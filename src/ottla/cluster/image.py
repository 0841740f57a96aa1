"""The metadata image (Kafka's MetadataImage): the state of the cluster, changed only by replaying records.

`replay` runs for live changes and at start, so that the image always equals the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.features import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION, MINIMUM_METADATA_VERSION
from ottla.cluster.partitions.state import Partition, Topic
from ottla.cluster.registrations import BrokerRegistration, ControllerRegistration, sorted_directories
from ottla.cluster.security.acls import Acl
from ottla.cluster.security.client_quotas import QuotaEntity, quota_entity
from ottla.cluster.security.delegation_tokens import DelegationToken
from ottla.cluster.security.scram import ScramCredential
from ottla.protocol.record_schemas import metadata as records
from ottla.protocol.record_values import UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ottla.protocol.schema import Message, Uuid

_EMPTY: Final[dict[str, str]] = {}


class ReplayError(Exception):
    """A record that does not fit the image, such as a partition of an unknown topic."""


@dataclass(slots=True)
class ImageChanges:
    """What replayed records changed (Kafka's MetadataDelta), for the broker to act on."""

    created_topics: list[Topic] = field(default_factory=list)
    deleted_topics: list[Topic] = field(default_factory=list)
    partitions: list[tuple[Topic, int, Partition | None, Partition]] = field(default_factory=list)
    """Topic, partition, previous state (None if new), new state."""
    configs: list[ConfigResource] = field(default_factory=list)
    brokers: list[int] = field(default_factory=list)
    acls: bool = False
    client_quotas: bool = False
    scram: bool = False
    delegation_tokens: bool = False
    features: bool = False


@dataclass(slots=True)
class ClusterImage:
    """The cluster's state as of the last replayed record."""

    features: dict[str, int] = field(default_factory=dict)
    """Finalized levels by name, without kraft.version, which is in the quorum's own records."""
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    controllers: dict[int, ControllerRegistration] = field(default_factory=dict)
    topics: dict[Uuid, Topic] = field(default_factory=dict)
    topic_ids: dict[str, Uuid] = field(default_factory=dict)
    configs: dict[ConfigResource, dict[str, str]] = field(default_factory=dict)
    client_quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    next_producer_id: int = -1
    acls: dict[Uuid, Acl] = field(default_factory=dict)
    scram: dict[int, dict[str, ScramCredential]] = field(default_factory=dict)
    """By mechanism (1 is SCRAM-SHA-256, 2 SCRAM-SHA-512), then by user."""
    delegation_tokens: dict[str, DelegationToken] = field(default_factory=dict)
    unknown: list[UnknownRecord] = field(default_factory=list)
    """Records of types or versions that are not known here, kept so that a snapshot does not lose them."""
    transaction: list[Message | UnknownRecord] | None = None
    """Records since a BeginTransactionRecord, applied at its end."""

    # State.

    @property
    def metadata_version(self) -> int:
        """Return the finalized metadata.version."""
        return self.features.get(METADATA_VERSION, MINIMUM_METADATA_VERSION)

    @property
    def elr_enabled(self) -> bool:
        """Whether eligible leader replicas (KIP-966) are in force."""
        return self.features.get(ELR_VERSION, 0) > 0

    def topic(self, name: str) -> Topic | None:
        """Return a topic by name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, name: str, index: int) -> Partition | None:
        """Return a partition by topic name and number, or None."""
        topic = self.topic(name)
        return None if topic is None else topic.partitions.get(index)

    def config(self, kind: ConfigResourceType, name: str) -> Mapping[str, str]:
        """Return the dynamic configs of a resource; empty if there are none."""
        return self.configs.get(ConfigResource(kind, name), _EMPTY)

    def broker_is_active(self, broker_id: int) -> bool:
        """Return whether a broker may lead."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active

    # replay

    def replay_all(self, batch: Iterable[Message | UnknownRecord]) -> ImageChanges:
        """Replay records in order and return what they changed."""
        changes = ImageChanges()
        for record in batch:
            self.replay(record, changes)
        return changes

    def replay(self, record: Message | UnknownRecord, changes: ImageChanges | None = None) -> None:
        """Apply one record; records of a metadata transaction are applied at its end."""
        changes = ImageChanges() if changes is None else changes
        kind = type(record)
        if kind in _TRANSACTION_RECORDS:
            self._replay_transaction(record, changes)
        elif self.transaction is not None:
            self.transaction.append(record)
        else:
            self._apply(record, changes)

    def _replay_transaction(self, record: Message | UnknownRecord, changes: ImageChanges) -> None:
        if isinstance(record, records.BeginTransactionRecord):
            if self.transaction is not None:
                raise ReplayError("a metadata transaction begins inside another one")
            self.transaction = []
            return
        if self.transaction is None:
            raise ReplayError("a metadata transaction ends that never began")
        pending, self.transaction = self.transaction, None
        if isinstance(record, records.EndTransactionRecord):
            for pending_record in pending:
                self._apply(pending_record, changes)

    def _apply(self, record: Message | UnknownRecord, changes: ImageChanges) -> None:
        if isinstance(record, UnknownRecord):
            self.unknown.append(record)
            return
        _REPLAY[type(record)](self, record, changes)

    def _topic_of(self, topic_id: Uuid) -> Topic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise ReplayError(f"no topic has the id {topic_id}")
        return topic

    def _register_broker(self, record: records.RegisterBrokerRecord, changes: ImageChanges) -> None:
        self.brokers[record.broker_id] = BrokerRegistration.from_record(record)
        changes.brokers.append(record.broker_id)

    def _unregister_broker(self, record: records.UnregisterBrokerRecord, changes: ImageChanges) -> None:
        if self.brokers.pop(record.broker_id, None) is None:
            raise ReplayError(f"no broker {record.broker_id} to unregister")
        changes.brokers.append(record.broker_id)

    def _fence_broker(self, record: records.FenceBrokerRecord, changes: ImageChanges) -> None:
        self._change_broker(record.id, record.epoch, changes, fenced=True)

    def _unfence_broker(self, record: records.UnfenceBrokerRecord, changes: ImageChanges) -> None:
        self._change_broker(record.id, record.epoch, changes, fenced=False)

    def _broker_registration_change(
        self, record: records.BrokerRegistrationChangeRecord, changes: ImageChanges
    ) -> None:
        changed: dict[str, object] = {}
        if record.fenced:
            changed["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changed["in_controlled_shutdown"] = True
        if record.log_dirs:
            changed["directories"] = sorted_directories(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changed["cordoned_directories"] = sorted_directories(record.cordoned_log_dirs)
        self._change_broker(record.broker_id, record.broker_epoch, changes, **changed)

    def _change_broker(self, broker_id: int, epoch: int, changes: ImageChanges, **changed: object) -> None:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ReplayError(f"no broker {broker_id} with epoch {epoch}")
        self.brokers[broker_id] = replace(broker, **changed)  # type: ignore[arg-type]
        changes.brokers.append(broker_id)

    def _register_controller(self, record: records.RegisterControllerRecord, changes: ImageChanges) -> None:
        self.controllers[record.controller_id] = ControllerRegistration.from_record(record)

    def _topic(self, record: records.TopicRecord, changes: ImageChanges) -> None:
        older = self.topic_ids.get(record.name)
        if older is not None:
            del self.topics[older]
        topic = Topic(record.name, record.topic_id)
        self.topics[record.topic_id] = topic
        self.topic_ids[record.name] = record.topic_id
        changes.created_topics.append(topic)

    def _partition(self, record: records.PartitionRecord, changes: ImageChanges) -> None:
        topic = self._topic_of(record.topic_id)
        before, after = topic.partitions.get(record.partition_id), Partition.from_record(record)
        topic.partitions[record.partition_id] = after
        changes.partitions.append((topic, record.partition_id, before, after))

    def _partition_change(self, record: records.PartitionChangeRecord, changes: ImageChanges) -> None:
        topic = self._topic_of(record.topic_id)
        before = topic.partitions.get(record.partition_id)
        if before is None:
            raise ReplayError(f"no partition {record.partition_id} in topic {topic.name}")
        after = before.merge(record)
        topic.partitions[record.partition_id] = after
        changes.partitions.append((topic, record.partition_id, before, after))

    def _remove_topic(self, record: records.RemoveTopicRecord, changes: ImageChanges) -> None:
        topic = self._topic_of(record.topic_id)
        del self.topics[topic.id]
        del self.topic_ids[topic.name]
        resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
        if self.configs.pop(resource, None) is not None:
            changes.configs.append(resource)
        changes.deleted_topics.append(topic)

    def _clear_elr(self, record: records.ClearElrRecord, changes: ImageChanges) -> None:
        if record.topic_name:
            named = self.topic(record.topic_name)
            if named is None:
                raise ReplayError(f"no topic {record.topic_name} whose eligible leader replicas could be cleared")
            topics = [named]
        else:
            topics = list(self.topics.values())
        for topic in topics:
            for index, before in topic.partitions.items():
                if before.elr or before.last_known_elr:
                    after = before.without_elr()
                    topic.partitions[index] = after
                    changes.partitions.append((topic, index, before, after))

    def _config(self, record: records.ConfigRecord, changes: ImageChanges) -> None:
        try:
            kind = ConfigResourceType(record.resource_type)
        except ValueError as error:
            raise ReplayError(f"no config resource has the type {record.resource_type}") from error
        resource = ConfigResource(kind, record.resource_name)
        # Replaced, not changed: readers may hold the old dict.
        configs = dict(self.configs.get(resource, _EMPTY))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        if configs:
            self.configs[resource] = configs
        else:
            self.configs.pop(resource, None)
        changes.configs.append(resource)

    def _feature_level(self, record: records.FeatureLevelRecord, changes: ImageChanges) -> None:
        if record.name == KRAFT_VERSION:
            return
        if record.feature_level == 0 and record.name != METADATA_VERSION:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level
        changes.features = True

    def _client_quota(self, record: records.ClientQuotaRecord, changes: ImageChanges) -> None:
        entity = quota_entity({component.entity_type: component.entity_name for component in record.entity})
        quotas = dict(self.client_quotas.get(entity, {}))
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value
        if quotas:
            self.client_quotas[entity] = quotas
        else:
            self.client_quotas.pop(entity, None)
        changes.client_quotas = True

    def _producer_ids(self, record: records.ProducerIdsRecord, changes: ImageChanges) -> None:
        self.next_producer_id = record.next_producer_id

    def _add_acl(self, record: records.AccessControlEntryRecord, changes: ImageChanges) -> None:
        self.acls[record.id] = Acl.from_record(record)
        changes.acls = True

    def _remove_acl(self, record: records.RemoveAccessControlEntryRecord, changes: ImageChanges) -> None:
        if self.acls.pop(record.id, None) is None:
            raise ReplayError(f"no ACL has the id {record.id}")
        changes.acls = True

    def _scram_credential(self, record: records.UserScramCredentialRecord, changes: ImageChanges) -> None:
        self.scram.setdefault(record.mechanism, {})[record.name] = ScramCredential.from_record(record)
        changes.scram = True

    def _remove_scram_credential(self, record: records.RemoveUserScramCredentialRecord, changes: ImageChanges) -> None:
        users = self.scram.get(record.mechanism, {})
        if users.pop(record.name, None) is None:
            raise ReplayError(f"user {record.name} has no credential of mechanism {record.mechanism}")
        if not users:
            del self.scram[record.mechanism]
        changes.scram = True

    def _delegation_token(self, record: records.DelegationTokenRecord, changes: ImageChanges) -> None:
        self.delegation_tokens[record.token_id] = DelegationToken.from_record(record)
        changes.delegation_tokens = True

    def _remove_delegation_token(self, record: records.RemoveDelegationTokenRecord, changes: ImageChanges) -> None:
        self.delegation_tokens.pop(record.token_id, None)
        changes.delegation_tokens = True

    def _nothing(self, record: Message, changes: ImageChanges) -> None:
        """Ignore a record without state: a NoOpRecord, or a ZooKeeper migration record."""


_TRANSACTION_RECORDS: Final = (
    records.BeginTransactionRecord,
    records.EndTransactionRecord,
    records.AbortTransactionRecord,
)
_REPLAY: Final[dict[type[Message], Callable[..., None]]] = {
    records.RegisterBrokerRecord: ClusterImage._register_broker,
    records.UnregisterBrokerRecord: ClusterImage._unregister_broker,
    records.FenceBrokerRecord: ClusterImage._fence_broker,
    records.UnfenceBrokerRecord: ClusterImage._unfence_broker,
    records.BrokerRegistrationChangeRecord: ClusterImage._broker_registration_change,
    records.RegisterControllerRecord: ClusterImage._register_controller,
    records.TopicRecord: ClusterImage._topic,
    records.PartitionRecord: ClusterImage._partition,
    records.PartitionChangeRecord: ClusterImage._partition_change,
    records.RemoveTopicRecord: ClusterImage._remove_topic,
    records.ClearElrRecord: ClusterImage._clear_elr,
    records.ConfigRecord: ClusterImage._config,
    records.FeatureLevelRecord: ClusterImage._feature_level,
    records.ClientQuotaRecord: ClusterImage._client_quota,
    records.ProducerIdsRecord: ClusterImage._producer_ids,
    records.AccessControlEntryRecord: ClusterImage._add_acl,
    records.RemoveAccessControlEntryRecord: ClusterImage._remove_acl,
    records.UserScramCredentialRecord: ClusterImage._scram_credential,
    records.RemoveUserScramCredentialRecord: ClusterImage._remove_scram_credential,
    records.DelegationTokenRecord: ClusterImage._delegation_token,
    records.RemoveDelegationTokenRecord: ClusterImage._remove_delegation_token,
    records.NoOpRecord: ClusterImage._nothing,
    records.ZkMigrationStateRecord: ClusterImage._nothing,
}
