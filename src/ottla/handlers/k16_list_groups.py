"""ListGroups (16): the groups that this node coordinates.

v1 adds throttling, v3 is flexible, v4 filters by state (KIP-518), v5 by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import then
from ottla.protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(request: ListGroupsRequest, version: int, code: ErrorCode, message: str | None) -> ListGroupsResponse:
    """No group can be listed."""
    return ListGroupsResponse(error_code=code)


@api(
    16,
    versions=(0, 5),
    acl=access.each(access.on_group(AclOperation.DESCRIBE), access.on_cluster(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse | Pending[ListGroupsResponse]:
    """All groups, or those in some states and of some types."""
    answer = call.broker.groups.list_groups(request.states_filter, request.types_filter)
    if call.may_cluster(AclOperation.DESCRIBE):
        return answer
    return then(answer, lambda response: _visible(call, response))


def _visible(call: Call, response: ListGroupsResponse) -> ListGroupsResponse:
    response.groups = [
        each for each in response.groups if call.may(AclOperation.DESCRIBE, ResourceType.GROUP, each.group_id)
    ]
    return response
