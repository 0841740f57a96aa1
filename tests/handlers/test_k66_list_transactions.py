"""ListTransactions (API 66): filters by state, producer id, duration and pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from .transactional_broker import TransactionalBroker


def names(broker: TransactionalBroker, version: int = 2, **filters: object) -> list[str]:
    response = broker.quietly(ListTransactionsRequest(**filters), ListTransactionsResponse, version=version)
    return sorted(state.transactional_id for state in response.transaction_states)


@pytest.mark.parametrize("version", range(3))
def test_filters_by_state_and_producer_id(transactional: TransactionalBroker, version: int) -> None:
    first, second = transactional.init("first"), transactional.init("second")
    transactional.add(second, 0)
    assert names(transactional, version) == ["first", "second"]
    assert names(transactional, version, state_filters=["Ongoing"]) == ["second"]
    assert names(transactional, version, producer_id_filters=[first.producer_id]) == ["first"]


def test_filters_by_duration_and_pattern(transactional: TransactionalBroker) -> None:
    for name in ("old", "new"):
        producer = transactional.init(name)
        transactional.add(producer, 0)
        transactional.world.clock.advance(10)
    assert names(transactional, duration_filter=15_000) == ["old"]
    assert names(transactional, transactional_id_pattern="n.*") == ["new"]


def test_unknown_state_filters_are_returned(transactional: TransactionalBroker) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"])
    response = transactional.quietly(request, ListTransactionsResponse)
    assert (response.unknown_state_filters, response.transaction_states) == (["Nonsense"], [])
