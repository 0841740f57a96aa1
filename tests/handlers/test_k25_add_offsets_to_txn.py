"""AddOffsetsToTxn (API 25): a group's partition of `__consumer_offsets` becomes part of a transaction."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.k65_describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

from .transactional_broker import Producer, TransactionalBroker


def add_offsets(broker: TransactionalBroker, producer: Producer, version: int = 4) -> ErrorCode:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="group",
    )
    return ErrorCode(broker.quietly(request, AddOffsetsToTxnResponse, version=version).error_code)


@pytest.mark.parametrize("version", range(5))
def test_offsets_partition_is_added(transactional: TransactionalBroker, version: int) -> None:
    assert add_offsets(transactional, transactional.init(), version) is ErrorCode.NONE
    described = transactional.quietly(
        DescribeTransactionsRequest(transactional_ids=["app"]), DescribeTransactionsResponse
    ).transaction_states[0]
    assert described.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("__consumer_offsets", [0])]


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_fenced_producer_is_refused(transactional: TransactionalBroker, version: int, code: ErrorCode) -> None:
    producer = transactional.init()
    transactional.init()
    assert add_offsets(transactional, producer, version) is code


def test_unknown_transactional_id_is_invalid_mapping(transactional: TransactionalBroker) -> None:
    assert add_offsets(transactional, Producer("other", 1, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
