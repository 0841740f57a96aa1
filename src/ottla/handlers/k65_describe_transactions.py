"""DescribeTransactions (65): the state of transactional ids, with the partitions of what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from ottla.broker.session import Call


def on_error(
    request: DescribeTransactionsRequest, version: int, code: ErrorCode, message: str | None
) -> DescribeTransactionsResponse:
    """No transaction is described."""
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=each, error_code=code) for each in request.transactional_ids
        ]
    )


@api(
    65,
    versions=(0, 0),
    acl=access.each(access.on_transactional_id(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
)
def describe_transactions(call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Describe each id that this node coordinates."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(call, each) for each in request.transactional_ids]
    )


def _describe(call: Call, transactional_id: str) -> TransactionState:
    """One id, with the topics that the caller may see."""
    if not call.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return TransactionState(
            transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    state = call.broker.transactions.describe(transactional_id)
    state.topics = [each for each in state.topics if call.may_topic(AclOperation.DESCRIBE, each.topic)]
    return state
