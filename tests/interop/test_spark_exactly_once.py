"""The exactly-once sink on ottla and on Apache Kafka 4.3.1, with workers and drivers killed at every step.

One driver process is killed per step, while a query to ottla and a query to Apache Kafka are both at it; the next
driver goes on with what the last one left, with another number of tasks. Then librdkafka counts, with read_committed.
`python -m tests.interop.sink_kills` does so for longer, with changing input and with brokers killed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client import Client
from ottla.client.topics import create_topic
from tests.ottla_node import OttlaNode
from tests.spark.consume import consume
from tests.spark.sink.crashing import TASK_STEPS
from tests.spark.sink.sink_crashes import fence_of, random_case, run_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop
SEED = 431
CASES = 30
ROWS = 30
# JVMs are killed where a step leaves something in Kafka; test_sink_crashes.py has all of them.
STEPS = ("after flush", "before decision", "after decision", "after first end", "after commit")


@pytest.fixture(scope="module")
def brokers(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with OttlaNode(tmp_path_factory.mktemp("exactly-once") / "ottla") as ottla:
        yield {"kafka": apache_kafka.bootstrap, "ottla": ottla.bootstrap}


def make_targets(brokers: dict[str, str], folder: Path, name: str) -> list[dict[str, str]]:
    """A topic on each broker, with a checkpoint and a flag of its own."""
    targets = []
    for kind, bootstrap in brokers.items():
        topic = name.replace(" ", "-")
        with Client(bootstrap, timeout=300) as client:
            create_topic(client, topic, partitions=2, replication_factor=1)
        directory = folder / f"{topic}-{kind}"
        targets.append(
            {
                "bootstrap": bootstrap,
                "topic": topic,
                "checkpoint": f"{directory}-checkpoint",
                "flag": f"{directory}-flag",
            }
        )
    return targets


def drive(spec: dict[str, Any], folder: Path, *, dies: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.sink.exactly_once_driver", json.dumps(spec)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )
    assert ("finished" in done.stdout) != dies, f"{done.stdout}\n{done.stderr[-6000:]}"


def check(targets: list[dict[str, str]]) -> None:
    """Every row of every batch is there once."""
    for target in targets:
        assert Path(target["flag"]).exists(), f"{target['topic']} did not get to its crash"
        batches = [file for file in (Path(target["checkpoint"]) / "commits").iterdir() if file.name.isdigit()]
        assert len(batches) >= 2, f"{target['topic']} has batches {batches}"
        keys = sorted(int(seen.key or b"") for seen in consume(target["bootstrap"], target["topic"]))
        assert keys == list(range(ROWS * len(batches))), target


def test_killed_drivers_write_exactly_once(brokers: dict[str, str], tmp_path: Path) -> None:
    left: list[dict[str, str]] = []
    everything = []
    for step in STEPS:
        targets = make_targets(brokers, tmp_path, f"driver {step}")
        crash = {"step": step, "driver": True, "targets": targets}
        drive({"master": "local[4]", "resume": left, "crashes": [crash]}, tmp_path, dies=True)
        left = targets
        everything += targets
    drive({"master": "local[4]", "resume": left}, tmp_path, dies=False)
    check(everything)


def test_killed_workers_write_exactly_once(brokers: dict[str, str], tmp_path: Path) -> None:
    groups = [
        {"step": step, "driver": False, "targets": make_targets(brokers, tmp_path, f"worker {step}")}
        for step in TASK_STEPS
    ]
    # The second number is how often a task may be tried: Spark itself runs it again.
    drive({"master": "local[4,3]", "crashes": groups}, tmp_path, dies=False)
    check([target for group in groups for target in group["targets"]])


def test_request_interrupted_on_apache_kafka_writes_once(brokers: dict[str, str]) -> None:
    """Seeded accidents at any request, without Spark: kills, zombies, aborted transactions, two in a row."""
    with Client(brokers["kafka"], timeout=300) as client:
        create_topic(client, "sink-crashes", partitions=2, replication_factor=1)
    chance = random.Random(SEED)
    cases = [random_case(chance) for _ in range(CASES)]
    happened = run_cases(brokers["kafka"], "sink-crashes", cases, fence_of(brokers["kafka"]), {})
    assert sum(happened.values()) >= CASES // 4
