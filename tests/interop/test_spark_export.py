"""`ottla export` as a command: twice into Delta, whose own log is then read; and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.session import SparkSetupError, check_setup

from .ottla_node import OttlaNode
from .spark_jars import JarsMissingError, delta_jars

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop
# What begins and ends in a minute has no use for an optimising compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def export(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ottla", "export", *arguments]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JVM}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)


def test_two_runs_into_a_delta_table_add_each_record_once(tmp_path: Path) -> None:
    try:
        check_setup()
        jars = delta_jars()
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(str(problem))
    table = tmp_path / "table"
    with OttlaNode(tmp_path / "data") as ottla, Client(ottla.bootstrap) as client:
        create_topic(client, "orders", partitions=2)
        for run in (1, 2):
            producer = Producer(client)
            for number in range(50):
                producer.send("orders", b"%d" % number, json.dumps({"n": number, "run": run}).encode())
            producer.flush()
            done = export(
                *("orders", "--to", str(table), "--format", "delta", "--value", "json", "-b", ottla.bootstrap),
                *("--master", "local[2]", "--conf", f"spark.jars={jars}", "--json"),
                *("--conf", "spark.sql.shuffle.partitions=2"),
            )
            assert done.returncode == 0, done.stdout + done.stderr
            result = json.loads(done.stdout)
            assert result["rows"] == 50
            assert result["bytes"] > 0
    added = 0
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                added += json.loads(action["add"]["stats"])["numRecords"]
    assert added == 100


def test_what_cannot_be_exported_is_told_by_the_exit_code_before_spark_starts(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with OttlaNode(tmp_path / "data") as ottla:
        missing = export("nothing", "--to", table, "-b", ottla.bootstrap)
        assert missing.returncode == 4, missing.stderr
    nobody = export("orders", "--to", table, "-b", "127.0.0.1:1")
    assert nobody.returncode == 3, nobody.stderr
    wrong = export("orders", "--to", table, "--by", "week")
    assert wrong.returncode == 2, wrong.stderr
    assert "none, date, hour" in wrong.stderr
