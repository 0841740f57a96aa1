"""Fixtures of the handler tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .group_broker import GroupBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def group_broker() -> Iterator[GroupBroker]:
    """Start a broker in virtual time for the tests of the group APIs."""
    broker = GroupBroker()
    yield broker
    broker.close()
