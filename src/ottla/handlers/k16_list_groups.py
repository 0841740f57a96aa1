"""ListGroups (16): list the groups that this node coordinates.

v1 adds throttle_time_ms, v3 is flexible, v4 filters by state (KIP-518), v5 by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import map_response
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(request: ListGroupsRequest, version: int, code: ErrorCode, message: str | None) -> ListGroupsResponse:
    """Return the error of the whole request."""
    return ListGroupsResponse(error_code=code)


@api(
    16,
    versions=(0, 5),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_cluster(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse | Pending[ListGroupsResponse]:
    """Return the groups that match the filters and that the caller may describe."""
    response = call.broker.groups.list_groups(request.states_filter, request.types_filter)
    if call.may_cluster(AclOperation.DESCRIBE):
        return response
    return map_response(response, lambda listed: _visible(call, listed))


def _visible(call: Call, response: ListGroupsResponse) -> ListGroupsResponse:
    response.groups = [
        group for group in response.groups if call.may(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
    ]
    return response
