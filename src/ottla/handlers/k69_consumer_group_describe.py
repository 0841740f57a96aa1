"""ConsumerGroupDescribe (69): describe consumer groups with their members (KIP-848). v1 adds the member type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import describe_authorized, map_response, require_protocol
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k69_consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ConsumerGroupDescribeRequest, version: int, code: ErrorCode, message: str | None
) -> ConsumerGroupDescribeResponse:
    """Return the error for every group."""
    return ConsumerGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
    )


@api(
    69,
    versions=(0, 1),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("group_ids"),
)
def consumer_group_describe(
    call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse | Pending[ConsumerGroupDescribeResponse]:
    """Describe each group that this node coordinates."""
    require_protocol(call, "consumer")
    groups = describe_authorized(
        call,
        request,
        DescribedGroup,
        call.broker.groups.describe_consumer_groups,
        _topics,
        "The described group uses topics that the client is not authorized to describe.",
    )
    return map_response(groups, lambda described: ConsumerGroupDescribeResponse(groups=described))


def _topics(group: DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
