"""The checks of `Cluster.history()`: each promise, broken and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing import Cluster
from ottla.testing.control.run_history import Check

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders"]) as running:
        yield running


def checks(cluster: Cluster) -> list[Check]:
    return [violation.check for violation in cluster.history().violations()]


def commit(cluster: Cluster, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def test_clean_history_has_no_violation(cluster: Cluster) -> None:
    cluster.produce("orders", "book", key="alice")
    cluster.produce("orders", "lamp", key="alice")
    assert checks(cluster) == []


def test_record_that_was_sent_once_and_stored_twice_is_a_duplicate(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.produce("orders", "book")
    (violation,) = cluster.history().violations()
    assert str(violation) == "duplicate: key null, value 'book' in orders-0 is at offsets 0, 1"


def test_record_that_is_sent_twice_is_no_duplicate(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.produce("orders", "book")
    history = cluster.history()
    assert history.violations(sent=history.contents()) == []


def test_commit_before_processing_is_found(cluster: Cluster) -> None:
    history = cluster.history()
    for order in ("book", "lamp"):
        cluster.produce("orders", order)
    history.processed("orders", 0, 0)
    commit(cluster, 2)
    history.processed("orders", 0, 1)
    assert checks(cluster) == [Check.UNPROCESSED]


def test_commit_after_processing_is_no_violation(cluster: Cluster) -> None:
    history = cluster.history()
    cluster.produce("orders", "book")
    history.processed("orders", 0, 0)
    commit(cluster, 1)
    assert checks(cluster) == []


def test_open_and_aborted_transactions_are_found(cluster: Cluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "shop"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", "book")
    producer.flush(60)
    assert checks(cluster) == [Check.HANGING]

    history = cluster.history()
    history.processed("orders", 0, 0)
    producer.abort_transaction(60)
    assert checks(cluster) == [Check.ABORTED]


def test_reset_starts_a_new_history(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.produce("orders", "book")
    cluster.reset()
    assert checks(cluster) == []


def test_record_is_appended_to_the_partition_of_its_key() -> None:
    with Cluster(topics=["orders:3"]) as cluster:
        partition, offset = cluster.produce("orders", "book", key="21", headers={"trace": "x"}, timestamp_ms=5)
        (record,) = cluster.wait_for_records("orders", 1)
        assert (partition, offset) == (0, 0)
        assert (record.key, record.value, record.timestamp) == (b"21", b"book", 5)
        assert record.headers == (("trace", b"x"),)


def test_waiting_for_records_that_do_not_come_says_how_many_there_are(cluster: Cluster) -> None:
    cluster.produce("orders", "book")
    with pytest.raises(TimeoutError, match=r"orders has 1 of 2 records after 0\.01 s"):
        cluster.wait_for_records("orders", 2, timeout=0.01)


def test_producing_to_a_missing_topic_names_it(cluster: Cluster) -> None:
    with pytest.raises(KeyError, match="there is no topic shop"):
        cluster.produce("shop", "book")
