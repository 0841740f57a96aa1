"""InitProducerId (API 22): allocate a producer id and epoch, with or without a transactional id.

v2 is flexible, v3 adds the producer's current id and epoch (KIP-360), v4 adds PRODUCER_FENCED (KIP-588).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.transactions.initialize import ProducerIdAndEpoch
from ottla.transactions.states import fencing_error

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.transactions.coordinator import ProducerResult


def on_error(
    request: InitProducerIdRequest, version: int, code: ErrorCode, message: str | None
) -> InitProducerIdResponse:
    """Return an error without a producer id."""
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


@api(
    22,
    versions=(0, 5),
    acl=access.per_resource(
        access.on_transactional_id(AclOperation.WRITE),
        access.on_cluster(AclOperation.IDEMPOTENT_WRITE),
        access.on_topic(AclOperation.WRITE),
    ),
    on_error=on_error,
)
def init_producer_id(call: Call, request: InitProducerIdRequest) -> Pending[InitProducerIdResponse]:
    """Return a producer id and epoch; fence the transactional id's earlier producer."""
    if request.transactional_id is not None:
        call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    elif not call.may_cluster(AclOperation.IDEMPOTENT_WRITE) and not call.may_any(
        AclOperation.WRITE, ResourceType.TOPIC
    ):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    pending = call.broker.transactions.init_producer_id(
        request.transactional_id, request.transaction_timeout_ms, _expected(request)
    )
    return pending.map(lambda result: _response(call, result))


def _expected(request: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    present = (request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH)
    if present == (False, False):
        return None
    if present != (True, True):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)


def _response(call: Call, result: ProducerResult) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=fencing_error(result.error, call.api_key, call.version),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )
