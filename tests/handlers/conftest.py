"""Fixtures of the handler tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conversations.broker import recorded_settings
from tests.conversations.side_by_side import Talk
from tests.ottla_node import OttlaNode

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


@pytest.fixture(scope="module")
def broker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """Start a broker with the settings of the recorded Kafka; internal topics of other modules must not show."""
    with OttlaNode(tmp_path_factory.mktemp("broker") / "data", settings=recorded_settings()) as node:
        yield node
        assert [line for line in node.complaints() if "ERROR" in line or "Traceback" in line] == []


@pytest.fixture
def broker_talk(broker_process: OttlaNode) -> Iterator[Talk]:
    """Connect to the broker."""
    connected = Talk(broker_process.bootstrap, str(broker_process.log_dir))
    yield connected
    connected.close()
