"""Conversations about share groups, held with Apache Kafka and with ottla: the same answers, the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .pair import Pair, both_brokers, segments
from .share_group_conversations import CONVERSATIONS, KAFKAS_ANSWERS, SETTINGS, hold
from .share_group_talk import ShareGroupTalk
from .side_by_side import Talk

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


def test_the_answers_that_are_kept_are_kafkas(pair: Pair[ShareGroupTalk]) -> None:
    """OTTLA_WRITE_FIXTURES=1 keeps them anew."""
    pair.assert_kept(CONVERSATIONS, KAFKAS_ANSWERS)
