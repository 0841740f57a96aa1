"""DescribeConfigs (32): configs and their sources. v3 adds types and documentation, v4 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import (
    ConfigEntry,
    describe_broker,
    describe_client_metrics,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from ottla.cluster.security.acls import AclOperation
from ottla.cluster.topic_names import validate_topic_name
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.configs import parse_node_id, require_config_access
from ottla.handlers.shared.loggers import describe_loggers
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

CONFIGURABLE = frozenset(ConfigResourceType) - {ConfigResourceType.UNKNOWN}
NO_SUCH_TYPE = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)


def on_error(
    request: DescribeConfigsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeConfigsResponse:
    """Return the error for every resource."""
    return DescribeConfigsResponse(results=[_failure(resource, code, message) for resource in request.resources])


@api(
    32,
    versions=(1, 4),
    acl=access.per_resource(
        access.on_topic(AclOperation.DESCRIBE_CONFIGS),
        access.on_group(AclOperation.DESCRIBE_CONFIGS),
        access.on_cluster(AclOperation.DESCRIBE_CONFIGS),
    ),
    on_error=on_error,
    split=divide_by("resources", size=20),
)
def describe_configs(call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe the resources, each with its own error; an unknown resource type fails the request."""
    if any(resource.resource_type not in CONFIGURABLE for resource in request.resources):
        raise KafkaError(ErrorCode.INVALID_REQUEST, NO_SUCH_TYPE)
    results = []
    for resource in request.resources:
        try:
            configs = [_result(entry, request) for entry in _entries(call, resource)]
            results.append(
                DescribeConfigsResult(
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=configs,
                )
            )
        except KafkaError as error:
            results.append(_failure(resource, error.code, error.message))
    return DescribeConfigsResponse(results=results)


def _entries(call: Call, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    broker = call.broker
    image = broker.runtime.image
    require_config_access(call, AclOperation.DESCRIBE_CONFIGS, resource)
    name, names = resource.resource_name, resource.configuration_keys
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            validate_topic_name(name)
            if image.topic(name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return describe_topic(image.config(ConfigResourceType.TOPIC, name), broker.layers, names)
        case ConfigResourceType.BROKER:
            if not name:
                return describe_default_broker(broker.layers, names)
            if parse_node_id("Broker", name) != broker.node_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {broker.node_id} or empty string, but received {name}",
                )
            return describe_broker(broker.layers, names)
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            if parse_node_id("Broker", name) != broker.node_id:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker.node_id} but received {name}"
                )
            return describe_loggers(names)
        case ConfigResourceType.CLIENT_METRICS:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return describe_client_metrics(image.config(ConfigResourceType.CLIENT_METRICS, name), names)
        case ConfigResourceType.GROUP:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group(image.config(ConfigResourceType.GROUP, name), broker.layers, names)
    raise AssertionError(resource.resource_type)


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _failure(resource: DescribeConfigsResource, code: ErrorCode, message: str | None) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
