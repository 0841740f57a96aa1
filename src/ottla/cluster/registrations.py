"""What the image is made of: brokers, controllers, topics, partitions, ACLs, credentials, tokens. Values, no rules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from struct import unpack
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.record_schemas.metadata import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    DelegationTokenRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)
from ottla.protocol.schema import ZERO_UUID, Uuid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.cluster.configs import ConfigResourceType

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2
RECOVERED: Final = 0
RECOVERING: Final = 1
NO_RECOVERY_STATE_CHANGE: Final = -1

MIGRATING_DIRECTORY: Final = ZERO_UUID
UNASSIGNED_DIRECTORY: Final = Uuid((1).to_bytes(16, "big"))
LOST_DIRECTORY: Final = Uuid((2).to_bytes(16, "big"))

GROUP_METADATA_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CLUSTER_METADATA_TOPIC_ID: Final = Uuid((1).to_bytes(16, "big"))
INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC})


class ConfigResource(NamedTuple):
    """Whose configs: a topic, a broker (or all, with an empty name), a group, a client metrics subscription."""

    type: ConfigResourceType
    name: str


QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of entity type (user, client-id, ip) and name, sorted by type; no name means the default of that type."""


def sorted_directories(ids: Iterable[Uuid]) -> tuple[Uuid, ...]:
    """Directory ids in Kafka's order, which compares each half of an id as a signed number."""
    return tuple(sorted(ids, key=lambda each: unpack(">qq", each)))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a registered node can be reached."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker that the cluster knows."""

    id: int
    epoch: int
    incarnation_id: Uuid
    listeners: tuple[Listener, ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[Uuid, ...]
    cordoned_directories: tuple[Uuid, ...] | None
    is_migrating_zk_broker: bool = False

    @property
    def takes_new_replicas(self) -> bool:
        """Whether new partitions may be placed here: it is not about to stop, and has a directory to put them."""
        if self.in_controlled_shutdown:
            return False
        cordoned = self.cordoned_directories or ()
        return not self.directories or any(each not in cordoned for each in self.directories)

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> BrokerRegistration:
        """Take over a registration as it was written."""
        return cls(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Listener(each.name, each.host, each.port, each.security_protocol) for each in record.end_points),
            tuple((each.name, each.min_supported_version, each.max_supported_version) for each in record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            sorted_directories(record.log_dirs),
            None if record.cordoned_log_dirs is None else sorted_directories(record.cordoned_log_dirs),
            record.is_migrating_zk_broker,
        )

    def to_record(self, *, directories: bool, cordoned: bool) -> RegisterBrokerRecord:
        """The record that a snapshot holds; older levels know no directories."""
        return RegisterBrokerRecord(
            broker_id=self.id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for each in self.listeners
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in self.features
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.directories) if directories else [],
            cordoned_log_dirs=(
                list(self.cordoned_directories) if cordoned and self.cordoned_directories is not None else None
            ),
        )

    @property
    def active(self) -> bool:
        """Whether it may lead: neither fenced nor on its way out."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """A controller that the cluster knows."""

    id: int
    incarnation_id: Uuid
    zk_migration_ready: bool
    listeners: tuple[Listener, ...]
    features: tuple[tuple[str, int, int], ...]

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> ControllerRegistration:
        """Take over a registration as it was written."""
        return cls(
            record.controller_id,
            record.incarnation_id,
            record.zk_migration_ready,
            tuple(Listener(each.name, each.host, each.port, each.security_protocol) for each in record.end_points),
            tuple((each.name, each.min_supported_version, each.max_supported_version) for each in record.features),
        )

    def to_record(self) -> RegisterControllerRecord:
        """The record that a snapshot holds."""
        return RegisterControllerRecord(
            controller_id=self.id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                ControllerEndpoint(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in self.listeners
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in self.features
            ],
        )


@dataclass(frozen=True, slots=True)
class Partition:
    """Who holds a partition, who leads it, and the epochs that order the changes of both."""

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    leader_recovery_state: int = RECOVERED
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def from_record(cls, record: PartitionRecord) -> Partition:
        """Take over a partition as it was written."""
        return cls(
            tuple(record.replicas),
            _directories(record.directories, len(record.replicas)),
            tuple(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.leader_recovery_state,
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def merge(self, change: PartitionChangeRecord) -> Partition:
        """This partition after a change: every change bumps the partition epoch, a named leader the leader epoch.

        A record that names the same leader again bumps the leader epoch all the same.
        """
        replicas = self.replicas if change.replicas is None else tuple(change.replicas)
        directories = self.directories if change.directories is None else tuple(change.directories)
        new_leader = change.leader != NO_LEADER_CHANGE
        state = change.leader_recovery_state
        return Partition(
            replicas,
            _directories(directories, len(replicas)),
            self.isr if change.isr is None else tuple(change.isr),
            change.leader if new_leader else self.leader,
            self.leader_epoch + 1 if new_leader else self.leader_epoch,
            self.partition_epoch + 1,
            self.leader_recovery_state if state == NO_RECOVERY_STATE_CHANGE else state,
            self.removing_replicas if change.removing_replicas is None else tuple(change.removing_replicas),
            self.adding_replicas if change.adding_replicas is None else tuple(change.adding_replicas),
            self.elr if change.eligible_leader_replicas is None else tuple(change.eligible_leader_replicas),
            self.last_known_elr if change.last_known_elr is None else tuple(change.last_known_elr),
        )

    def to_record(self, topic_id: Uuid, index: int, *, directories: bool, elr: bool) -> PartitionRecord:
        """The record that creation and snapshots write; older levels know neither directories nor ELR."""
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories) if directories else [],
            eligible_leader_replicas=list(self.elr) if elr and self.elr else None,
            last_known_elr=list(self.last_known_elr) if elr and self.last_known_elr else None,
        )

    def without_elr(self) -> Partition:
        """This partition with its eligible leader replicas forgotten."""
        return replace(self, elr=(), last_known_elr=(), partition_epoch=self.partition_epoch + 1)

    @property
    def reassigning(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)


def _directories(written: tuple[Uuid, ...] | list[Uuid], count: int) -> tuple[Uuid, ...]:
    return tuple(written) if written else (MIGRATING_DIRECTORY,) * count


@dataclass(slots=True)
class Topic:
    """A topic and its partitions by number."""

    name: str
    id: Uuid
    partitions: dict[int, Partition] = field(default_factory=dict)

    @property
    def internal(self) -> bool:
        """Whether it is one of Kafka's own."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class Acl:
    """One access control entry; the numbers are Kafka's (`ResourceType`, `PatternType`, `AclOperation`, ...)."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def from_record(cls, record: AccessControlEntryRecord) -> Acl:
        """Take over an entry as it was written."""
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def to_record(self, acl_id: Uuid) -> AccessControlEntryRecord:
        """The record that adds this entry."""
        return AccessControlEntryRecord(
            id=acl_id,
            resource_type=self.resource_type,
            resource_name=self.resource_name,
            pattern_type=self.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission_type,
        )


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What the broker keeps of a password, for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def from_record(cls, record: UserScramCredentialRecord) -> ScramCredential:
        """Take over a credential as it was written."""
        return cls(bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations)

    def to_record(self, user: str, mechanism: int) -> UserScramCredentialRecord:
        """The record that stores this credential."""
        return UserScramCredentialRecord(
            name=user,
            mechanism=mechanism,
            salt=self.salt,
            stored_key=self.stored_key,
            server_key=self.server_key,
            iterations=self.iterations,
        )


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token without its secret, which is derived from the token id and the cluster's key."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    max_ms: int
    expiry_ms: int

    @classmethod
    def from_record(cls, record: DelegationTokenRecord) -> DelegationToken:
        """Take over a token as it was written."""
        return cls(
            record.token_id,
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def to_record(self) -> DelegationTokenRecord:
        """The record that stores this token."""
        return DelegationTokenRecord(
            owner=self.owner,
            requester=self.requester,
            renewers=list(self.renewers),
            issue_timestamp=self.issue_ms,
            max_timestamp=self.max_ms,
            expiration_timestamp=self.expiry_ms,
            token_id=self.token_id,
        )


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """An entity in its one form, whatever the order it was named in."""
    return tuple(sorted(parts.items()))
