"""DeleteGroups (42): delete groups without members. v1 throttles after responding, v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response, split
from ottla.handlers.splitting import divide_by
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k42_delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(request: DeleteGroupsRequest, version: int, code: ErrorCode, message: str | None) -> DeleteGroupsResponse:
    """Return the error for every group."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names]
    )


@api(
    42,
    versions=(0, 2),
    acl=access.per_resource(access.on_group(AclOperation.DELETE)),
    on_error=on_error,
    split=divide_by("groups_names"),
)
def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse | Pending[DeleteGroupsResponse]:
    """Delete groups with their offsets; each group has its own error."""
    group_ids = dict.fromkeys(request.groups_names)
    allowed, unauthorized = split(
        group_ids, lambda group_id: call.may(AclOperation.DELETE, ResourceType.GROUP, group_id)
    )
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    refused = [DeletableGroupResult(group_id=group_id, error_code=code) for group_id in unauthorized]
    results = call.broker.groups.delete_groups(allowed)
    return map_response(results, lambda deleted: DeleteGroupsResponse(results=deleted + refused))
