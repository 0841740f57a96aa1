"""DescribeAcls (29): list ACL entries that match a filter. v2 is flexible, v3 adds user resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, matching_acls, validate_filter
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k29_describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(request: DescribeAclsRequest, version: int, code: ErrorCode, message: str | None) -> DescribeAclsResponse:
    """Return the error without entries."""
    return DescribeAclsResponse(error_code=code, error_message=message)


@api(29, versions=(1, 3), acl=access.cluster(AclOperation.DESCRIBE), on_error=on_error)
def describe_acls(call: Call, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Return the matching entries, grouped by resource."""
    if call.broker.runtime.authorizer is None:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    validate_filter(request)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for _, acl in matching_acls(call.broker.runtime.image, request):
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        resource = resources.get(key)
        if resource is None:
            resource = resources[key] = DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
            )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
