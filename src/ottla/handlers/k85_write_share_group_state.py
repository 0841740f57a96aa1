"""WriteShareGroupState (API 85): the leader of a share partition persists state changes.

v1 adds the delivery complete count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
from ottla.handlers.splitting import divide_by
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
    from ottla.shares.coordinator import StateResult
    from ottla.shares.environment import SharePartitionKey


API = StateApi("write share group state", WriteShareGroupStateResponse, WriteStateResult, PartitionResult)


@api(
    85,
    versions=(0, 1),
    acl=access.cluster(AclOperation.CLUSTER_ACTION),
    on_error=API.on_error,
    split=divide_by("topics.partitions"),
)
def write_share_group_state(
    call: Call, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse | Pending[WriteShareGroupStateResponse]:
    """Update the state of each partition."""
    coordinator = call.broker.share_coordinator

    def write(key: SharePartitionKey, partition: PartitionData) -> Pending[StateResult]:
        batches = [
            StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)
            for batch in partition.state_batches
        ]
        return coordinator.write(
            key,
            partition.state_epoch,
            partition.leader_epoch,
            partition.start_offset,
            partition.delivery_complete_count,
            batches,
        )

    return API.for_each_partition(request, write)
