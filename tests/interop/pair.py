"""Runs conversations against Apache Kafka and ottla, and records Kafka's responses for runs without it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.conversations.recording import assert_as_recorded, write_recording
from tests.conversations.side_by_side import assert_alike
from tests.ottla_node import OttlaNode

from .apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tests.conversations.conversation import Conversation

C = TypeVar("C", bound="Conversation")
Answers = dict[str, dict[str, Any]]


class Pair(Generic[C]):
    """Both brokers, each with its half of every conversation."""

    def __init__(
        self,
        nodes: Mapping[str, ApacheKafka | OttlaNode],
        talk_to: Callable[[ApacheKafka | OttlaNode], C],
        hold: Callable[[str, C], dict[str, Any]],
    ) -> None:
        self.nodes = nodes
        self.talks = {name: talk_to(node) for name, node in nodes.items()}
        self._hold = hold
        self._held: dict[str, Answers] = {}
        for talk in self.talks.values():
            talk.find_coordinators()

    def hold(self, name: str) -> Answers:
        """Have a conversation with both, once."""
        if name not in self._held:
            self._held[name] = {broker: self._hold_with(broker, name) for broker in self.talks}
        return self._held[name]

    def _hold_with(self, broker: str, name: str) -> dict[str, Any]:
        talk = self.talks[broker]
        try:
            return self._hold(name, talk)
        except Exception as error:
            last = next(reversed(talk.transcript.items()), ("nothing", "nothing"))
            error.add_note(f"{name}, held with {broker}, got as far as {last[0]}: {last[1]}")
            raise

    def assert_alike(self, name: str) -> None:
        """Both answer alike; if not, say where."""
        responses = self.hold(name)
        assert_alike(responses["Kafka"], responses["ottla"], f"{name}: ")

    def assert_recorded(self, names: Iterable[str], folder: Path) -> None:
        """Assert that Kafka answers as recorded. OTTLA_WRITE_FIXTURES=1 records it first."""
        for name in names:
            responses = self.hold(name)["Kafka"]
            if os.environ.get("OTTLA_WRITE_FIXTURES"):
                write_recording(folder / f"{name}.txt", responses)
            assert_as_recorded(folder, name, responses, broker="Kafka")
        assert {path.stem for path in folder.glob("*.txt")} == set(names), "recordings of conversations that are gone"


def segments(directory: Path, topic: str = "__consumer_offsets") -> Iterator[bytes]:
    """The segments of a topic in a log directory."""
    for path in sorted(directory.glob(f"{topic}-*/*.log")):
        yield path.read_bytes()


@contextmanager
def both_brokers(root: Path, settings: Mapping[str, str]) -> Iterator[dict[str, ApacheKafka | OttlaNode]]:
    """Apache Kafka and ottla, running with the same settings."""
    kafka, ottla = ApacheKafka(root / "kafka", settings=settings), OttlaNode(root / "ottla", settings=settings)
    with kafka, ottla:
        yield {"Kafka": kafka, "ottla": ottla}
