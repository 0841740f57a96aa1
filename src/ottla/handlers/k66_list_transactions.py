"""ListTransactions (API 66): the transactional ids that this node coordinates.

v1 adds a filter by duration (KIP-994), v2 by a pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from ottla.broker.session import Call
    from ottla.protocol.errors import ErrorCode


def on_error(
    request: ListTransactionsRequest, version: int, code: ErrorCode, message: str | None
) -> ListTransactionsResponse:
    """Return the error."""
    return ListTransactionsResponse(error_code=code)


@api(66, versions=(0, 2), acl=access.per_resource(access.on_transactional_id(AclOperation.DESCRIBE)), on_error=on_error)
def list_transactions(call: Call, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List the transactional ids that match the filters and that the caller may describe."""
    response = call.broker.transactions.list_transactions(request)
    response.transaction_states = [
        state
        for state in response.transaction_states
        if call.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id)
    ]
    return response
