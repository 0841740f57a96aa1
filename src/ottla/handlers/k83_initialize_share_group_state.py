"""InitializeShareGroupState (API 83): the group coordinator initializes or resets the state of share partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k83_initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


API = StateApi(
    "initialize share group state", InitializeShareGroupStateResponse, InitializeStateResult, PartitionResult
)


@api(
    83,
    versions=(0, 0),
    acl=access.cluster(AclOperation.CLUSTER_ACTION),
    on_error=API.on_error,
    split=divide_by("topics.partitions"),
)
def initialize_share_group_state(
    call: Call, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse | Pending[InitializeShareGroupStateResponse]:
    """Initialize the state of each partition in the share coordinator."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(
        request, lambda key, partition: coordinator.initialize(key, partition.state_epoch, partition.start_offset)
    )
