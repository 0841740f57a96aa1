"""ListConfigResources (74): list resources with configs. v0 lists client metrics only, v1 every type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call

LISTED = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def on_error(
    request: ListConfigResourcesRequest, version: int, code: ErrorCode, message: str | None
) -> ListConfigResourcesResponse:
    """Return the error."""
    return ListConfigResourcesResponse(error_code=code)


@api(74, versions=(0, 1), acl=access.cluster(AclOperation.DESCRIBE_CONFIGS), on_error=on_error)
def list_config_resources(call: Call, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List resources of the requested types, or of all."""
    types = [ConfigResourceType.CLIENT_METRICS] if call.version == 0 else request.resource_types or list(LISTED)
    if any(type_ not in LISTED for type_ in types):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(types)
            for name in _names(call, ConfigResourceType(kind))
        ]
    )


def _names(call: Call, kind: ConfigResourceType) -> list[str]:
    runtime = call.broker.runtime
    if kind is ConfigResourceType.TOPIC:
        return list(runtime.image.topic_ids)
    if kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in sorted(runtime.nodes)]
    return [resource.name for resource in runtime.image.configs if resource.type is kind]
