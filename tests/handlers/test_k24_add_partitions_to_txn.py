"""AddPartitionsToTxn (API 24): adding by clients, adding and verifying by brokers."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k24_add_partitions_to_txn as k24

from .transactional_broker import TOPIC, Producer, TransactionalBroker


def add_for(
    broker: TransactionalBroker, producer: Producer, *partitions: int, verify_only: bool = False
) -> list[ErrorCode]:
    """AddPartitionsToTxn as brokers send it."""
    transaction = k24.AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify_only,
        topics=[k24.AddPartitionsToTxnTopic(name=TOPIC, partitions=list(partitions))],
    )
    response = broker.quietly(
        k24.AddPartitionsToTxnRequest(transactions=[transaction]), k24.AddPartitionsToTxnResponse, version=5
    )
    results = response.results_by_transaction[0].topic_results[0].results_by_partition
    return [ErrorCode(result.partition_error_code) for result in results]


@pytest.mark.parametrize("version", range(4))
def test_client_adds_partitions(transactional: TransactionalBroker, version: int) -> None:
    producer = transactional.init()
    assert transactional.add(producer, 0, 1, version=version) == [ErrorCode.NONE] * 2
    assert add_for(transactional, producer, 0, 1, verify_only=True) == [ErrorCode.NONE] * 2


def test_unknown_partition_keeps_all_out(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    expected = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert transactional.add(producer, 0, 9) == expected
    assert add_for(transactional, producer, 0, verify_only=True) == [ErrorCode.TRANSACTION_ABORTABLE]


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_fenced_producer_adds_nothing(transactional: TransactionalBroker, version: int, code: ErrorCode) -> None:
    producer = transactional.init()
    transactional.init()
    assert transactional.add(producer, 0, version=version) == [code]


def test_broker_adds_for_producer(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    assert add_for(transactional, producer, 1) == [ErrorCode.NONE]
    assert add_for(transactional, producer, 1, verify_only=True) == [ErrorCode.NONE]


def test_client_cannot_add_internal_topic(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    code = transactional.add(producer, 0, topic="__consumer_offsets")
    assert code == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_broker_request_without_transactions_gets_empty_response(transactional: TransactionalBroker) -> None:
    response = transactional.quietly(k24.AddPartitionsToTxnRequest(), k24.AddPartitionsToTxnResponse, version=5)
    assert (response.error_code, response.results_by_transaction) == (ErrorCode.NONE, [])
