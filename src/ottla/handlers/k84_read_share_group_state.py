"""ReadShareGroupState (84): the leader of a partition reads what is kept of it for a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import for_each_partition
from ottla.protocol.error_texts import error_text
from ottla.protocol.messages.k84_read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.shares.coordinator import StateAnswer


def on_error(
    request: ReadShareGroupStateRequest, version: int, code: ErrorCode, message: str | None
) -> ReadShareGroupStateResponse:
    """Nothing was done to any partition."""
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(
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


@api(84, versions=(0, 0), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=on_error)
def read_share_group_state(
    call: Call, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse | Pending[ReadShareGroupStateResponse]:
    """The state of each partition; its earlier leaders are fenced by that."""
    coordinator = call.broker.share_coordinator

    return for_each_partition(
        request.group_id,
        request.topics,
        lambda key, asked: coordinator.read(key, asked.leader_epoch),
        _result,
        lambda results: ReadShareGroupStateResponse(
            results=[ReadStateResult(topic_id=topic_id, partitions=each) for topic_id, each in results]
        ),
        "read share group state",
    )


def _result(partition: int, answer: StateAnswer, message: str | None) -> PartitionResult:
    if answer.error:
        return PartitionResult(partition=partition, error_code=answer.error, error_message=message)
    return PartitionResult(
        partition=partition,
        state_epoch=answer.state.state_epoch,
        start_offset=answer.state.start_offset,
        state_batches=[
            StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in answer.state.batches
        ],
    )
