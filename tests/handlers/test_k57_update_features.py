"""UpdateFeatures (57) and UnregisterBroker (64): responses compared with those of Apache Kafka 4.3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conversations.broker import assert_as_kafka

if TYPE_CHECKING:
    from tests.conversations.side_by_side import Talk


@pytest.mark.parametrize("name", ["features_and_brokers"])
def test_responses_are_those_of_kafka(name: str, broker_talk: Talk) -> None:
    assert_as_kafka(name, broker_talk)
