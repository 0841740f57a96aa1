"""Dead letters go back to their topics, each once, with their bytes and headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ottla.cli import build
from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds
from ottla.spark.expectations import HEADER
from ottla.spark.pipeline import redrive as redrive_module
from ottla.spark.pipeline.redrive import REDRIVES, RedriveError, default_group, redrive
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.records.iterate import Record

DEAD = "orders-dead"
GROUP = default_group(DEAD)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_topic("orders", 2)
        running.create_topic(DEAD, 2)
        yield running


def bury(client: Client, count: int, topic: str | None = "orders") -> None:
    producer = Producer(client)
    for number in range(count):
        headers: list[tuple[str | bytes, bytes | None]] = [("trace", b"\xff%d" % number)]
        if topic is not None:
            headers += [(f"{HEADER}topic", topic.encode()), (f"{HEADER}exception.message", b"amount")]
        producer.send(DEAD, b"k%d" % number, b"\xfe%d" % number, headers)
    producer.flush()


def records(client: Client, topic: str) -> list[Record]:
    ends = bounds(client, topic, client.topics([topic])[0].partitions, read_committed=True)
    positions = {partition: bound.start for partition, bound in ends.items()}
    until = {partition: bound.end for partition, bound in ends.items()}
    return [read.record for read in RecordReader(client, topic, positions, until=until)]


def test_letters_return_once_with_bytes_and_headers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redrive_module, "LETTERS_PER_TRANSACTION", 7)
    with Client(cluster.bootstrap) as client:
        bury(client, 20)
        assert redrive(client, DEAD, group=GROUP, limit=9).sent == {"orders": 9}
        result = redrive(client, DEAD, group=GROUP)
        assert (result.sent, result.remaining) == ({"orders": 11}, 0)
        assert redrive(client, DEAD, group=GROUP).sent == {}
        back = records(client, "orders")
        assert sorted((record.key or b"", record.value or b"") for record in back) == sorted(
            (b"k%d" % number, b"\xfe%d" % number) for number in range(20)
        )
        names = [[name.decode() if isinstance(name, bytes) else name for name, _ in record.headers] for record in back]
        assert all(row == ["trace", REDRIVES] for row in names)


def test_letter_without_topic_stops_at_it_and_to_sends_it(cluster: Cluster) -> None:
    with Client(cluster.bootstrap) as client:
        bury(client, 3)
        bury(client, 1, topic=None)
        with pytest.raises(RedriveError, match=r"orders-dead-\d offset \d has no header .*--to"):
            redrive(client, DEAD, group=GROUP)
        redrive(client, DEAD, group=GROUP, to="orders")
        assert len(records(client, "orders")) == 4


def test_letter_of_missing_topic_is_refused(cluster: Cluster) -> None:
    with Client(cluster.bootstrap) as client:
        bury(client, 1, topic="gone")
        with pytest.raises(RedriveError, match="came from gone, which does not exist"):
            redrive(client, DEAD, group=GROUP)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build(["pipeline"]), ["pipeline", "redrive", *words])
    return result.exit_code, result.stdout, result.stderr


def test_command_shows_letters_then_sends_them(cluster: Cluster) -> None:
    with Client(cluster.bootstrap) as client:
        bury(client, 2)
    code, output, _ = run(DEAD, "-b", cluster.bootstrap, "--dry-run", "--json")
    shown = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert [(letter["topic"], letter["reason"]) for letter in shown] == [("orders", "amount")] * 2
    assert run(DEAD, "-b", cluster.bootstrap, "--dry-run")[1].startswith("PARTITION")
    code, output, _ = run(DEAD, "-b", cluster.bootstrap, "--json")
    assert (code, json.loads(output)) == (0, {"sent": {"orders": 2}, "remaining": 0})
    assert "nothing to send" in run(DEAD, "-b", cluster.bootstrap)[1]
    assert run("nowhere", "-b", cluster.bootstrap)[0] == 4
