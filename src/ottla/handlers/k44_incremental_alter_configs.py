"""IncrementalAlterConfigs (44): set, delete, append to and subtract from configs. v1 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.config_changes import ConfigChange, alter_resource
from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.alter import AlterOperation
from ottla.cluster.registrations import ConfigResource
from ottla.handlers.registry import api
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
    """Nothing was changed."""
    return IncrementalAlterConfigsResponse(responses=[_answer(each, code, message) for each in request.resources])


@api(44, versions=(0, 1), on_error=on_error)
def incremental_alter_configs(call: Call, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Change each resource as a whole or not at all."""
    cluster = call.broker.cluster
    responses = []
    records: list[Message] = []
    named = [(each.resource_type, each.resource_name) for each in request.resources]
    for resource in request.resources:
        try:
            if named.count((resource.resource_type, resource.resource_name)) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records += alter_resource(
                cluster.image, _resource(resource), _changes(resource), layers=cluster.controller.layers
            )
            responses.append(_answer(resource, ErrorCode.NONE, None))
        except KafkaError as error:
            responses.append(_answer(resource, error.code, error.message))
    if not request.validate_only:
        cluster.change(records)
    return IncrementalAlterConfigsResponse(responses=responses)


def _resource(resource: AlterConfigsResource) -> ConfigResource:
    try:
        kind = ConfigResourceType(resource.resource_type)
    except ValueError:
        kind = ConfigResourceType.UNKNOWN
    if kind in (ConfigResourceType.UNKNOWN, ConfigResourceType.BROKER_LOGGER):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}.")
    return ConfigResource(kind, resource.resource_name)


def _changes(resource: AlterConfigsResource) -> list[ConfigChange]:
    changes = []
    for each in resource.configs:
        try:
            operation = AlterOperation(each.config_operation)
        except ValueError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {each.config_operation}.") from None
        changes.append(ConfigChange(each.name, operation, each.value))
    return changes


def _answer(resource: AlterConfigsResource, code: ErrorCode, message: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
