"""Config changes as records: IncrementalAlterConfigs, AlterConfigs, new topics (Kafka's ConfigurationControlManager).

`configs.alter` validates values; this module finds the resource and builds records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.alter import (
    MAX_VALUE_CHARS,
    AlterOperation,
    altered_value,
    validate_broker,
    validate_client_metrics,
    validate_group,
    validate_topic,
)
from ottla.cluster.features import CORDONED_LOG_DIRS_FROM, metadata_version_name
from ottla.cluster.topic_names import validate_topic_name
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.metadata import ClearElrRecord, ConfigRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.cluster.configs import ConfigResource
    from ottla.cluster.configs.effective import BrokerLayers
    from ottla.cluster.image import ClusterImage
    from ottla.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One requested operation of IncrementalAlterConfigs."""

    name: str
    operation: AlterOperation
    value: str | None


def alter_resource(
    image: ClusterImage,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
    *,
    layers: BrokerLayers,
    newly_created: bool = False,
) -> list[Message]:
    """Return the records that change configs of one resource, or raise.

    An unchanged topic config writes no record; an unchanged broker config does, as in Kafka.
    """
    check_changes(changes)
    current = image.config(resource.type, resource.name)
    altered: dict[str, str | None] = {}
    for change in changes:
        before = current.get(change.name)
        after = altered_value(resource.type, change.name, change.operation, change.value, before)
        if after != before or resource.type is ConfigResourceType.BROKER:
            altered[change.name] = after
    return _records(image, resource, current, altered, layers, newly_created=newly_created)


def replace_resource(
    image: ClusterImage, resource: ConfigResource, configs: Mapping[str, str | None], *, layers: BrokerLayers
) -> list[Message]:
    """Return the records of AlterConfigs, which replaces all configs of a resource."""
    check_changes([ConfigChange(name, AlterOperation.SET, value) for name, value in configs.items()])
    current = image.config(resource.type, resource.name)
    altered: dict[str, str | None] = {
        name: value
        for name, value in configs.items()
        if current.get(name) != value or resource.type is ConfigResourceType.BROKER
    }
    altered.update({name: None for name in current if name not in configs})
    return _records(image, resource, current, altered, layers)


def check_changes(changes: Sequence[ConfigChange]) -> None:
    """Raise for changes that name a config twice or set one to null."""
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        change.name for change in changes if change.value is None and change.operation is not AlterOperation.DELETE
    ]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _records(
    image: ClusterImage,
    resource: ConfigResource,
    current: Mapping[str, str],
    altered: Mapping[str, str | None],
    layers: BrokerLayers,
    *,
    newly_created: bool = False,
) -> list[Message]:
    _check_special(image, resource, altered)
    merged = {**current, **altered}
    new = {name: value for name, value in merged.items() if value is not None}
    _validate(image, resource, new, current, layers)
    if not newly_created:
        _check_exists(image, resource)
    records: list[Message] = [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in altered.items()
    ]
    if image.elr_enabled and "min.insync.replicas" in altered:
        topic_name = resource.name if resource.type is ConfigResourceType.TOPIC else ""
        records.append(ClearElrRecord(topic_name=topic_name))
    return records


def _check_special(image: ClusterImage, resource: ConfigResource, altered: Mapping[str, str | None]) -> None:
    broker = resource.type is ConfigResourceType.BROKER
    for name, value in altered.items():
        if broker and name == "min.insync.replicas" and image.elr_enabled:
            if resource.name:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
                )
            if value is None:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
                )
        if broker and name == "cordoned.log.dirs" and image.metadata_version < CORDONED_LOG_DIRS_FROM:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= "
                f"{metadata_version_name(CORDONED_LOG_DIRS_FROM)}",
            )
        if value is not None and len(value.encode("utf-16-le")) // 2 > MAX_VALUE_CHARS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_CHARS} bytes.",
            )


def _validate(
    image: ClusterImage,
    resource: ConfigResource,
    new: Mapping[str, str],
    existing: Mapping[str, str],
    layers: BrokerLayers,
) -> None:
    match resource.type:
        case ConfigResourceType.TOPIC:
            if not resource.name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            validate_topic_name(resource.name)
            validate_topic(new, existing, layers)
        case ConfigResourceType.BROKER:
            _validate_broker_name(resource.name)
            validate_broker(new, per_broker=bool(resource.name), layers=layers)
        case ConfigResourceType.GROUP:
            if not resource.name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            validate_group(new, layers)
        case ConfigResourceType.CLIENT_METRICS:
            validate_client_metrics(resource.name, new)
        case _:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.type.name}")


def _validate_broker_name(name: str) -> None:
    if not name:
        return
    if not name.lstrip("-").isdecimal() or len(name) > 10:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
    if int(name) < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")


def _check_exists(image: ClusterImage, resource: ConfigResource) -> None:
    if resource.type is ConfigResourceType.TOPIC and resource.name not in image.topic_ids:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
    if (
        resource.type is ConfigResourceType.BROKER
        and resource.name
        and int(resource.name) not in image.brokers
        and int(resource.name) not in image.controllers
    ):
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {resource.name} found.")
