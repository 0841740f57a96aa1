"""Spark writes and reads over SASL_SSL with the options of Kafka's clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.security.dev_tls import Authority, write_private
from ottla.testing import Cluster
from ottla.testing.security import allow

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_source_and_sink_log_in_with_scram_over_tls(spark: SparkSession, tmp_path: Path) -> None:
    authority = Authority()
    write_private(str(tmp_path / "server.pem"), authority.server().pem)
    write_private(str(tmp_path / "ca.pem"), authority.certificate_pem)
    with Cluster(
        users={"alice": "alice-secret"},
        acls=[allow("alice", "all", topic="orders")],
        topics=["orders:1"],
        configs={
            "listeners": "SASL_SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "ssl.keystore.location": str(tmp_path / "server.pem"),
        },
    ) as cluster:
        options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="alice-secret";',
            "kafka.ssl.truststore.location": str(tmp_path / "ca.pem"),
        }
        frame = spark.createDataFrame([("coffee",), ("tea",)], "value string").coalesce(1)
        frame.write.format("ottla").options(**options).option("topic", "orders").mode("append").save()
        read = spark.read.format("ottla").options(**options).option("subscribe", "orders").load()
        assert sorted(bytes(row.value) for row in read.select("value").collect()) == [b"coffee", b"tea"]
