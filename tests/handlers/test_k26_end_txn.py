"""EndTxn (API 26): commit and abort, the epoch bump of v5, and fencing."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode

from .transactional_broker import Producer, TransactionalBroker


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("committed", [True, False])
def test_end_writes_marker_and_moves_last_stable_offset(
    transactional: TransactionalBroker, version: int, committed: bool
) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    assert transactional.produce(producer) is ErrorCode.NONE
    assert transactional.last_stable_offset() == 0
    assert transactional.end(producer, committed=committed, version=version).error_code == ErrorCode.NONE
    assert transactional.last_stable_offset() == 2


def test_v5_bumps_and_returns_epoch(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    assert transactional.produce(producer, version=12) is ErrorCode.NONE
    response = transactional.end(producer, version=5)
    assert (response.producer_id, response.producer_epoch) == (producer.producer_id, producer.epoch + 1)


def test_v4_returns_no_epoch(transactional: TransactionalBroker) -> None:
    producer = transactional.init()
    transactional.add(producer, 0)
    response = transactional.end(producer)
    assert (response.producer_id, response.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)])
def test_fenced_producer_cannot_end(transactional: TransactionalBroker, version: int, code: ErrorCode) -> None:
    producer = transactional.init()
    transactional.init()
    assert transactional.end(producer, version=version).error_code == code


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        (Producer("other", 0, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Producer("", 0, 0), ErrorCode.INVALID_REQUEST),
    ],
)
def test_unknown_id_is_refused(transactional: TransactionalBroker, producer: Producer, code: ErrorCode) -> None:
    assert transactional.end(producer).error_code == code


def test_end_without_transaction_is_invalid_txn_state(transactional: TransactionalBroker) -> None:
    assert transactional.end(transactional.init()).error_code == ErrorCode.INVALID_TXN_STATE
