"""DescribeGroups (15): classic groups with their members.

v1 adds throttling, v3 the operations that one may do (KIP-430), v4 instance ids, v5 is flexible, v6 says that a group
is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import request_context, sort_out, then
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
    """No group could be described."""
    return DescribeGroupsResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.groups]
    )


@api(15, versions=(0, 6), acl=access.each(access.on_group(AclOperation.DESCRIBE)), on_error=on_error)
def describe_groups(
    call: Call, request: DescribeGroupsRequest
) -> DescribeGroupsResponse | Pending[DescribeGroupsResponse]:
    """Describe each group that this node coordinates."""
    allowed, hidden = sort_out(request.groups, lambda each: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, each))
    refused = [DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for each in hidden]

    def complete(groups: list[DescribedGroup]) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            for each in groups:
                if not each.error_code:
                    each.authorized_operations = call.authorized_operations(ResourceType.GROUP, each.group_id)
        return DescribeGroupsResponse(groups=refused + groups)

    return then(call.broker.groups.describe_groups(request_context(call), allowed), complete)
