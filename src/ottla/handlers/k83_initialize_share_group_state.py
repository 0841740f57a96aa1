"""InitializeShareGroupState (83): the group coordinator has the state of a share partition begun, or begun anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
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


@api(83, versions=(0, 0), acl=access.cluster(AclOperation.CLUSTER_ACTION), on_error=API.on_error)
def initialize_share_group_state(
    call: Call, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse | Pending[InitializeShareGroupStateResponse]:
    """Begin to keep the state of each partition."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(
        request, lambda key, asked: coordinator.initialize(key, asked.state_epoch, asked.start_offset)
    )
