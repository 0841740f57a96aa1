"""Apache Kafka and ottla answer the same scripts alike.

The scripts are in `scripts/`; what is meant to differ is listed there, with its reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

from tests.conversations.conversation import LONG_MS
from tests.conversations.side_by_side import Talk, differences
from tests.ottla_node import OttlaNode

from . import scripts
from .apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .jvm import Jvm

for _, module, _ in pkgutil.iter_modules(scripts.__path__):
    importlib.import_module(f"{scripts.__name__}.{module}")

pytestmark = pytest.mark.interop

# Where Kafka is told where it listens; the rest of its settings is ottla's too.
_PLACE = ("node.id", "log.dirs", "listeners", "controller.quorum.bootstrap.servers")


@pytest.fixture(scope="module")
def kafka(kafka_jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    settings = {
        # Half a minute after its start Kafka would delete what the scripts write with times of long ago.
        "log.retention.ms": "-1",
        # What a member of a share group has acquired stays its own while a script runs.
        "group.share.record.lock.duration.ms": str(LONG_MS),
        "group.share.max.record.lock.duration.ms": str(LONG_MS),
    }
    with ApacheKafka(tmp_path_factory.mktemp("kafka") / "data", settings=settings) as node:
        yield node


@pytest.fixture(scope="module")
def ottla(kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    settings = {name: value for name, value in kafka.properties().items() if name not in _PLACE}
    with OttlaNode(tmp_path_factory.mktemp("ottla") / "data", settings=settings) as node:
        yield node
        assert [line for line in node.complaints() if "ERROR" in line or "Traceback" in line] == []


@pytest.mark.parametrize("name", sorted(scripts.SCRIPTS))
def test_both_brokers_answer_alike(name: str, kafka: ApacheKafka, ottla: OttlaNode) -> None:
    transcripts = []
    for node in (kafka, ottla):
        talk = Talk(node.bootstrap, str(node.log_dir))
        try:
            talk.clear()
            scripts.SCRIPTS[name](talk)
        except Exception as error:
            last = next(reversed(talk.transcript), "nothing")
            error.add_note(f"{name}, told to {type(node).__name__}, got as far as {last!r}")
            raise
        finally:
            talk.close()
        transcripts.append(talk.transcript)
    found = differences(*transcripts)
    known = scripts.KNOWN_DIFFERENCES[name]
    news = {label: told for label, told in found.items() if label not in known}
    assert not news, "\n".join(f"{label}:\n{told}" for label, told in news.items())
    assert sorted(known) == sorted(found), "a difference that is listed is gone: strike it off"
