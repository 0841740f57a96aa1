"""Fixtures of the handler tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .group_broker import GroupBroker
from .share_state_requests import ShareStateRequests
from .transactional_broker import TransactionalBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def group_broker() -> Iterator[GroupBroker]:
    """Start a broker in virtual time for the tests of the group APIs."""
    broker = GroupBroker()
    yield broker
    broker.close()


@pytest.fixture
def transactional() -> Iterator[TransactionalBroker]:
    """Start a broker with the topic `news` and loaded coordinators, for the transaction and share state APIs."""
    broker = TransactionalBroker()
    yield broker
    broker.close()


@pytest.fixture
def share_state(transactional: TransactionalBroker) -> ShareStateRequests:
    """Return the requests of the share state APIs to a broker."""
    return ShareStateRequests(transactional)
