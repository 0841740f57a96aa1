"""TxnOffsetCommit (API 28): offsets take effect when their transaction commits."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k09_offset_fetch as k09
from ottla.protocol.messages import k25_add_offsets_to_txn as k25
from ottla.protocol.messages import k28_txn_offset_commit as k28

from .transactional_broker import TOPIC, Producer, TransactionalBroker


def commit_offset(
    broker: TransactionalBroker, producer: Producer, version: int, *, group: str = "group", topic: str = TOPIC
) -> ErrorCode:
    partition = k28.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = k28.TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[k28.TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    response = broker.quietly(request, k28.TxnOffsetCommitResponse, version=version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def add_offsets(broker: TransactionalBroker, producer: Producer) -> None:
    request = k25.AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="group",
    )
    assert broker.quietly(request, k25.AddOffsetsToTxnResponse).error_code == ErrorCode.NONE


def committed_offset(broker: TransactionalBroker) -> int:
    topic = k09.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    group = k09.OffsetFetchRequestGroup(group_id="group", topics=[topic])
    response = broker.quietly(k09.OffsetFetchRequest(groups=[group]), k09.OffsetFetchResponse, version=9)
    return response.groups[0].topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize(("committed", "expected"), [(True, 7), (False, -1)])
def test_offset_counts_after_commit_only(
    transactional: TransactionalBroker, version: int, committed: bool, expected: int
) -> None:
    producer = transactional.init()
    if version < 5:
        add_offsets(transactional, producer)
    assert commit_offset(transactional, producer, version) is ErrorCode.NONE
    assert committed_offset(transactional) == -1
    transactional.end(producer, committed=committed, version=5 if version == 5 else 4)
    assert committed_offset(transactional) == expected


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)])
def test_group_outside_of_transaction_is_refused(
    transactional: TransactionalBroker, version: int, code: ErrorCode
) -> None:
    assert commit_offset(transactional, transactional.init(), version) is code


def test_unknown_topic_is_an_error(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    assert commit_offset(transactional, producer, 5, topic="none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_empty_group_id_is_invalid(transactional: TransactionalBroker) -> None:
    assert commit_offset(transactional, transactional.init(), 5, group="") is ErrorCode.INVALID_GROUP_ID
