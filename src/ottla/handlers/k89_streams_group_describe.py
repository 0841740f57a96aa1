"""StreamsGroupDescribe (89): describe streams groups with their topology, members and tasks (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import describe_authorized, map_response, require_protocol
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k89_streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: StreamsGroupDescribeRequest, version: int, code: ErrorCode, message: str | None
) -> StreamsGroupDescribeResponse:
    """Return the error for every group."""
    return StreamsGroupDescribeResponse(
        groups=[DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids]
    )


@api(
    89,
    versions=(0, 0),
    acl=access.per_resource(access.on_group(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("group_ids"),
)
def streams_group_describe(
    call: Call, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse | Pending[StreamsGroupDescribeResponse]:
    """Describe each group that this node coordinates."""
    require_protocol(call, "streams")
    groups = describe_authorized(
        call,
        request,
        DescribedGroup,
        call.broker.groups.describe_streams_groups,
        _topics,
        "The described group uses topics that the client is not authorized to describe.",
    )
    return map_response(groups, lambda described: StreamsGroupDescribeResponse(groups=described))


def _topics(group: DescribedGroup) -> set[str]:
    subtopologies = (group.topology.subtopologies or ()) if group.topology is not None else ()
    return {
        topic
        for subtopology in subtopologies
        for topic in (
            *subtopology.source_topics,
            *subtopology.repartition_sink_topics,
            *(
                internal.name
                for internal in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
            ),
        )
    }
