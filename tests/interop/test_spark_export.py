"""`ottla export` into Delta and Iceberg tables, and its exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

import fastavro
import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.session import SparkSetupError, check_setup
from tests.ottla_node import OttlaNode

from .spark_jars import JarsMissingError, delta_jars, iceberg_jars, pyspark_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.interop
T = TypeVar("T")
# What begins and ends in a minute has no use for an optimising compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def begin(*arguments: str, pyspark: Path | None = None) -> subprocess.Popen[str]:
    """Start the command, as the leader of a group of processes."""
    command = [sys.executable, "-m", "ottla", "export", *arguments]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JVM}
    if pyspark is not None:
        environment["PYTHONPATH"] = str(pyspark)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)


def export(*arguments: str, pyspark: Path | None = None) -> tuple[int, str, str]:
    """How the command ends, and what it says on both streams."""
    running = begin(*arguments, pyspark=pyspark)
    try:
        out, err = running.communicate(timeout=3600)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        raise
    return running.returncode, out, err


def have(fetch: Callable[[], T]) -> T:
    """What has to be fetched, or the test is left out."""
    try:
        check_setup()
        return fetch()
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(str(problem))


def send(client: Client, run: int, count: int = 50) -> None:
    producer = Producer(client)
    for number in range(count):
        producer.send("orders", b"%d" % number, json.dumps({"n": number, "run": run}).encode())
    producer.flush()


def settings(ottla: OttlaNode, table: Path, kind: str, jars: str) -> list[str]:
    arguments = ["orders", "--to", str(table), "--format", kind, "--value", "json", "--json", "-b", ottla.bootstrap]
    conf = (f"spark.jars={jars}", "spark.sql.shuffle.partitions=2", "spark.driver.memory=1g")
    return [*arguments, "--master", "local[2]", *[word for entry in conf for word in ("--conf", entry)]]


def test_repeated_delta_export_has_each_record_once(tmp_path: Path) -> None:
    jars = have(delta_jars)
    table = tmp_path / "table"
    with OttlaNode(tmp_path / "data") as ottla, Client(ottla.bootstrap, timeout=300) as client:
        create_topic(client, "orders", partitions=2)
        for run in (1, 2):
            send(client, run)
            code, out, err = export(*settings(ottla, table, "delta", jars))
            assert code == 0, out + err
            assert "WARN" not in err  # what Spark logs is none of the reader's affair
            result = json.loads(out)
            assert result["rows"] == 50
            assert result["bytes"] > 0
    added = 0
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                added += json.loads(action["add"]["stats"])["numRecords"]
    assert added == 100


def test_killed_iceberg_export_has_each_record_once(tmp_path: Path) -> None:
    jars, pyspark = have(iceberg_jars), have(lambda: pyspark_of("4.1.3"))
    table = tmp_path / "lake" / "orders"
    with OttlaNode(tmp_path / "data") as ottla, Client(ottla.bootstrap, timeout=300) as client:
        create_topic(client, "orders", partitions=2)
        arguments = settings(ottla, table, "iceberg", jars)
        code, out, err = export(*arguments)  # with the default Spark, for which Iceberg has no runtime
        assert (code, out) == (1, ""), err
        assert "ottla: Iceberg has no runtime for Spark 4.2.0" in err
        assert not table.exists()
        send(client, 1)
        code, out, err = export(*arguments, pyspark=pyspark)
        assert code == 0, out + err
        assert json.loads(out)["rows"] == 50
        send(client, 2)
        killed = begin(*arguments, pyspark=pyspark)
        kill_when(killed, table / "_ottla_export" / "00000002.prepared")
        counts = (table / "_ottla_export" / "00000002.json").exists()  # it may have come so far before it was killed
        send(client, 3, 7)
        code, out, err = export(*arguments, pyspark=pyspark)
        assert code == 0, out + err
        assert json.loads(out)["rows"] == (7 if counts else 57)
    snapshots, rows = iceberg_rows(table)
    assert snapshots == ["1", "2", "3"]
    assert sorted(rows) == sorted((run, n) for run, count in ((1, 50), (2, 50), (3, 7)) for n in range(count))


def kill_when(running: subprocess.Popen[str], file: Path) -> None:
    """SIGKILL the command with its JVM and workers when a file is there; it may have come to its end by then."""
    end = time.monotonic() + 3600
    while not file.exists() and running.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=600)


def iceberg_rows(table: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """The runs that made the table's snapshots, and all rows; by its metadata, without Spark."""
    import pyarrow.parquet as pq

    version = (table / "metadata" / "version-hint.text").read_text().strip()
    metadata = json.loads((table / "metadata" / f"v{version}.metadata.json").read_text())
    rows = []
    for snapshot in metadata["snapshots"]:
        with (table / "metadata" / snapshot["manifest-list"].rpartition("/")[2]).open("rb") as listed:
            manifests = [
                entry for entry in fastavro.reader(listed) if entry["added_snapshot_id"] == snapshot["snapshot-id"]
            ]
        for manifest in manifests:
            with (table / "metadata" / manifest["manifest_path"].rpartition("/")[2]).open("rb") as opened:
                for entry in fastavro.reader(opened):
                    value = pq.read_table(entry["data_file"]["file_path"]).column("value").to_pylist()
                    rows += [(element["run"], element["n"]) for element in value]
    return [
        snapshot["summary"]["ottla-export-run"]
        for snapshot in metadata["snapshots"]
        if int(snapshot["summary"].get("added-records", 0))
    ], rows


def test_invalid_export_exits_before_spark_starts(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with OttlaNode(tmp_path / "data") as ottla:
        code, _, err = export("nothing", "--to", table, "-b", ottla.bootstrap)
        assert code == 4, err
    code, _, err = export("orders", "--to", table, "-b", "127.0.0.1:1")
    assert code == 3, err
    code, _, err = export("orders", "--to", table, "--by", "week")
    assert code == 2, err
    assert "none, date, hour" in err
