"""ReadShareGroupState (84): the leader of a partition reads what is kept of it for a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
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
    from ottla.shares.environment import ShareState


API = StateApi("read share group state", ReadShareGroupStateResponse, ReadStateResult, PartitionResult)


@api(84, versions=(0, 0), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=API.on_error)
def read_share_group_state(
    call: Call, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse | Pending[ReadShareGroupStateResponse]:
    """The state of each partition; its earlier leaders are fenced by that."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(request, lambda key, asked: coordinator.read(key, asked.leader_epoch), _found)


def _found(state: ShareState) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in state.batches
        ],
    }
