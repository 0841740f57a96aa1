"""ShareGroupDescribe (77): share groups with their members (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.group_calls import sort_out, then
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import require_share_groups
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k77_share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(
    request: ShareGroupDescribeRequest, version: int, code: ErrorCode, message: str | None
) -> ShareGroupDescribeResponse:
    """No group could be described."""
    return ShareGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
    )


@api(
    77,
    versions=(1, 1),
    acl=access.each(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def share_group_describe(
    call: Call, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse | Pending[ShareGroupDescribeResponse]:
    """Describe each group that this node coordinates."""
    require_share_groups(call)
    allowed, hidden = sort_out(
        request.group_ids, lambda each: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, each)
    )
    refused = [DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for each in hidden]

    def complete(groups: list[DescribedGroup]) -> ShareGroupDescribeResponse:
        return ShareGroupDescribeResponse(groups=refused + [_shown(call, request, each) for each in groups])

    return then(call.broker.groups.describe_share_groups(allowed), complete)


def _shown(call: Call, request: ShareGroupDescribeRequest, group: DescribedGroup) -> DescribedGroup:
    """A group as the caller may see it: not at all if it reads a topic that they may not see."""
    if group.error_code:
        return group
    if request.include_authorized_operations:
        group.authorized_operations = call.authorized_operations(ResourceType.GROUP, group.group_id)
    topics = {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}
    if all(call.may_topic(AclOperation.DESCRIBE, topic) for topic in topics):
        return group
    return DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )
