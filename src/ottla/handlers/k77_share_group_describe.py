"""ShareGroupDescribe (77): describe share groups with their members (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import describe_authorized, map_response, require_protocol
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k77_share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ShareGroupDescribeRequest, version: int, code: ErrorCode, message: str | None
) -> ShareGroupDescribeResponse:
    """Return the error for every group."""
    return ShareGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
    )


@api(
    77,
    versions=(1, 1),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("group_ids"),
)
def share_group_describe(
    call: Call, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse | Pending[ShareGroupDescribeResponse]:
    """Describe each group that this node coordinates."""
    require_protocol(call, "share")
    groups = describe_authorized(
        call,
        request,
        DescribedGroup,
        call.broker.groups.describe_share_groups,
        _topics,
        "The group has described topic(s) that the client is not authorized to describe.",
    )
    return map_response(groups, lambda described: ShareGroupDescribeResponse(groups=described))


def _topics(group: DescribedGroup) -> set[str]:
    return {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}
