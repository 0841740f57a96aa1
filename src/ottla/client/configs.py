"""Describes and alters configs of topics, brokers, groups, loggers and client metrics. Errors are KafkaErrors."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.client.client import Client
    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")


class Resource(IntEnum):
    """Kafka's ConfigResource types."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    """Kafka's incremental config operations."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


DYNAMIC_TOPIC_CONFIG = 1
DEFAULT_CONFIG = 5
SOURCES = {
    0: "unknown",
    DYNAMIC_TOPIC_CONFIG: "topic",
    2: "broker",
    3: "all brokers",
    4: "file",
    DEFAULT_CONFIG: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
TYPES = {
    0: "unknown",
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}


def describe_configs(
    client: Client,
    kind: Resource,
    name: str,
    keys: Sequence[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
) -> list[DescribeConfigsResourceResult]:
    """Return the configs of one resource by name: all, or those of `keys`."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
            )
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )
    result = _send(client, kind, name, request, DescribeConfigsResponse).results[0]
    if result.error_code:
        raise KafkaError(result.error_code, result.error_message or f"{kind.name.lower()} {name}")
    return sorted(result.configs, key=lambda config: config.name)


def alter_configs(
    client: Client,
    kind: Resource,
    name: str,
    changes: Sequence[tuple[str, Operation, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Change configs of one resource; configs that are not named keep their values."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    result = _send(client, kind, name, request, IncrementalAlterConfigsResponse).responses[0]
    if result.error_code:
        raise KafkaError(result.error_code, result.error_message or f"{kind.name.lower()} {name}")


def _send(client: Client, kind: Resource, name: str, request: Message, response: type[R]) -> R:
    """Send a request about one broker to that broker, any other request to any broker."""
    if kind in (Resource.BROKER, Resource.BROKER_LOGGER) and name:
        return client.to_node(int(name), request, response)
    return client.to_any(request, response)
