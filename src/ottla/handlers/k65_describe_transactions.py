"""DescribeTransactions (API 65): the state of transactional ids with the partitions of their transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.splitting import divide_by
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
    """Return the same error for all transactional ids."""
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(transactional_id=name, error_code=code) for name in request.transactional_ids
        ]
    )


@api(
    65,
    versions=(0, 0),
    acl=access.per_resource(access.on_transactional_id(AclOperation.DESCRIBE), access.on_topic(AclOperation.DESCRIBE)),
    on_error=on_error,
    split=divide_by("transactional_ids"),
)
def describe_transactions(call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Return the state of each transactional id that this node coordinates."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(call, name) for name in request.transactional_ids]
    )


def _describe(call: Call, transactional_id: str) -> TransactionState:
    """Return one id with the topics that the caller may describe."""
    if not call.may(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return TransactionState(
            transactional_id=transactional_id, error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    state = call.broker.transactions.describe(transactional_id)
    state.topics = [topic for topic in state.topics if call.may_topic(AclOperation.DESCRIBE, topic.topic)]
    return state
