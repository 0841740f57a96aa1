"""ConsumerGroupDescribe (69): consumer groups with their members (KIP-848). v1 tells members' protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.group_calls import sort_out, then
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


def on_error(
    request: ConsumerGroupDescribeRequest, version: int, code: ErrorCode, message: str | None
) -> ConsumerGroupDescribeResponse:
    """No group could be described."""
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
    )


@api(
    69,
    versions=(0, 1),
    acl=access.each(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def consumer_group_describe(
    call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Pending[ConsumerGroupDescribeResponse]:
    """Describe each group that this node coordinates."""
    allowed, hidden = sort_out(
        request.group_ids, lambda each: call.may(AclOperation.DESCRIBE, ResourceType.GROUP, each)
    )
    refused = [DescribedGroup(group_id=each, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED) for each in hidden]

    def complete(groups: list[DescribedGroup]) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(groups=refused + [_shown(call, request, each) for each in groups])

    return then(call.broker.groups.describe_consumer_groups(allowed), complete)


def _shown(call: Call, request: ConsumerGroupDescribeRequest, group: DescribedGroup) -> DescribedGroup:
    """A group as the caller may see it: not at all if it uses a topic that they may not see."""
    if group.error_code:
        return group
    if request.include_authorized_operations:
        group.authorized_operations = call.authorized_operations(ResourceType.GROUP, group.group_id)
    topics = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    if all(call.may_topic(AclOperation.DESCRIBE, topic) for topic in topics):
        return group
    return DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The described group uses topics that the client is not authorized to describe.",
    )
