"""ReadShareGroupStateSummary (API 87): the start offsets of share partitions, without in-flight batches.

v1 adds the delivery complete count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k87_read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.shares.environment import ShareState


API = StateApi(
    "read share group state summary", ReadShareGroupStateSummaryResponse, ReadStateSummaryResult, PartitionResult
)


@api(
    87,
    versions=(0, 1),
    acl=access.cluster(AclOperation.CLUSTER_ACTION),
    on_error=API.on_error,
    split=divide_by("topics.partitions"),
)
def read_share_group_state_summary(
    call: Call, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse | Pending[ReadShareGroupStateSummaryResponse]:
    """Return the state of each partition without its batches."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(request, lambda key, _: coordinator.summary(key), _state_fields)


def _state_fields(state: ShareState) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }
