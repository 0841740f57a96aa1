"""WriteShareGroupState (85): the leader of a partition keeps what changed in it for a share group.

v1 adds the number of deliveries that are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.share_group_calls import for_each_partition
from ottla.protocol.error_texts import error_text
from ottla.protocol.messages.k85_write_share_group_state import (
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)
from ottla.shares.environment import StateBatch

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.k85_write_share_group_state import PartitionData
    from ottla.shares.coordinator import StateAnswer
    from ottla.shares.environment import SharePartitionKey


def on_error(
    request: WriteShareGroupStateRequest, version: int, code: ErrorCode, message: str | None
) -> WriteShareGroupStateResponse:
    """Nothing was done to any partition."""
    return WriteShareGroupStateResponse(
        results=[
            WriteStateResult(
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


@api(85, versions=(0, 1), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=on_error)
def write_share_group_state(
    call: Call, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse | Pending[WriteShareGroupStateResponse]:
    """Change the state of each partition."""
    coordinator = call.broker.share_coordinator

    def ask(key: SharePartitionKey, asked: PartitionData) -> Pending[StateAnswer]:
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in asked.state_batches
        ]
        return coordinator.write(
            key, asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, batches
        )

    return for_each_partition(
        request.group_id,
        request.topics,
        ask,
        _result,
        lambda results: WriteShareGroupStateResponse(
            results=[WriteStateResult(topic_id=topic_id, partitions=each) for topic_id, each in results]
        ),
        "write share group state",
    )


def _result(partition: int, answer: StateAnswer, message: str | None) -> PartitionResult:
    return PartitionResult(partition=partition, error_code=answer.error, error_message=message)
