"""AddOffsetsToTxn (API 25): add the partition of `__consumer_offsets` of a group to a transaction.

v2 adds PRODUCER_FENCED, v3 is flexible, v4 adds TRANSACTION_ABORTABLE. TxnOffsetCommit v5 adds the partition itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.storage.names import TopicPartition
from ottla.transactions.states import TransactionVersion, fencing_error

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: AddOffsetsToTxnRequest, version: int, code: ErrorCode, message: str | None
) -> AddOffsetsToTxnResponse:
    """Return the error."""
    return AddOffsetsToTxnResponse(error_code=code)


@api(
    25,
    versions=(0, 4),
    acl=access.transactional_id(AclOperation.WRITE, access.on_group(AclOperation.READ)),
    on_error=on_error,
)
def add_offsets_to_txn(call: Call, request: AddOffsetsToTxnRequest) -> Pending[AddOffsetsToTxnResponse]:
    """Add the group's partition of `__consumer_offsets` to the transaction."""
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    broker = call.broker
    offsets_partition = TopicPartition(GROUP_METADATA_TOPIC, broker.groups.partition_for(request.group_id))
    added = broker.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [offsets_partition],
        TransactionVersion.TV_0,
    )
    return added.map(lambda code: AddOffsetsToTxnResponse(error_code=fencing_error(code, call.api_key, call.version)))
