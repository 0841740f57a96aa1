"""DescribeGroups (15): describe classic groups with their members.

v1 adds throttle_time_ms, v3 authorized operations (KIP-430), v4 instance ids, v5 is flexible, v6 returns
GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, request_context, split
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(
    request: DescribeGroupsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeGroupsResponse:
    """Return the error for every group."""
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.groups]
    )


@api(
    15,
    versions=(0, 6),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("groups"),
)
def describe_groups(
    call: Call, request: DescribeGroupsRequest
) -> DescribeGroupsResponse | Pending[DescribeGroupsResponse]:
    """Describe each group that this node coordinates."""
    allowed, unauthorized = split(
        request.groups, lambda group_id: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    )
    refused = [
        DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for group_id in unauthorized
    ]

    def complete(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = call.authorized_operations(ResourceType.GROUP, group.group_id)
        return DescribeGroupsResponse(groups=refused + groups)

    return map_response(call.broker.groups.describe_groups(request_context(call), allowed), complete)
