"""DescribeTransactions (API 65): the state of transactional ids."""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k65_describe_transactions as k65

from .transactional_broker import TOPIC, TransactionalBroker


def describe(broker: TransactionalBroker, transactional_id: str = "app") -> k65.TransactionState:
    request = k65.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return broker.quietly(request, k65.DescribeTransactionsResponse).transaction_states[0]


def test_states_follow_the_transaction(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    assert describe(transactional).transaction_state == "Empty"
    transactional.add(producer, 0, 1)
    ongoing = describe(transactional)
    assert (ongoing.transaction_state, ongoing.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (ongoing.producer_id, ongoing.producer_epoch) == (producer.producer_id, producer.epoch)
    assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [(TOPIC, [0, 1])]
    transactional.end(producer, committed=False)
    assert describe(transactional).transaction_state == "CompleteAbort"


def test_unknown_or_empty_id_is_an_error(transactional: TransactionalBroker) -> None:
    assert describe(transactional, "none").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(transactional, "").error_code == ErrorCode.INVALID_REQUEST
