"""AlterPartitionReassignments (45): move replicas. v1 can forbid a change of the replication factor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.partitions.leadership import alter_reassignments
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: AlterPartitionReassignmentsRequest, version: int, code: ErrorCode, message: str | None
) -> AlterPartitionReassignmentsResponse:
    """Return the error."""
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=partition.partition_index, error_code=code, error_message=message
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


@api(
    45, versions=(0, 1), acl=access.cluster(AclOperation.ALTER), on_error=on_error, split=divide_by("topics.partitions")
)
def alter_partition_reassignments(
    call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start, replace or cancel reassignments; replicas of one process are in sync at once."""
    if request.topics:
        call.check_time(request.timeout_ms)
    runtime = call.broker.runtime
    responses, records = alter_reassignments(
        runtime.image,
        request.topics,
        layers=runtime.controller.layers,
        allow_replication_factor_change=request.allow_replication_factor_change,
    )
    runtime.change(records)
    runtime.complete_reassignments()
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=responses
    )
