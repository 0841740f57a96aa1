"""Seeded reads and a moved checkpoint: ottla's formats return what Spark's Kafka connector returns, or fail too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.spark.client_settings import NAMES
from ottla.spark.session import SparkSetupError, check_setup
from ottla.testing import Cluster
from tests.spark.network.test_read import delete_records

from .apache_kafka import run_tool
from .spark_differential import DELETED, RECORDS, START, TOPICS
from .spark_jars import JarsMissingError, connector_jars

pytestmark = pytest.mark.interop

JOB = Path(__file__).parent / "spark_differential.py"
CASES = int(os.environ.get("OTTLA_SPARK_CASES", "20"))
FIRST_SEED = int(os.environ.get("OTTLA_SPARK_FIRST_SEED", "0"))


def fill(cluster: Cluster) -> None:
    """Write batches of 30 records, and delete some of them."""
    with Client(cluster.bootstrap) as client:
        for topic, partitions in TOPICS.items():
            cluster.create_topic(topic, partitions)
            for partition in range(partitions if topic != "empty.one" else 0):
                for first in range(0, RECORDS, 30):
                    producer = Producer(client)
                    for number in range(first, first + 30):
                        producer.send(topic, None, b"%d" % number, partition=partition, timestamp=START + number)
                    producer.flush()
    for (topic, partition), offset in DELETED.items():
        delete_records(cluster, topic, partition, offset)
    cluster.create_topic("moving", 2)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the job printed."""
    try:
        check_setup()
        jars = connector_jars()
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(f"Spark's connector cannot run here: {problem}")
    folder = tmp_path_factory.mktemp("differential")
    # The directory is read by a process that cannot ask the broker: its checkpoints must be current.
    configs = {"log.retention.ms": "-1", "log.flush.offset.checkpoint.interval.ms": "100"}
    with Cluster(data_dir=str(folder / "data"), configs=configs) as cluster:
        fill(cluster)
        command = [sys.executable, str(JOB), jars, str(folder), cluster.bootstrap, str(folder / "data")]
        done = subprocess.run(
            [*command, str(FIRST_SEED), str(CASES)],
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
            cwd=folder,
        )
    lines = [line.removeprefix("CASE ") for line in done.stdout.splitlines() if line.startswith("CASE ")]
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return [json.loads(line) for line in lines]


def test_seeded_reads_equal_those_of_connector(answers: list[dict[str, Any]]) -> None:
    cases = [answer for answer in answers if "formats" in answer]
    assert len(cases) == CASES
    differences = []
    for answer in cases:
        connector = answer["formats"].pop("kafka")
        for name, other in answer["formats"].items():
            if "error" in connector and "error" in other:
                continue
            # With minPartitions the connector does not check that a range ends behind its start.
            if "minPartitions" in answer["options"] and "the end is before the start" in other.get("error", ""):
                continue
            if connector != other:
                differences.append((answer["seed"], name, answer["options"], _short(connector), _short(other)))
    assert differences == [], "\n".join(map(str, differences))
    assert sum("rows" in answer["formats"]["ottla"] for answer in cases) > CASES // 4


def _short(result: dict[str, Any]) -> str:
    rows = result.get("rows")
    return str(result) if rows is None else f"{len(rows)} rows: {rows[:3]} ... {rows[-3:]}"


def test_checkpoint_moves_between_connector_and_ottla(answers: list[dict[str, Any]]) -> None:
    moved = next(answer["moved"] for answer in answers if "moved" in answer)
    assert (moved["rows"], moved["distinct"]) == (150, 150)
    assert min(moved["batches"]) >= 2


def test_every_setting_of_kafka_clients_has_an_answer(answers: list[dict[str, Any]]) -> None:
    connectors = set(next(answer["names"] for answer in answers if "names" in answer))
    assert connectors - NAMES == set()
    packages = ("consumer.ConsumerConfig", "producer.ProducerConfig", "admin.AdminClientConfig")
    for package in packages:
        page = run_tool(f"org.apache.kafka.clients.{package}")
        newest = set(re.findall(r'<a id="([a-z0-9.]+)"', page))
        assert len(newest) > 40
        assert newest - NAMES == set()
