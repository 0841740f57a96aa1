"""ElectLeaders (43): elect the preferred leader, or any leader. v1 adds the election type, v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.partitions.leadership import elect_leaders as plan
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k43_elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(request: ElectLeadersRequest, version: int, code: ErrorCode, message: str | None) -> ElectLeadersResponse:
    """Return the error."""
    return ElectLeadersResponse(
        error_code=code if version >= 1 else 0,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=code, error_message=message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or []
        ],
    )


@api(
    43,
    versions=(0, 2),
    acl=access.cluster(AclOperation.ALTER),
    on_error=on_error,
    split=divide_by("topic_partitions.partitions"),
)
def elect_leaders(call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders where needed and possible; each partition has its own error."""
    if request.topic_partitions == []:
        return ElectLeadersResponse()
    call.check_time(request.timeout_ms)
    runtime = call.broker.runtime
    results, records = plan(
        runtime.image, request.election_type, request.topic_partitions, layers=runtime.controller.layers
    )
    runtime.change(records)
    return ElectLeadersResponse(replica_election_results=results)
