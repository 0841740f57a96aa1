"""Builds the responses of DescribeTransactions and ListTransactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cluster.expressions import compile_expression
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k65_describe_transactions as described
from ottla.protocol.messages import k66_list_transactions as listed
from ottla.transactions.states import BY_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.transactions.metadata import Partitions, Transaction


def not_described(transactional_id: str, error: ErrorCode) -> described.TransactionState:
    """Return the description of a transactional id that cannot be described."""
    return described.TransactionState(transactional_id=transactional_id, error_code=error)


def describe(transaction: Transaction, partitions: Partitions) -> described.TransactionState:
    """Return the description of a transactional id with the given partitions."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    record = transaction.record
    return described.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transaction.transactional_id,
        transaction_state=record.state.label,
        transaction_timeout_ms=record.timeout_ms,
        transaction_start_time_ms=record.start_timestamp,
        producer_id=record.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[described.TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
    )


def not_listed(error: ErrorCode) -> listed.ListTransactionsResponse:
    """Return the response of a coordinator that cannot list transactions now."""
    return listed.ListTransactionsResponse(error_code=error)


def list_transactions(
    transactions: Iterable[Transaction], request: listed.ListTransactionsRequest, now_ms: int
) -> listed.ListTransactionsResponse:
    """Return the transactions that match all filters of the request; an empty filter matches everything."""
    states = {BY_LABEL[label] for label in request.state_filters if label in BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    duration = request.duration_filter
    expression = request.transactional_id_pattern
    pattern = compile_expression(expression, "Transaction ID pattern") if expression else None
    matching = [
        listed.TransactionState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.label,
        )
        for transaction in transactions
        if (not producer_ids or transaction.producer_id in producer_ids)
        and (not request.state_filters or transaction.state in states)
        and (duration < 0 or now_ms - transaction.record.start_timestamp > duration)
        and (pattern is None or pattern.fullmatch(transaction.transactional_id))
    ]
    unknown = [label for label in dict.fromkeys(request.state_filters) if label not in BY_LABEL]
    return listed.ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=matching)
