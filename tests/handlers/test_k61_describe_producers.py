"""DescribeProducers (API 61): the producer state of partitions."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k61_describe_producers as k61

from .transactional_broker import TOPIC, TransactionalBroker


def describe(broker: TransactionalBroker, partition: int = 0, topic: str = TOPIC) -> k61.PartitionResponse:
    request = k61.DescribeProducersRequest(topics=[k61.TopicRequest(name=topic, partition_indexes=[partition])])
    return broker.quietly(request, k61.DescribeProducersResponse).topics[0].partitions[0]


def test_ongoing_transaction_shows_its_start_offset(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    transactional.produce(producer)
    (state,) = describe(transactional).active_producers
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.epoch)
    assert (state.last_sequence, state.current_txn_start_offset) == (0, 0)


def test_ended_transaction_has_no_start_offset(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    transactional.produce(producer)
    transactional.end(producer)
    (state,) = describe(transactional).active_producers
    assert state.current_txn_start_offset == -1


def test_partition_without_producers_is_empty(transactional: TransactionalBroker) -> None:
    assert describe(transactional, 1).active_producers == []


def test_unknown_partition_is_an_error(transactional: TransactionalBroker) -> None:
    assert describe(transactional, 9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(transactional, topic="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(transactional, topic="not/a/name").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(("expiration_hours", "remaining"), [(24, 0), (72, 1)])
@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_idle_producer_is_removed_after_its_expiration(expiration_hours: int, remaining: int, restart: bool) -> None:
    broker = TransactionalBroker(producer_id_expiration_ms=str(expiration_hours * 3_600_000))
    producer = broker.init()
    broker.add(producer, 0)
    broker.produce(producer)
    broker.end(producer)
    if restart:
        broker.close()
        broker.world.clock.advance(48 * 3600)
        broker.open()
    else:
        broker.world.clock.advance(48 * 3600)
    assert len(describe(broker).active_producers) == remaining
    broker.close()
