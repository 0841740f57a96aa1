"""AlterConfigs (33): replace all configs of resources. v2 is flexible; newer clients use IncrementalAlterConfigs."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.configs.changes import ConfigChange, check_changes, replace_resource
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.configs import alter_each, altered_resource, require_config_access
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.schema import Message


def on_error(request: AlterConfigsRequest, version: int, code: ErrorCode, message: str | None) -> AlterConfigsResponse:
    """Return the error for every resource."""
    return AlterConfigsResponse(responses=[_answer(resource, code, message) for resource in request.resources])


@api(
    33,
    versions=(0, 2),
    acl=access.per_resource(
        access.on_topic(AclOperation.ALTER_CONFIGS),
        access.on_group(AclOperation.ALTER_CONFIGS),
        access.on_cluster(AclOperation.ALTER_CONFIGS),
    ),
    on_error=on_error,
    split=divide_by("resources", size=50, key=attrgetter("resource_type", "resource_name")),
)
def alter_configs(call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace the configs of each resource completely or not at all."""
    runtime = call.broker.runtime

    def change(resource: AlterConfigsResource) -> list[Message]:
        check_changes([ConfigChange(config.name, AlterOperation.SET, config.value) for config in resource.configs])
        named = altered_resource(call.broker, resource)
        require_config_access(call, AclOperation.ALTER_CONFIGS, resource)
        configs = {config.name: config.value for config in resource.configs}
        return replace_resource(runtime.image, named, configs, layers=runtime.controller.layers)

    results = alter_each(call.broker, request.resources, change, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=[_answer(*result) for result in results])


def _answer(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
