"""Conversations about groups, held with Apache Kafka and with ottla: the same answers, the same records."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from .apache_kafka import ApacheKafka
from .group_conversations import CONVERSATIONS, KAFKAS_ANSWERS, SETTINGS, hold, kafkas_answers
from .group_talk import GroupTalk
from .ottla_node import OttlaNode
from .side_by_side import Talk, differences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop


def logs(directory: Path) -> Iterator[bytes]:
    """The segments of `__consumer_offsets`."""
    for path in sorted(directory.glob("__consumer_offsets-*/*.log")):
        yield path.read_bytes()


class Pair:
    """Both brokers, each with its half of every conversation."""

    def __init__(self, kafka: ApacheKafka, ottla: OttlaNode) -> None:
        self.talks = {
            name: GroupTalk(Talk(node.bootstrap, str(node.log_dir)), lambda node=node: logs(node.log_dir))
            for name, node in (("Kafka", kafka), ("ottla", ottla))
        }
        self._held: dict[str, dict[str, dict[str, Any]]] = {}
        for talk in self.talks.values():
            talk.find_coordinators()

    def hold(self, name: str) -> dict[str, dict[str, Any]]:
        """Have a conversation with both, once."""
        if name not in self._held:
            self._held[name] = {broker: hold(name, talk) for broker, talk in self.talks.items()}
        return self._held[name]


@pytest.fixture(scope="module")
def pair(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("groups")
    kafka = ApacheKafka(root / "kafka", settings=SETTINGS)
    ottla = OttlaNode(root / "ottla", settings=SETTINGS)
    with kafka:
        ottla.start()
        try:
            yield Pair(kafka, ottla)
        finally:
            ottla.stop()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_and_write_alike(pair: Pair, name: str) -> None:
    answers = pair.hold(name)
    found = differences(answers["Kafka"], answers["ottla"])
    assert not found, "\n".join(f"{label}\n  {what}" for label, what in found.items())


def test_the_answers_that_are_kept_are_kafkas(pair: Pair) -> None:
    """OTTLA_WRITE_FIXTURES=1 keeps them anew."""
    answers = {name: pair.hold(name)["Kafka"] for name in CONVERSATIONS}
    if os.environ.get("OTTLA_WRITE_FIXTURES"):
        KAFKAS_ANSWERS.parent.mkdir(parents=True, exist_ok=True)
        KAFKAS_ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")
    assert json.loads(json.dumps(answers)) == kafkas_answers()
