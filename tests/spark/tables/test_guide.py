"""The Python blocks of docs/spark.md run in order, as one program, against a new cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client.client import Client
from ottla.client.groups import committed
from ottla.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"
RECORDS = 300


def test_guide_examples_run(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with Cluster(topics=["orders:2"], data_dir=str(data), configs={"log.retention.ms": "-1"}) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        for number in range(RECORDS):
            producer.produce("orders", key=str(number), value=f"order {number}", timestamp=1_700_000_000_000 + number)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "people", "enable.auto.commit": False})
        consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        consumer.close()
        code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S))
        for written, meant in (
            ("localhost:9092", cluster.bootstrap),
            ("/var/lib/ottla", str(data)),
            ('"/lake', f'"{lake}'),
        ):
            assert written in code
            code = code.replace(written, meant)
        namespace: dict[str, Any] = {}
        exec(compile(code, str(GUIDE), "exec"), namespace)
        assert namespace["spark"] is spark
        printed = capsys.readouterr().out
        assert printed.splitlines().count(str(RECORDS)) == 3  # by time, by filter, and through the stream
        assert re.search(r"\|\s*people\|orders\|\s*0\|\s*7\|", printed)
        with Client(cluster.bootstrap) as client:
            assert sum(committed(client, "orders-to-lake").values()) == RECORDS
