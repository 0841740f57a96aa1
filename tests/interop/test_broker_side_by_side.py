"""Scripts of requests whose responses from Apache Kafka and ottla must be equal.

The scripts are in `tests/conversations/broker/`; what is meant to differ is listed there, with its reason.
OTTLA_WRITE_FIXTURES=1 records Kafka's answers anew.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.conversations import broker
from tests.conversations.conversation import LONG_MS
from tests.conversations.recording import write_recording
from tests.conversations.side_by_side import Talk
from tests.ottla_node import OttlaNode

from .apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .jvm import Jvm

broker.load_scripts()

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


@pytest.mark.parametrize("name", sorted(broker.SCRIPTS))
def test_both_brokers_answer_alike(name: str, kafka: ApacheKafka, ottla: OttlaNode) -> None:
    transcripts = []
    for node in (kafka, ottla):
        talk = Talk(node.bootstrap, str(node.log_dir))
        try:
            transcripts.append(broker.hold(name, talk))
        finally:
            talk.close()
    if os.environ.get("OTTLA_WRITE_FIXTURES"):
        write_recording(broker.RECORDINGS / f"{name}.txt", transcripts[0])
        settings = {key: value for key, value in kafka.properties().items() if key not in _PLACE}
        broker.SETTINGS_FILE.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    broker.assert_alike(name, *transcripts)
