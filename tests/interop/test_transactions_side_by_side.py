"""Conversations about transactions with Apache Kafka and ottla: equal responses, records and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.records.batch import iter_batches
from ottla.records.control import parse_marker
from ottla.records.iterate import iter_records
from ottla.transactions.records import decode_record
from tests.conversations.side_by_side import Talk, assert_alike
from tests.conversations.transactions.catalogue import CONVERSATIONS, RECORDINGS, SETTINGS, hold
from tests.conversations.transactions.talk import TransactionTalk

from .pair import Pair, both_brokers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def pair(kafka_jvm: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair[TransactionTalk]]:
    with both_brokers(tmp_path_factory.mktemp("transactions"), SETTINGS) as nodes:
        yield Pair(nodes, lambda node: TransactionTalk(Talk(node.bootstrap, str(node.log_dir))), hold)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_both_answer_alike(pair: Pair[TransactionTalk], name: str) -> None:
    pair.assert_alike(name)


def test_kafka_answers_as_recorded(pair: Pair[TransactionTalk]) -> None:
    """OTTLA_WRITE_FIXTURES=1 writes the recordings."""
    pair.assert_recorded(CONVERSATIONS, RECORDINGS)


def test_both_write_same_records_and_markers(pair: Pair[TransactionTalk]) -> None:
    """What the conversations left behind, read from the directories of both."""
    for name in CONVERSATIONS:
        pair.hold(name)
    logs = {broker: _Logs(node.log_dir, pair.talks[broker].producers) for broker, node in pair.nodes.items()}
    for what in ("transactions", "markers"):
        kafka, ottla = getattr(logs["Kafka"], what)(), getattr(logs["ottla"], what)()
        assert_alike(kafka, ottla, f"{what}: ")


class _Logs:
    """The logs of a directory, told in words that do not depend on who wrote them."""

    def __init__(self, directory: Path, producers: dict[int, str]) -> None:
        self._directory = directory
        self._producers = producers

    def transactions(self) -> dict[str, Any]:
        transactions: dict[str, Any] = {}
        for folder in sorted(self._directory.glob("__transaction_state-*")):
            for data in _segments(folder):
                for header in iter_batches(data):
                    for record in iter_records(data, header):
                        decoded = decode_record(record.key, record.value)
                        assert decoded is not None
                        name, value = decoded
                        transactions.setdefault(name, []).append(
                            "tombstone" if value is None else self._told(value._asdict())
                        )
        return transactions

    def _told(self, fields: dict[str, Any]) -> dict[str, Any]:
        for name in ("producer_id", "previous_producer_id", "next_producer_id"):
            fields[name] = self._producers.get(fields[name], "an unknown producer")
        for name in ("start_timestamp", "last_update_timestamp"):
            fields[name] = "a time" if fields[name] > 0 else fields[name]
        fields["partitions"] = sorted(map(str, fields["partitions"]))
        fields["state"] = fields["state"].label
        fields["client_transaction_version"] = int(fields["client_transaction_version"])
        return fields

    def markers(self) -> dict[str, Any]:
        markers: dict[str, Any] = {}
        for folder in sorted(path for path in self._directory.iterdir() if path.is_dir()):
            if folder.name.startswith(("__transaction_state", "__cluster", "__consumer_offsets")):
                continue
            if folder.name.endswith("-delete"):  # it may go at any moment
                continue
            for data in _segments(folder):
                for header in iter_batches(data):
                    if header.is_control:
                        (record,) = iter_records(data, header)
                        marker = parse_marker(record.key, record.value)
                        notified = (
                            header.base_offset,
                            self._producers.get(header.producer_id, "an unknown producer"),
                            header.producer_epoch,
                            header.base_sequence,
                            header.is_transactional,
                            marker.control_type.name,
                        )
                        markers.setdefault(folder.name, []).append(list(notified))
        return markers


def _segments(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.log"))]
