"""InitializeShareGroupState (83): the group coordinator has the state of a share partition begun, or begun anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import for_each_partition
from ottla.protocol.error_texts import error_text
from ottla.protocol.messages.k83_initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.shares.coordinator import StateAnswer


def on_error(
    request: InitializeShareGroupStateRequest, version: int, code: ErrorCode, message: str | None
) -> InitializeShareGroupStateResponse:
    """Nothing was done to any partition."""
    return InitializeShareGroupStateResponse(
        results=[
            InitializeStateResult(
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


@api(83, versions=(0, 0), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=on_error)
def initialize_share_group_state(
    call: Call, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse | Pending[InitializeShareGroupStateResponse]:
    """Begin to keep the state of each partition."""
    coordinator = call.broker.share_coordinator

    return for_each_partition(
        request.group_id,
        request.topics,
        lambda key, asked: coordinator.initialize(key, asked.state_epoch, asked.start_offset),
        _result,
        lambda results: InitializeShareGroupStateResponse(
            results=[InitializeStateResult(topic_id=topic_id, partitions=each) for topic_id, each in results]
        ),
        "initialize share group state",
    )


def _result(partition: int, answer: StateAnswer, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=answer.error, error_message=message)
