"""Commands that need Spark: on a running cluster, on its directory, and with invalid arguments."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from ottla.cli import build
from ottla.testing import Cluster
from tests.testing.clients import completed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("spark")
RECORDS = 60


class World:
    """A cluster on disk with an application that bills orders in transactions."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.bootstrap = cluster.bootstrap
        (self.directory,) = [str(path.parent) for path in folder.rglob("meta.properties")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    topics = ["orders:2", "bills:2", "mirror:2", "twice:1"]
    with Cluster(1, topics=topics, data_dir=str(folder), configs={"log.retention.ms": "-1"}) as cluster:
        settings = {"bootstrap.servers": cluster.bootstrap}
        producer = Producer(settings)
        for number in range(RECORDS):
            for topic in ("orders", "mirror"):
                producer.produce(
                    topic, key=f"k{number}", value=f"v{number}", partition=number % 2, timestamp=1_700_000_000_000
                )
        for value in ("a", "b", "a"):
            producer.produce("twice", key=value, value=value)
        assert producer.flush(60) == 0
        bill(settings)
        completed(cluster, "billing-1")
        yield World(cluster, folder)


def bill(settings: dict[str, str]) -> None:
    """Write a bill for each order in transactions; abort and retry the second transaction."""
    consumer = Consumer({**settings, "group.id": "billing", "enable.auto.commit": False})
    producer = Producer({**settings, "transactional.id": "billing-1"})
    producer.init_transactions(60)
    for round_, (start, end) in enumerate([(0, 20), (20, 40), (20, 40), (40, RECORDS)]):
        producer.begin_transaction()
        for number in range(start, end):
            producer.produce("bills", key=f"k{number}", value=f"bill {number}", partition=number % 2)
        offsets = [TopicPartition("orders", partition, end // 2) for partition in range(2)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        assert producer.flush(60) == 0  # else an abort would only throw away what is not sent yet
        if round_ == 1:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    consumer.close()


def run(*words: str, code: int) -> str:
    result = CliRunner().invoke(build(["analyze"]), ["analyze", *words])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_exactly_once_accepts_cluster_and_its_directory(spark, world):
    live = run("exactly-once", world.bootstrap, "--input", "orders", "--output", "bills", code=0)
    assert live.startswith(f"bills holds each of the {RECORDS} records of orders exactly once")
    assert "does not expose the producer of a record" in live.replace("\n", " ")
    report = json.loads(
        run("exactly-once", world.directory, "--input", "orders", "--output", "bills", "--json", code=0)
    )
    assert report["verdict"].startswith(f"bills holds each of the {RECORDS} records of orders exactly once")
    tables = {table["title"]: table["rows"] for table in report["tables"]}
    offsets = tables["Offsets of orders committed by the writers' groups"]
    assert [row[:1] + row[2:] for row in offsets] == [["billing", 3, 1, 0, RECORDS // 2]] * 2
    committed = [row for row in tables["Transactions"] if row[3] == "commit"]
    assert len(committed) == 2 * 3, "three transactions in two partitions each"
    assert all("with orders-0 to" in row[6] and row[6].endswith("for billing") for row in committed)
    assert any("20 more records were aborted" in note for note in report["notes"])


def test_exactly_once_reports_wrong_output_of_cluster(spark, world):
    output = run("exactly-once", world.bootstrap, "--input", "orders", "--output", "twice", "--by", "value", code=1)
    assert "does not hold each record" in output
    rows = run("exactly-once", world.bootstrap, "--input", "orders", "--output", "bills", "--json", "--sql",
               "select count(*) as bills from output", code=0)  # fmt: skip
    assert json.loads(rows) == {"bills": RECORDS}


def test_diff_compares_cluster_with_directory_and_topic_with_mirror(spark, world):
    same = run("diff", world.directory, world.bootstrap, code=0)
    assert "hold the same" in same
    mirror = run("diff", f"{world.bootstrap}#orders", f"{world.directory}#mirror", code=0)
    assert f"hold the same {RECORDS} records" in mirror.replace("\n", " ")
    other = run("diff", f"{world.bootstrap}#orders", f"{world.bootstrap}#bills", "--by", "position", "--ignore",
                "timestamp", code=1)  # fmt: skip
    assert f"{RECORDS} different" in other.replace("\n", " ")
    assert "value" in other


def test_invalid_cluster_arguments_exit_2(spark, world):
    assert "nowhere" in run("diff", f"{world.bootstrap}#nowhere", f"{world.bootstrap}#orders", code=2)
    assert "nothing" in run("exactly-once", world.directory, "--input", "nothing", "--output", "bills", code=2)
    assert "127.0.0.1:1" in run("diff", "127.0.0.1:1#t", f"{world.bootstrap}#orders", code=2)
    assert "offset or position" in run("diff", world.bootstrap, world.bootstrap, "--by", "luck", code=2)
    assert "header:NAME" in run(
        "exactly-once", world.bootstrap, "--input", "orders", "--output", "bills", "--by", "luck", code=2
    )


LOGS = Path(__file__).parents[2] / "fixtures" / "analysis"
EVENTS = ["dual-assign", "txn-timeout", "client-trace", "rebalances", "lag", "hot-partitions", "anomalies"]


@pytest.mark.parametrize("command", EVENTS)
def test_every_command_accepts_sql(spark, command):
    words = [command, str(LOGS / "kgo.log"), *(["-p", "1"] if command == "client-trace" else [])]
    output = run(*words, "--sql", "select event, count(*) as times from events group by event order by event", code=0)
    assert "group.heartbeat" in output
    (row,) = run(*words, "--json", "--sql", "select count(*) as lines from events", code=0).splitlines()
    assert json.loads(row)["lines"] > 400


def test_invalid_sql_exits_2(spark, world, tmp_path):
    log = str(LOGS / "kgo.log")
    assert "the query failed" in run("dual-assign", log, "--sql", "selekt", code=2)
    assert "nobody" in run("dual-assign", log, "--sql", "select nobody from events", code=2)
    assert "the query failed" in run("diff", world.directory, world.directory, "--sql", "select * from c", code=2)
    assert run("dual-assign", log, "--json", "--sql", "select * from events where false", code=0) == ""
    assert "does not exist" in run("dual-assign", "/not/there", "--sql", "select 1", code=2)


def test_empty_and_truncated_directories_are_reported(spark, world, tmp_path):
    empty, folder = tmp_path / "empty", tmp_path / "folder"
    empty.mkdir()
    folder.mkdir()
    (folder / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    for position in (empty, folder):
        output = run("diff", str(position), world.directory, code=2 if position is empty else 1).replace("\n", " ")
        assert str(position) in output
    cut = tmp_path / "cut"
    shutil.copytree(world.directory, cut)
    for path in cut.rglob("orders-*/*.log"):
        os.truncate(path, path.stat().st_size - 7)
    output = run("diff", world.directory, str(cut), code=1).replace("\n", " ")
    assert "only in A" in output
    page = tmp_path / "report.html"
    run("exactly-once", str(cut), "--input", "orders", "--output", "bills", "--html", str(page), code=1)
    assert "does not hold each record" in page.read_text()
