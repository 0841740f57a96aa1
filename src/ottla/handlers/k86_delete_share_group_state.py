"""DeleteShareGroupState (API 86): the group coordinator deletes the state of share partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_state import StateApi
from ottla.handlers.splitting import divide_by
from ottla.protocol.messages.k86_delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending


API = StateApi("delete share group state", DeleteShareGroupStateResponse, DeleteStateResult, PartitionResult)


@api(
    86,
    versions=(0, 0),
    acl=access.cluster(AclOperation.CLUSTER_ACTION),
    on_error=API.on_error,
    split=divide_by("topics.partitions"),
)
def delete_share_group_state(
    call: Call, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse | Pending[DeleteShareGroupStateResponse]:
    """Delete the state of each partition."""
    coordinator = call.broker.share_coordinator

    return API.for_each_partition(request, lambda key, _: coordinator.delete(key))
