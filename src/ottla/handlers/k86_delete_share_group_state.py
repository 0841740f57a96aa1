"""DeleteShareGroupState (86): the group coordinator has the state of share partitions deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import for_each_partition
from ottla.protocol.error_texts import error_text
from ottla.protocol.messages.k86_delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.shares.coordinator import StateAnswer


def on_error(
    request: DeleteShareGroupStateRequest, version: int, code: ErrorCode, message: str | None
) -> DeleteShareGroupStateResponse:
    """Nothing was done to any partition."""
    return DeleteShareGroupStateResponse(
        results=[
            DeleteStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionResult(
                        partition=each.partition, error_code=code, error_message=message or error_text(code)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@api(86, versions=(0, 0), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=on_error)
def delete_share_group_state(
    call: Call, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse | Pending[DeleteShareGroupStateResponse]:
    """Keep the state of these partitions no longer."""
    coordinator = call.broker.share_coordinator

    return for_each_partition(
        request.group_id,
        request.topics,
        lambda key, _: coordinator.delete(key),
        _result,
        lambda results: DeleteShareGroupStateResponse(
            results=[DeleteStateResult(topic_id=topic_id, partitions=each) for topic_id, each in results]
        ),
        "delete share group state",
    )


def _result(partition: int, answer: StateAnswer, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=answer.error, error_message=message)
