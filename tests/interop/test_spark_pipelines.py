"""`ottla pipeline` as people use it: commands, a broker, a second run of a Declarative Pipeline, a dry run, tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.pipeline import find_pipeline
from ottla.spark.session import SparkSetupError, check_setup

from .ottla_node import OttlaNode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop
SETTINGS = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"]
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


def pipeline(*arguments: str, ottla: OttlaNode) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", "pipeline", *arguments]
    environment = {**os.environ, "OTTLA_BOOTSTRAP": ottla.bootstrap, "SPARK_SUBMIT_OPTS": QUICK_JVM}
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
