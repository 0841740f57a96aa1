"""Other versions of pyspark: 4.3.0 supports everything, 4.1 reads, writes and exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import create_topic
from ottla.spark.session import SparkSetupError, check_setup
from tests.ottla_node import OttlaNode

from .spark_jars import JarsMissingError, pyspark_of

pytestmark = pytest.mark.interop
ROWS = 60
# What begins and ends in a minute has no use for an optimising compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def smoke(version: str, tmp_path: Path) -> dict[str, Any]:
    try:
        check_setup()
        installed = pyspark_of(version)
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(str(problem))
    with OttlaNode(tmp_path / "data") as ottla:
        with Client(ottla.bootstrap, timeout=300) as client:
            for topic in ("orders", "copied", "streamed"):
                create_topic(client, topic, partitions=2)
            producer = Producer(client)
            for number in range(ROWS):
                value = json.dumps({"n": number}).encode()
                producer.send("orders", b"%d" % number, value, partition=number % 2)
            producer.flush()
        spec = {"bootstrap": ottla.bootstrap, "log_dir": str(ottla.log_dir), "folder": str(tmp_path)}
        command = [sys.executable, "-m", "tests.spark.version_smoke", json.dumps(spec)]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": f"{installed}:{root}", "SPARK_SUBMIT_OPTS": QUICK_JVM}
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert parsed["version"] == version
    assert parsed["network"] == [ROWS, 20, ROWS // 2], parsed
    assert parsed["tasks"] == [1, 2], "filters are pushed down"
    assert (parsed["log"], parsed["copied"], parsed["parquet"]) == (ROWS, ROWS, [ROWS, 0]), parsed
    return parsed


def test_pyspark_4_3_behaves_as_4_2(tmp_path: Path) -> None:
    result = smoke("4.3.0", tmp_path)
    assert result["streamed"] == ROWS


def test_pyspark_4_1_supports_tables_and_refuses_streams(tmp_path: Path) -> None:
    result = smoke("4.1.3", tmp_path)
    assert "streams from ottla need pyspark 4.2 or newer" in result["streamed"]
