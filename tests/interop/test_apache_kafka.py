"""The harness of the real Kafka that other tests rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .apache_kafka import CONSOLE_CONSUMER, CONSOLE_PRODUCER, TOPICS, ApacheKafka, dump_log

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interop


def test_restart_after_crash_keeps_records(apache_kafka_factory: Callable[..., ApacheKafka]) -> None:
    node = apache_kafka_factory().start()
    node.tool(TOPICS, "--create", "--topic", "kept", "--partitions", "1")
    node.tool(CONSOLE_PRODUCER, "--topic", "kept", stdin=b"one\ntwo\n")
    node.kill()
    node.start()
    read = node.tool(CONSOLE_CONSUMER, "--topic", "kept", "--from-beginning", "--max-messages", "2")
    assert read.split() == ["one", "two"]
    node.stop()
    assert node.complaints() == []
    dump = dump_log(node.log_dir / "kept-0" / "00000000000000000000.log")
    assert "payload: two" in dump


def test_directory_with_static_quorum_starts(apache_kafka_factory: Callable[..., ApacheKafka]) -> None:
    node = apache_kafka_factory(dynamic_quorum=False, node_id=7).start()
    node.tool(TOPICS, "--create", "--topic", "kept")
    node.restart()
    assert node.tool(TOPICS, "--list").split() == ["kept"]
    assert node.node_id == 7
    assert node.complaints() == []
