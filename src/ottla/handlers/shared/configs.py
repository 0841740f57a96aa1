"""Checks of config changes on the broker, before the controller: resources must belong to this node.

`ottla.cluster.configs.alter` validates the values.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.cluster.configs import ConfigResource, ConfigResourceType
from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.session import Call
    from ottla.protocol.schema import Message


class Resource(Protocol):
    """A resource as AlterConfigs and IncrementalAlterConfigs name it."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_ALTERED = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def alter_each(
    broker: Broker,
    resources: Sequence[R],
    change: Callable[[R], Sequence[Message]],
    *,
    validate_only: bool,
) -> list[tuple[R, ErrorCode, str | None]]:
    """Change each resource completely or not at all, and return the results. A repeated resource is an error."""
    records: list[Message] = []
    results: list[tuple[R, ErrorCode, str | None]] = []
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    for resource in resources:
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records += change(resource)
        except KafkaError as error:
            results.append((resource, error.code, error.message))
        else:
            results.append((resource, ErrorCode.NONE, None))
    if not validate_only:
        broker.runtime.change(records)
    return results


def altered_resource(broker: Broker, resource: Resource) -> ConfigResource:
    """Return the resource in the metadata; a broker resource must be this node's or the cluster default."""
    if resource.resource_type not in _ALTERED:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    kind = ConfigResourceType(resource.resource_type)
    if kind is ConfigResourceType.BROKER and resource.resource_name:
        check_node_id(broker, resource.resource_name)
    return ConfigResource(kind, resource.resource_name)


def require_config_access(call: Call, operation: AclOperation, resource: Resource) -> None:
    """Raise unless the principal may see or change the configs of a topic, a group or (for others) the cluster."""
    if resource.resource_type == ConfigResourceType.TOPIC:
        call.require(operation, ResourceType.TOPIC, resource.resource_name)
    elif resource.resource_type == ConfigResourceType.GROUP:
        call.require(operation, ResourceType.GROUP, resource.resource_name)
    else:
        call.require(operation, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)


def check_node_id(broker: Broker, name: str) -> None:
    """Raise for a broker resource of another node."""
    if parse_node_id("Node", name) != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
        )


def parse_node_id(role: str, name: str) -> int:
    """Return the node id that names a resource, parsed as Java parses numbers."""
    if not _NUMBER.fullmatch(name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{role} id must be an integer, but it is: {name}")
    return int(name)
