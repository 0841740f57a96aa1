"""Typed columns next to Spark's own from_avro: equal types and rows for every type of Avro.

The one that differs is not here: time-micros is a bigint in ottla and, from Spark 4.1 on, a time in from_avro.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.schemas.framing import frame
from ottla.schemas.registry_client import RegistryClient
from ottla.spark.session import SparkSetupError, check_setup
from ottla.testing import Cluster
from tests.schemas.test_avro_columns import ALL, encode, full_row

from .spark_jars import JarsMissingError, avro_jars

pytestmark = pytest.mark.interop

TIMES = [
    {"name": "at_millis", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
    {"name": "period", "type": {"type": "fixed", "name": "P", "size": 12, "logicalType": "duration"}},
]


def test_columns_equal_those_of_from_avro() -> None:
    try:
        check_setup()
        jars = avro_jars()
    except (SparkSetupError, JarsMissingError) as problem:
        pytest.skip(f"from_avro cannot run here: {problem}")
    schema = {**ALL, "fields": [*ALL["fields"][1:], *TIMES]}
    bare = {**schema, "fields": [*ALL["fields"][1:], *[{**field, "type": _bare(field["type"])} for field in TIMES]]}
    times = {"at_millis": 5, "nanos": 9, "period": b"012345678901"}
    with Cluster(registry=True, topics=["orders"]) as cluster:
        text = json.dumps(schema)
        schema_id = RegistryClient(cluster.registry_url).register("orders-value", {"schema": text})["id"]
        with Client(cluster.bootstrap) as client:
            producer = Producer(client)
            for number in range(30):
                row = {name: value for name, value in full_row(number).items() if name != "nothing"}
                producer.send("orders", None, frame(schema_id, encode(bare, row | times)))
            producer.flush()
        job = [sys.executable, "-m", "tests.interop.spark_from_avro"]
        done = subprocess.run(
            [*job, jars, cluster.bootstrap, cluster.registry_url, text],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["ottla"]["type"] == seen["from_avro"]["type"]
    assert seen["ottla"]["rows"] == seen["from_avro"]["rows"]
    assert len(seen["ottla"]["rows"]) == 30


def _bare(type_: dict[str, object]) -> object:
    """Return a type without its logical type, so that plain numbers are encoded."""
    return {name: value for name, value in type_.items() if name != "logicalType"}
