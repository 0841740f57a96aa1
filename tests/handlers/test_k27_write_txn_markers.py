"""WriteTxnMarkers (API 27): an administrator ends a hanging transaction."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k27_write_txn_markers as k27

from .transactional_broker import TOPIC, Producer, TransactionalBroker


def write_markers(
    broker: TransactionalBroker, producer: Producer, *partitions: int, topic: str = TOPIC, version: int = 2
) -> list[ErrorCode]:
    marker = k27.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[k27.WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))],
    )
    request = k27.WriteTxnMarkersRequest(markers=[marker])
    response = broker.quietly(request, k27.WriteTxnMarkersResponse, version=version)
    return [ErrorCode(result.error_code) for result in response.markers[0].topics[0].partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_abort_marker_moves_last_stable_offset(transactional: TransactionalBroker, version: int) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    transactional.produce(producer)
    assert transactional.last_stable_offset() == 0
    assert write_markers(transactional, producer, 0, version=version) == [ErrorCode.NONE]
    assert transactional.last_stable_offset() == 2


def test_unknown_partition_is_an_error(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    assert write_markers(transactional, producer, 9) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert write_markers(transactional, producer, 0, topic="none") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_negative_producer_id_is_unknown_server_error(transactional: TransactionalBroker) -> None:
    assert write_markers(transactional, Producer("app", -1, 0), 0) == [ErrorCode.UNKNOWN_SERVER_ERROR]
