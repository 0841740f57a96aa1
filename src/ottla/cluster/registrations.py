"""Brokers and controllers in the metadata image: Kafka's BrokerRegistration and ControllerRegistration."""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack
from typing import TYPE_CHECKING

from ottla.protocol.record_schemas.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.protocol.schema import Uuid


def sorted_directories(ids: Iterable[Uuid]) -> tuple[Uuid, ...]:
    """Sort directory ids as Java compares Uuids: each half as a signed number."""
    return tuple(sorted(ids, key=lambda directory_id: unpack(">qq", directory_id)))


@dataclass(frozen=True, slots=True)
class Listener:
    """An endpoint of a registered node."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker: epoch, endpoints, directories, fencing."""

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
        """Whether the broker takes new replicas: no controlled shutdown, and a directory that is not cordoned."""
        if self.in_controlled_shutdown:
            return False
        cordoned = self.cordoned_directories or ()
        return not self.directories or any(directory not in cordoned for directory in self.directories)

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> BrokerRegistration:
        """Create the registration from its record."""
        return cls(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(
                Listener(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
                for endpoint in record.end_points
            ),
            tuple(
                (feature.name, feature.min_supported_version, feature.max_supported_version)
                for feature in record.features
            ),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            sorted_directories(record.log_dirs),
            None if record.cordoned_log_dirs is None else sorted_directories(record.cordoned_log_dirs),
            record.is_migrating_zk_broker,
        )

    def to_record(self, *, directories: bool, cordoned: bool) -> RegisterBrokerRecord:
        """Return the record for a snapshot; older metadata.versions have no directories."""
        return RegisterBrokerRecord(
            broker_id=self.id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in self.listeners
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
        """Whether the broker may lead: neither fenced nor in controlled shutdown."""
        return not self.fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    """A registered controller."""

    id: int
    incarnation_id: Uuid
    zk_migration_ready: bool
    listeners: tuple[Listener, ...]
    features: tuple[tuple[str, int, int], ...]

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> ControllerRegistration:
        """Create the registration from its record."""
        return cls(
            record.controller_id,
            record.incarnation_id,
            record.zk_migration_ready,
            tuple(
                Listener(endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol)
                for endpoint in record.end_points
            ),
            tuple(
                (feature.name, feature.min_supported_version, feature.max_supported_version)
                for feature in record.features
            ),
        )

    def to_record(self) -> RegisterControllerRecord:
        """Return the record for a snapshot."""
        return RegisterControllerRecord(
            controller_id=self.id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                ControllerEndpoint(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in self.listeners
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in self.features
            ],
        )
