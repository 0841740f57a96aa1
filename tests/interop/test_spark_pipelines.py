"""`ottla pipeline` as people use it: commands, a broker, a second run of a Declarative Pipeline, a dry run, tests."""

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
from ottla.client.topics import create_topic
from ottla.spark.pipeline import RunSettings, find_pipeline, start
from ottla.spark.session import SparkSetupError, check_setup

from ..spark.test_pipeline_examples import EXAMPLES, load
from .ottla_node import OttlaNode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.interop
SETTINGS = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"]
# What begins and ends in a minute has no use for an optimising compiler.
STARTS = 5  # Spark gives a Python worker ten seconds to start; on a busy machine that may not do
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
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, env=environment)


def send(ottla: OttlaNode, topic: str, rows: list[dict[str, Any]], key: str) -> None:
    with Client(ottla.bootstrap) as client:
        producer = Producer(client, transactional_id="shop")
        producer.initialize()
        for row in rows:
            producer.send(topic, str(row[key]).encode(), json.dumps(row).encode())
        producer.commit()


def test_a_declarative_pipeline_runs_twice_and_takes_only_what_is_new(ottla: OttlaNode, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert pipeline("init", str(folder), "--declarative", ottla=ottla).returncode == 0
    with Client(ottla.bootstrap) as client:
        create_topic(client, "orders", partitions=3)
    for run in (1, 2):
        send(ottla, "orders", [{"customer": f"c{n % 3}", "amount": n} for n in range(30)], "customer")
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


def test_the_sessions_example_agrees_with_plain_python_though_its_driver_was_killed(
    ottla: OttlaNode, tmp_path: Path
) -> None:
    plain = load(EXAMPLES / "sessions")
    folder = tmp_path / "sessions"
    shutil.copytree(EXAMPLES / "sessions", folder)
    with Client(ottla.bootstrap) as client:
        create_topic(client, "clicks", partitions=3)
        create_topic(client, "sessions", partitions=2)
    clicks = plain.shop_traffic(seed=11, users=4, minutes=150)
    send(ottla, "clicks", clicks, "user")
    begun = find_pipeline(folder)
    config = dict(each.split("=") for each in SETTINGS if "=" in each)
    environment = {"OTTLA_OUTPUT": str(tmp_path / "output"), "OTTLA_ROWS_PER_BATCH": "15"}
    for _ in range(STARTS):
        settings = RunSettings(ottla.bootstrap, master="local[2]", config=config)
        driver = start(begun, settings, environment={**environment, "SPARK_SUBMIT_OPTS": QUICK_JVM})
        try:
            reached = _wait_for_batch(begun.state / "checkpoints" / "sessions-to-topic" / "commits" / "1", driver)
        finally:
            _kill(driver)
        if reached:
            break
    else:
        pytest.fail(begun.log_file.read_text()[-4000:])
    # Time goes on, so that the last sessions end; this one stays open.
    send(ottla, "clicks", [{"user": "nobody", "at": int(clicks[-1]["at"]) + 600 * plain.MINUTE, "page": "/"}], "user")
    done = pipeline("run", str(folder), "--once", "--restarts", "5", *SETTINGS, ottla=ottla, **environment)
    assert done.returncode == 0, done.stdout + done.stderr + begun.log_file.read_text()[-4000:]
    names = ("user", "start", "end", "clicks", "orders", "spent")
    with Client(ottla.bootstrap) as client:
        ends = {each: found.end for each, found in bounds(client, "sessions", [0, 1]).items()}
        read = RecordReader(client, "sessions", {0: 0, 1: 0}, until=ends)
        found = [json.loads(each.record.value or b"") for each in read]
    expected = sorted(plain.plain_sessions(clicks))
    assert sorted(tuple(row[name] for name in names) for row in found) == expected
    table = _table(tmp_path / "output" / "sessions")
    assert sorted((row["user"], row["clicks"], row["orders"], row["spent"]) for row in table) == sorted(
        (row[0], *row[3:]) for row in expected
    )


def _wait_for_batch(commit: Path, driver: subprocess.Popen[bytes]) -> bool:
    """Whether a batch was committed while the driver lived."""
    end = time.monotonic() + 600
    while not commit.exists():
        if driver.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _kill(driver: subprocess.Popen[bytes]) -> None:
    """The driver and its JVM at once, as in a power cut; Python workers end with the JVM."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == driver.pid:
                os.kill(int(stat.parent.name), signal.SIGKILL)
    driver.kill()
    driver.wait()


def test_a_dry_run_names_queries_and_mistakes_and_the_tests_of_a_new_pipeline_pass(
    ottla: OttlaNode, tmp_path: Path
) -> None:
    folder = tmp_path / "spending"
    assert pipeline("init", str(folder), ottla=ottla).returncode == 0
    (folder / "topics.txt").write_text("dry-orders:1\nspending:1\n")
    text = (folder / "pipeline.py").read_text().replace('"orders")', '"dry-orders")')
    (folder / "pipeline.py").write_text(text)
    done = pipeline("dry-run", str(folder), *SETTINGS, ottla=ottla)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "spending -> ottla: struct<key:string,value:string>" in done.stdout
    assert not (folder / ".ottla" / "checkpoints").exists()
    assert pipeline("test", str(folder), ottla=ottla).returncode == 0
    (folder / "pipeline.py").write_text(text.replace('f.col("customer").alias("key")', 'f.uuid().alias("key")'))
    done = pipeline("dry-run", str(folder), *SETTINGS, ottla=ottla)
    assert done.returncode == 1
    assert "uuid() is not deterministic" in done.stderr
