"""OffsetForLeaderEpoch (API 23): the end offset of a leader epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k23_offset_for_leader_epoch as k23
from tests.conversations.broker import assert_as_kafka

from .transactional_broker import TOPIC, TransactionalBroker

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk


def end_offset(
    broker: TransactionalBroker, leader_epoch: int, version: int = 4, *, topic: str = TOPIC, current: int = -1
) -> tuple[int, int, int]:
    partition = k23.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=leader_epoch)
    request = k23.OffsetForLeaderEpochRequest(topics=[k23.OffsetForLeaderTopic(topic=topic, partitions=[partition])])
    result = broker.quietly(request, k23.OffsetForLeaderEpochResponse, version=version).topics[0].partitions[0]
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_current_epoch_ends_at_log_end_offset(transactional: TransactionalBroker, version: int) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    transactional.produce(producer)
    assert end_offset(transactional, 0, version) == (ErrorCode.NONE, 0, 1)


def test_epoch_of_the_future_has_no_end(transactional: TransactionalBroker) -> None:
    assert end_offset(transactional, 7) == (ErrorCode.NONE, -1, -1)


@pytest.mark.parametrize(
    ("current", "topic", "code"),
    [
        (1, TOPIC, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_wrong_leader_epoch_or_topic_is_an_error(
    transactional: TransactionalBroker, current: int, topic: str, code: ErrorCode
) -> None:
    assert end_offset(transactional, 0, topic=topic, current=current) == (code, -1, -1)


@pytest.mark.parametrize("name", ["offset_for_leader_epoch"])
def test_responses_are_those_of_kafka(name: str, broker_talk: Talk) -> None:
    assert_as_kafka(name, broker_talk)
