"""EndTxn (API 26): commit or abort a transaction.

v2 adds PRODUCER_FENCED, v3 is flexible, v4 adds TRANSACTION_ABORTABLE, v5 bumps the producer's epoch and returns it
(KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from ottla.transactions.states import end_txn_version, fencing_error

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.errors import ErrorCode


def on_error(request: EndTxnRequest, version: int, code: ErrorCode, message: str | None) -> EndTxnResponse:
    """Return the error."""
    return EndTxnResponse(error_code=code)


@api(26, versions=(0, 5), acl=access.transactional_id(AclOperation.WRITE), on_error=on_error)
def end_txn(call: Call, request: EndTxnRequest) -> Pending[EndTxnResponse]:
    """Commit or abort the transaction; respond once that is durable, before the markers are written."""
    ended = call.broker.transactions.end_transaction(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        end_txn_version(call.version),
    )
    return ended.map(
        lambda result: EndTxnResponse(
            error_code=fencing_error(result.error, call.api_key, call.version),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )
    )
