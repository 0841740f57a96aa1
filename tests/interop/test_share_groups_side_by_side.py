"""Conversations about share groups with Apache Kafka and ottla: equal responses, equal records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conversations.shares.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.shares.talk import ShareGroupTalk
from tests.conversations.side_by_side import Talk

from .pair import Pair, both_brokers, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def pair(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair[ShareGroupTalk]]:
    with both_brokers(tmp_path_factory.mktemp("shares"), SETTINGS) as nodes:
        yield Pair(
            nodes,
            lambda node: ShareGroupTalk(
                Talk(node.bootstrap, str(node.log_dir)),
                lambda: segments(node.log_dir, "__consumer_offsets"),
                share_logs=lambda: segments(node.log_dir, "__share_group_state"),
            ),
            hold,
        )


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_and_write_alike(pair: Pair[ShareGroupTalk], name: str) -> None:
    pair.assert_alike(name)


def test_kafka_answers_as_recorded(pair: Pair[ShareGroupTalk]) -> None:
    """OTTLA_WRITE_FIXTURES=1 writes the recordings."""
    pair.assert_recorded(CONVERSATIONS, RECORDINGS)
