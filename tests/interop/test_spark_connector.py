"""Spark's Kafka connector on ottla and ottla's Spark format on Apache Kafka: equal rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.spark.session import SparkSetupError, check_setup
from ottla.testing import Cluster
from tests.markers import markers_written

from .spark_jars import JarsMissingError, connector_jars

if TYPE_CHECKING:
    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

JOB = Path(__file__).parent / "spark_connector.py"
RECORDS = 1000
SECONDS = 300  # a guard


def fill(bootstrap: str) -> None:
    """A topic of everything that a record may have, one with transactions, and two for the sinks."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = {"spark-plain": 3, "spark-transactions": 1, "spark-streamed": 2, "spark-written": 2}
    forever = {"retention.ms": "-1"}
    topics = [NewTopic(name, count, 1, config=forever) for name, count in partitions.items()]
    for made in admin.create_topics(topics).values():
        made.result(SECONDS)
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    producer = Producer({**settings, "linger.ms": 5, "compression.type": "zstd"})
    for number in range(RECORDS):
        producer.produce(
            "spark-plain",
            key=None if number % 5 == 0 else f"key {number % 17}",
            value=f"value {number}",
            partition=number % 3,
            timestamp=1_700_000_000_000 + number,
            headers=[("a", str(number)), ("a", None), ("b", b"\x00\xff")] if number % 2 else None,
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    writer = Producer({**settings, "transactional.id": "spark", "transaction.timeout.ms": 600_000, "linger.ms": 0})
    writer.init_transactions(SECONDS)
    for number in range(8):
        writer.begin_transaction()
        for index in range(5):
            writer.produce("spark-transactions", value=f"{number}/{index}", partition=0)
        assert writer.flush(SECONDS) == 0
        if number % 2:
            writer.abort_transaction(SECONDS)
        else:
            writer.commit_transaction(SECONDS)
    markers_written(bootstrap)


@pytest.fixture(scope="module")
def results(apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job saw on both brokers."""
    try:
        check_setup()
        jars = connector_jars()
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(f"Spark's connector cannot run here: {problem}")
    folder = tmp_path_factory.mktemp("connector")
    with Cluster(data_dir=str(folder / "data")) as cluster:
        fill(cluster.bootstrap)
        fill(apache_kafka.bootstrap)
        clusters = [
            f"ottla={cluster.bootstrap}={folder / 'data'}",
            f"kafka={apache_kafka.bootstrap}={apache_kafka.log_dir}",
        ]
        done = subprocess.run(
            [sys.executable, str(JOB), jars, str(folder), *clusters],
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
            cwd=folder,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert lines, (done.stdout + done.stderr)[-8000:]
    answer: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return answer


@pytest.mark.parametrize("broker", ["ottla", "kafka"])
def test_both_formats_return_same_columns_and_rows(results: dict[str, Any], broker: str) -> None:
    assert results[broker]["schemas"]["ottla"] == results[broker]["schemas"]["kafka"]
    assert results[broker]["rows"] == RECORDS
    assert results[broker]["ottla differs"] == []


@pytest.mark.parametrize("broker", ["ottla", "kafka"])
def test_directory_of_running_broker_has_same_rows(results: dict[str, Any], broker: str) -> None:
    assert results[broker]["ottla-log differs"] == []


@pytest.mark.parametrize("broker", ["ottla", "kafka"])
def test_both_formats_read_committed_rows(results: dict[str, Any], broker: str) -> None:
    expected = sorted(f"{number}/{index}" for number in range(0, 8, 2) for index in range(5))
    assert results[broker]["committed"] == {"kafka": expected, "ottla": expected}
    assert results[broker]["uncommitted"] == {"kafka": 40, "ottla": 40}


@pytest.mark.parametrize("broker", ["ottla", "kafka"])
def test_connector_streams_into_its_sink(results: dict[str, Any], broker: str) -> None:
    assert results[broker]["streamed"] == {"rows": RECORDS, "distinct": RECORDS}


@pytest.mark.parametrize("broker", ["ottla", "kafka"])
def test_connector_writes_batch(results: dict[str, Any], broker: str) -> None:
    assert results[broker]["written"] == 200
