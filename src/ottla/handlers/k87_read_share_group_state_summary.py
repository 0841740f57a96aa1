"""ReadShareGroupStateSummary (87): how far a share group has come in partitions, without what is in flight.

v1 adds the number of deliveries that are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import for_each_partition
from ottla.protocol.error_texts import error_text
from ottla.protocol.messages.k87_read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.shares.coordinator import StateAnswer


def on_error(
    request: ReadShareGroupStateSummaryRequest, version: int, code: ErrorCode, message: str | None
) -> ReadShareGroupStateSummaryResponse:
    """Nothing was done to any partition."""
    return ReadShareGroupStateSummaryResponse(
        results=[
            ReadStateSummaryResult(
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


@api(87, versions=(0, 1), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=on_error)
def read_share_group_state_summary(
    call: Call, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse | Pending[ReadShareGroupStateSummaryResponse]:
    """The state of each partition without its batches."""
    coordinator = call.broker.share_coordinator

    return for_each_partition(
        request.group_id,
        request.topics,
        lambda key, _: coordinator.summary(key),
        _result,
        lambda results: ReadShareGroupStateSummaryResponse(
            results=[ReadStateSummaryResult(topic_id=topic_id, partitions=each) for topic_id, each in results]
        ),
        "read share group state summary",
    )


def _result(partition: int, answer: StateAnswer, message: str | None) -> PartitionResult:
    if answer.error:
        return PartitionResult(partition=partition, error_code=answer.error, error_message=message)
    return PartitionResult(
        partition=partition,
        state_epoch=answer.state.state_epoch,
        leader_epoch=answer.state.leader_epoch,
        start_offset=answer.state.start_offset,
        delivery_complete_count=answer.state.delivery_complete_count,
    )
