"""InitProducerId (API 22): producer ids, epoch bumps and fencing through the handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from .transactional_broker import TransactionalBroker


def init(broker: TransactionalBroker, version: int = 5, **fields: object) -> InitProducerIdResponse:
    request = InitProducerIdRequest(**{"transactional_id": "app", "transaction_timeout_ms": 60_000, **fields})
    return broker.quietly(request, InitProducerIdResponse, version=version)


@pytest.mark.parametrize("version", range(6))
def test_idempotent_producer_gets_new_id_with_epoch_0(transactional: TransactionalBroker, version: int) -> None:
    first, second = (init(transactional, version, transactional_id=None) for _ in range(2))
    assert (first.error_code, first.producer_epoch, second.producer_epoch) == (0, 0, 0)
    assert second.producer_id == first.producer_id + 1


@pytest.mark.parametrize("version", range(6))
def test_transactional_id_keeps_producer_id_and_bumps_epoch(transactional: TransactionalBroker, version: int) -> None:
    first, second = (init(transactional, version) for _ in range(2))
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_request_gets_error_without_id(
    transactional: TransactionalBroker, fields: dict[str, object], code: ErrorCode
) -> None:
    response = init(transactional, **fields)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)])
def test_stale_epoch_is_fenced_in_words_of_the_version(
    transactional: TransactionalBroker, version: int, code: ErrorCode
) -> None:
    producer = transactional.init()
    transactional.init()
    transactional.init()
    stale = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    assert init(transactional, version, **stale).error_code == code
