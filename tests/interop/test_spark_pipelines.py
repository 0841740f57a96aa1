"""`ottla pipeline`: commands, a second run of a Declarative Pipeline, and killed example pipelines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.reading import RecordReader, bounds
from ottla.client.topics import create_topic, delete_topic
from ottla.protocol.errors import KafkaError
from ottla.spark.pipeline.folder import RunSettings, find_pipeline, start
from ottla.spark.session import SparkSetupError, check_setup
from ottla.testing.spark import streamed_rows
from tests.ottla_node import OttlaNode

from ..spark.pipeline.test_examples import EXAMPLES, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.records.iterate import Record

pytestmark = pytest.mark.interop
SETTINGS = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"]
STARTS = 5  # Spark gives a Python worker ten seconds to start; on a busy machine that may not do
# What begins and ends in a minute has no use for an optimising compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    try:
        check_setup()
    except SparkSetupError as problem:
        pytest.skip(str(problem))
    with OttlaNode(tmp_path_factory.mktemp("pipelines") / "data") as node:
        yield node


def pipeline(*arguments: str, ottla: OttlaNode, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", "pipeline", *arguments]
    environment = {**os.environ, "OTTLA_BOOTSTRAP": ottla.bootstrap, "SPARK_SUBMIT_OPTS": QUICK_JVM, **more}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600, env=environment)


def assert_done(ran: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def send(ottla: OttlaNode, topic: str, records: list[tuple[str | None, str | None]]) -> None:
    with Client(ottla.bootstrap, timeout=300) as client:
        producer = Producer(client, transactional_id="shop")
        producer.initialize()
        for record in records:
            key, value = (None if entry is None else entry.encode() for entry in record)
            producer.send(topic, key, value)
        producer.commit()


def by(key: str, rows: list[dict[str, Any]]) -> list[tuple[str | None, str | None]]:
    """Rows as records of JSON, each with one of its columns as key."""
    return [(str(row[key]), json.dumps(row)) for row in rows]


def committed(ottla: OttlaNode, topic: str) -> list[Record]:
    """What a consumer with read_committed sees of a topic."""
    with Client(ottla.bootstrap, timeout=300) as client:
        result = bounds(client, topic, client.topics([topic])[0].partitions)
        ends = {name: bound.end for name, bound in result.items()}
        return [entry.record for entry in RecordReader(client, topic, dict.fromkeys(ends, 0), until=ends)]


def test_declarative_pipeline_second_run_reads_only_new_records(ottla: OttlaNode, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert_done(pipeline("init", str(folder), "--declarative", ottla=ottla))
    with Client(ottla.bootstrap, timeout=300) as client:
        create_topic(client, "orders", partitions=3)
    for run in (1, 2):
        send(ottla, "orders", by("customer", [{"customer": f"c{n % 3}", "amount": n} for n in range(30)]))
        done = pipeline("run", str(folder), "--restarts", "5", *SETTINGS, ottla=ottla)
        assert done.returncode == 0, done.stdout + done.stderr + find_pipeline(folder).log_file.read_text()[-4000:]
        assert "COMPLETED" in done.stdout
        assert sum(row["n"] for row in _table(folder / ".ottla" / "warehouse" / "spending")) == 30 * run
    status = pipeline("status", str(folder), "--json", ottla=ottla)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["state"] == "finished"


def _table(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows: list[dict[str, Any]] = ds.dataset(str(folder), format="parquet").to_table().to_pylist()
    return rows


def test_killed_driver_sessions_match_python(ottla: OttlaNode, tmp_path: Path) -> None:
    plain = load(EXAMPLES / "sessions")
    clicks = plain.shop_traffic(seed=11, users=4, minutes=150)
    # A later record ends the last sessions; its own session stays open.
    last = {"user": "nobody", "at": int(clicks[-1]["at"]) + 600 * plain.MINUTE, "page": "/"}
    example = Example(ottla, "sessions", tmp_path)
    send(ottla, "clicks", by("user", clicks))
    example.kill_at("sessions-to-topic/commits/1")
    send(ottla, "clicks", by("user", [last]))
    example.run_to_the_end()
    names = ("user", "start", "end", "clicks", "orders", "spent")
    result = [json.loads(record.value or b"") for record in committed(ottla, "sessions")]
    expected = sorted(plain.plain_sessions(clicks))
    assert sorted(tuple(row[name] for name in names) for row in result) == expected
    table = streamed_rows(example.output / "sessions")
    assert sorted((row["user"], row["clicks"], row["orders"], row["spent"]) for row in table) == sorted(
        (row[0], *row[3:]) for row in expected
    )


def test_killed_driver_pipeline_matches_python_orders_and_dead_letters(ottla: OttlaNode, tmp_path: Path) -> None:
    plain = load(EXAMPLES / "enrichment")
    orders, payments = plain.traffic(seed=5)
    example = Example(ottla, "enrichment", tmp_path)
    send(ottla, "customers", [(key, json.dumps({"name": name})) for key, name in plain.CUSTOMERS.items()])
    send(ottla, "orders", [(None, text) for text in orders[:50]])
    send(ottla, "payments", [(None, text) for text in payments[:40]])
    example.kill_at("enrichment/offsets/2")
    send(ottla, "orders", [(None, text) for text in orders[50:]])
    send(ottla, "payments", [(None, text) for text in payments[40:]])
    example.run_to_the_end()
    good, dead = plain.plain(orders, payments)
    result = [json.loads(record.value or b"") for record in committed(ottla, "orders-paid")]
    assert sorted(result, key=lambda row: row["order"]) == sorted(good, key=lambda row: row["order"])
    letters = committed(ottla, "orders-dead")
    reasons = [((letter.value or b"").decode(), (letter.headers[0][1] or b"").decode()) for letter in letters]
    assert sorted(reasons) == sorted(dead)
    assert len({letter.headers[1] for letter in letters}) == len(dead)  # each of another place: none was written twice


def test_killed_driver_change_table_matches_dict(ottla: OttlaNode, tmp_path: Path) -> None:
    plain = load(EXAMPLES / "changes")
    changes = plain.customer_changes(seed=3)
    example = Example(ottla, "changes", tmp_path)
    send(ottla, "customers", changes[:80])
    example.kill_at("changes/offsets/2")
    send(ottla, "customers", changes[80:])
    example.run_to_the_end()
    versions = (example.output / "customers").glob("version=*/_SUCCESS")
    newest = max((version.parent for version in versions), key=lambda name: int(name.name.removeprefix("version=")))
    assert sorted((row["key"], row["value"]) for row in _table(newest)) == sorted(plain.plain(changes).items())


class Example:
    """An example's folder copied and its topics made; its driver can be killed in the middle, and started again."""

    def __init__(self, ottla: OttlaNode, name: str, tmp_path: Path) -> None:
        self._ottla = ottla
        self._folder = tmp_path / name
        shutil.copytree(EXAMPLES / name, self._folder)
        self._pipeline = find_pipeline(self._folder)
        self.output = tmp_path / "output"
        self._environment = {"OTTLA_OUTPUT": str(self.output), "OTTLA_ROWS_PER_BATCH": "15"}
        with Client(ottla.bootstrap, timeout=300) as client:
            for word in (self._folder / "topics.txt").read_text().split():
                topic, _, partitions = word.partition(":")
                with contextlib.suppress(KafkaError):  # those that an earlier test left
                    delete_topic(client, topic)
                create_topic(client, topic, partitions=int(partitions))

    def kill_at(self, file: str) -> None:
        """Start the pipeline, and SIGKILL driver and JVM when a file of its checkpoints has come."""
        config = dict(setting.split("=") for setting in SETTINGS if "=" in setting)
        for _ in range(STARTS):
            settings = RunSettings(self._ottla.bootstrap, master="local[2]", config=config)
            environment = {**self._environment, "SPARK_SUBMIT_OPTS": QUICK_JVM}
            driver = start(self._pipeline, settings, environment=environment)
            try:
                reached = _wait_for(self._pipeline.state / "checkpoints" / file, driver)
            finally:
                _kill(driver)
            if reached:
                return
        pytest.fail(self._said())

    def run_to_the_end(self) -> None:
        """Take all that is there."""
        words = ("run", str(self._folder), "--once", "--restarts", "5", *SETTINGS)
        done = pipeline(*words, ottla=self._ottla, **self._environment)
        assert done.returncode == 0, done.stdout + done.stderr + self._said()

    def _said(self) -> str:
        return self._pipeline.log_file.read_text()[-4000:]


def _wait_for(file: Path, driver: subprocess.Popen[bytes]) -> bool:
    """Return whether the file appeared before the driver exited."""
    end = time.monotonic() + 1800
    while not file.exists():
        if driver.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver and its JVM at once, as in a power cut; Python workers end with the JVM."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == driver.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
    driver.kill()
    driver.wait()


def test_dry_run_lists_queries_and_new_pipeline_tests_pass(ottla: OttlaNode, tmp_path: Path) -> None:
    folder = tmp_path / "spending"
    assert_done(pipeline("init", str(folder), ottla=ottla))
    (folder / "topics.txt").write_text("dry-orders:1\nspending:1\n")
    text = (folder / "pipeline.py").read_text().replace('"orders")', '"dry-orders")')
    (folder / "pipeline.py").write_text(text)
    done = assert_done(pipeline("dry-run", str(folder), *SETTINGS, ottla=ottla))
    assert "spending -> ottla: struct<key:binary,value:binary,topic:string," in done.stdout
    assert not (folder / ".ottla" / "checkpoints").exists()
    assert_done(pipeline("test", str(folder), ottla=ottla))


def test_sql_pipeline_writes_tables_and_topic_and_names_wrong_line(ottla: OttlaNode, tmp_path: Path) -> None:
    folder = tmp_path / "sales"
    assert_done(pipeline("init", str(folder), "--template", "sql", ottla=ottla))
    with Client(ottla.bootstrap, timeout=300) as client:
        with contextlib.suppress(KafkaError):  # that an earlier test left
            delete_topic(client, "orders")
        create_topic(client, "orders", partitions=3)
    send(ottla, "orders", by("customer", [{"customer": f"c{n % 3}", "amount": n * 10} for n in range(30)]))
    done = pipeline("run", str(folder), "--restarts", "5", *SETTINGS, ottla=ottla)
    assert done.returncode == 0, done.stdout + done.stderr + find_pipeline(folder).log_file.read_text()[-4000:]
    assert sum(row["n"] for row in _table(folder / ".ottla" / "warehouse" / "spending")) == 29
    amounts = [json.loads(record.value or b"")["amount"] for record in committed(ottla, "large-orders")]
    assert sorted(amounts) == [n * 10.0 for n in range(20, 30)]
    (folder / "transformations" / "large_orders.sql").write_text("-- wrong\nCREATE TEMPORARY VIEW to_x\nAS SELEKT 1;\n")
    done = pipeline("dry-run", str(folder), *SETTINGS, ottla=ottla)
    assert done.returncode == 1
    assert "transformations/large_orders.sql:3: " in done.stderr
    assert "\tat " not in done.stderr
