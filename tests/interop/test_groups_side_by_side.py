"""Conversations about groups, held with Apache Kafka and with ottla: the same answers, the same records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .group_conversations import CONVERSATIONS, KAFKAS_ANSWERS, SETTINGS, hold
from .group_talk import GroupTalk
from .pair import Pair, both_brokers, segments
from .side_by_side import Talk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def pair(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair[GroupTalk]]:
    with both_brokers(tmp_path_factory.mktemp("groups"), SETTINGS) as nodes:
        yield Pair(
            nodes, lambda node: GroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda: segments(node.log_dir)), hold
        )


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_and_write_alike(pair: Pair[GroupTalk], name: str) -> None:
    pair.assert_alike(name)


def test_the_answers_that_are_kept_are_kafkas(pair: Pair[GroupTalk]) -> None:
    """OTTLA_WRITE_FIXTURES=1 keeps them anew."""
    pair.assert_kept(CONVERSATIONS, KAFKAS_ANSWERS)
