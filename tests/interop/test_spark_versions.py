"""Other versions of pyspark than the default: 4.3.0 does all, 4.1 reads, writes and exports to Iceberg."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.session import SparkSetupError, check_setup

from .ottla_node import OttlaNode
from .spark_jars import CACHE, JarsMissingError, iceberg_jars

pytestmark = pytest.mark.interop
ROWS = 60
# What begins and ends in a minute has no use for an optimising compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pyspark_of(version: str) -> Path:
    """A folder with that pyspark alone, kept for the next time."""
    home = CACHE / "pyspark"
    home.mkdir(parents=True, exist_ok=True)
    target = home / version
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = target.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part)]
            done = subprocess.run([*pip, f"pyspark=={version}"], capture_output=True, text=True, timeout=1200)
            if done.returncode != 0:
                shutil.rmtree(part, ignore_errors=True)
                pytest.skip(f"pyspark {version} cannot be had here: {done.stderr.strip().splitlines()[-1]}")
            part.rename(target)
    return target


def smoke(version: str, tmp_path: Path, jars: str = "") -> dict[str, Any]:
    try:
        check_setup()
    except SparkSetupError as problem:
        pytest.skip(str(problem))
    installed = pyspark_of(version)
    with OttlaNode(tmp_path / "data") as ottla:
        with Client(ottla.bootstrap) as client:
            for topic in ("orders", "copied", "streamed"):
                create_topic(client, topic, partitions=2)
            producer = Producer(client)
            for number in range(ROWS):
                value = json.dumps({"n": number}).encode()
                producer.send("orders", b"%d" % number, value, partition=number % 2)
            producer.flush()
        spec = {"bootstrap": ottla.bootstrap, "log_dir": str(ottla.log_dir), "folder": str(tmp_path), "jars": jars}
        command = [sys.executable, "-m", "tests.spark.version_smoke", json.dumps(spec)]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": f"{installed}:{root}", "SPARK_SUBMIT_OPTS": QUICK_JVM}
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["version"] == version
    assert found["network"] == [ROWS, 20, ROWS // 2]
    assert (found["log"], found["copied"], found["parquet"]) == (ROWS, ROWS, [ROWS, 0])
    return found


def test_on_4_3_all_is_as_on_4_2(tmp_path: Path) -> None:
    found = smoke("4.3.0", tmp_path)
    assert found["streamed"] == ROWS
    assert found["iceberg"].startswith("Iceberg has no runtime for Spark 4.3.0")


def test_on_4_1_tables_and_iceberg_work_and_streams_are_refused(tmp_path: Path) -> None:
    try:
        jars = iceberg_jars()
    except JarsMissingError as problem:
        pytest.skip(str(problem))
    found = smoke("4.1.3", tmp_path, jars)
    assert "streams from ottla need pyspark 4.2 or newer" in found["streamed"]
    assert found["iceberg"] == [ROWS, 0]
    assert found["iceberg rows"] == ROWS
