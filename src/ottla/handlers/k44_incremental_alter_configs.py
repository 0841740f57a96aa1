"""IncrementalAlterConfigs (44): set, delete, append to and subtract from configs. v1 is flexible."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.changes import ConfigChange, alter_resource, check_changes
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.configs import alter_each, altered_resource, require_config_access
from ottla.handlers.shared.loggers import alter_loggers
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k44_incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.schema import Message


def on_error(
    request: IncrementalAlterConfigsRequest, version: int, code: ErrorCode, message: str | None
) -> IncrementalAlterConfigsResponse:
    """Return the error for every resource."""
    return IncrementalAlterConfigsResponse(
        responses=[_answer(resource, code, message) for resource in request.resources]
    )


@api(
    44,
    versions=(0, 1),
    acl=access.per_resource(
        access.on_topic(AclOperation.ALTER_CONFIGS),
        access.on_group(AclOperation.ALTER_CONFIGS),
        access.on_cluster(AclOperation.ALTER_CONFIGS),
    ),
    on_error=on_error,
    split=divide_by("resources", size=50, key=attrgetter("resource_type", "resource_name")),
)
def incremental_alter_configs(call: Call, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Change the configs of each resource completely or not at all."""
    runtime = call.broker.runtime

    def change(resource: AlterConfigsResource) -> list[Message]:
        changes = _changes(resource)
        check_changes(changes)
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            require_config_access(call, AclOperation.ALTER_CONFIGS, resource)
            alter_loggers(call.broker, resource.resource_name, changes, validate_only=request.validate_only)
            return []
        named = altered_resource(call.broker, resource)
        require_config_access(call, AclOperation.ALTER_CONFIGS, resource)
        return alter_resource(runtime.image, named, changes, layers=runtime.controller.layers)

    results = alter_each(call.broker, request.resources, change, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=[_answer(*result) for result in results])


def _changes(resource: AlterConfigsResource) -> list[ConfigChange]:
    changes = []
    for config in resource.configs:
        try:
            operation = AlterOperation(config.config_operation)
        except ValueError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.config_operation}.") from None
        changes.append(ConfigChange(config.name, operation, config.value))
    return changes


def _answer(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
