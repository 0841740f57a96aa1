"""ReadShareGroupState (API 84): the leader of a share partition reads its persisted state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
from ottla.handlers.splitting import divide_by
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


@api(
    84,
    versions=(0, 0),
    acl=access.cluster(AclOperation.CLUSTER_ACTION),
    on_error=API.on_error,
    split=divide_by("topics.partitions"),
)
def read_share_group_state(
    call: Call, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse | Pending[ReadShareGroupStateResponse]:
    """Return the state of each partition, and fence earlier leader epochs."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(
        request, lambda key, partition: coordinator.read(key, partition.leader_epoch), _state_fields
    )


def _state_fields(state: ShareState) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in state.batches
        ],
    }
