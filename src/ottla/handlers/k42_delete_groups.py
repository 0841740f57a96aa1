"""DeleteGroups (42): end groups that nobody is in. v1 throttles before the answer, v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import sort_out, then
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
    """No group was deleted."""
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names]
    )


@api(42, versions=(0, 2), acl=access.each(access.on_group(AclOperation.DELETE)), on_error=on_error)
def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse | Pending[DeleteGroupsResponse]:
    """Delete those that can be, with their offsets; each has its own error."""
    wanted = dict.fromkeys(request.groups_names)
    allowed, kept = sort_out(wanted, lambda each: call.may(AclOperation.DELETE, ResourceType.GROUP, each))
    refused = [DeletableGroupResult(group_id=each, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for each in kept]
    answer = call.broker.groups.delete_groups(allowed)
    return then(answer, lambda results: DeleteGroupsResponse(results=results + refused))
