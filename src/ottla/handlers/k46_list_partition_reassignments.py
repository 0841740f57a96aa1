"""ListPartitionReassignments (46): list ongoing reassignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.partitions.leadership import list_reassignments
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ListPartitionReassignmentsRequest, version: int, code: ErrorCode, message: str | None
) -> ListPartitionReassignmentsResponse:
    """Return the error."""
    return ListPartitionReassignmentsResponse(error_code=code, error_message=message)


@api(46, versions=(0, 0), acl=access.cluster(AclOperation.DESCRIBE), on_error=on_error)
def list_partition_reassignments(
    call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the reassignments of the given topics, or all."""
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=list_reassignments(call.broker.runtime.image, request.topics)
    )
