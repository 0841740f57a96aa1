"""WriteShareGroupState (85): the leader of a partition keeps what changed in it for a share group.

v1 adds the number of deliveries that are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
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
    from ottla.protocol.messages.k85_write_share_group_state import PartitionData
    from ottla.shares.coordinator import StateAnswer
    from ottla.shares.environment import SharePartitionKey


API = StateApi("write share group state", WriteShareGroupStateResponse, WriteStateResult, PartitionResult)


@api(85, versions=(0, 1), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=API.on_error)
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

    return API.for_each_partition(request, ask)
