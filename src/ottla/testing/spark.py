"""Tests of streaming jobs: a Spark session and a cluster, started once and empty at the start of each test.

In a conftest.py (or with `pytest -p ottla.testing.spark`):

    pytest_plugins = ["ottla.testing.spark"]

and then

    def test_orders_are_counted(spark_kafka):
        spark_kafka.create_topic("orders", partitions=2)
        spark_kafka.produce("orders", key="ada", value="tea")
        assert spark_kafka.read("orders").count() == 1
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.client.topics import delete_topic
from ottla.testing.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Tests are small: few tasks, nothing that waits or grows.
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
}
QUERY_SECONDS = 600


class SparkKafka:
    """A Spark session and a cluster, with helpers for tests of streaming jobs."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self._folder = folder
        self._client = Client(cluster.bootstrap)

    @property
    def bootstrap(self) -> str:
        """The value of `kafka.bootstrap.servers`."""
        return self.cluster.bootstrap

    @property
    def options(self) -> dict[str, str]:
        """The connection options, for `.options(**spark_kafka.options)`."""
        return {"kafka.bootstrap.servers": self.bootstrap}

    def checkpoint(self, name: str = "query") -> str:
        """Return a checkpoint folder of this test."""
        return str(self._folder / "checkpoints" / name)

    def path(self, name: str) -> str:
        """Return a path for files of this test."""
        return str(self._folder / name)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic."""
        self.cluster.create_topic(name, partitions, configs=configs)
        self._client.refresh([name])

    def produce(
        self,
        topic: str,
        *,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Write one record and wait for its acknowledgement."""
        producer = Producer(self._client)
        producer.send(topic, _bytes(key), _bytes(value), list(headers), partition, timestamp)
        producer.flush()

    def produce_many(self, topic: str, records: Iterable[tuple[str | bytes | None, str | bytes | None]]) -> None:
        """Write keys with their values and wait for the acknowledgements."""
        producer = Producer(self._client)
        for key, value in records:
            producer.send(topic, _bytes(key), _bytes(value))
        producer.flush()

    def read(self, topic: str, **options: str) -> DataFrame:
        """Return the committed records of a topic as a DataFrame."""
        self._wait_for_markers()
        reader = self.spark.read.format("ottla").options(**self.options, **options).option("subscribe", topic)
        return reader.option("kafka.isolation.level", "read_committed").load()

    def stream(self, topic: str, **options: str) -> DataFrame:
        """Return a stream of the committed records of a topic from its start."""
        self._wait_for_markers()
        reader = self.spark.readStream.format("ottla").options(**self.options, **options).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("kafka.isolation.level", "read_committed").load()

    def run(self, writer: Any, name: str = "query", *, killed: bool = False) -> StreamingQuery:
        """Run a stream over the available data to its end: `spark_kafka.run(frame.writeStream.format(...))`.

        With `killed`, the state afterwards is as if the driver had died after the last batch was written and before
        Spark recorded it: the next run repeats that batch, and a job that is not idempotent shows it.
        """
        query: StreamingQuery = (
            writer.trigger(availableNow=True).option("checkpointLocation", self.checkpoint(name)).start()
        )
        if not query.awaitTermination(QUERY_SECONDS):
            query.stop()
            raise TimeoutError(f"the query did not come to its end in {QUERY_SECONDS} s")
        if killed:
            _forget_last_commit(Path(self.checkpoint(name)) / "commits")
        return query

    def reset(self) -> None:
        """Stop all queries and delete all topics, views and cached tables."""
        for query in self.spark.streams.active:
            query.stop()
        for topic in self.cluster.topics():
            if not topic.startswith("__"):
                delete_topic(self._client, topic)
        self.spark.catalog.clearCache()
        for table in self.spark.catalog.listTables():
            if table.isTemporary:
                self.spark.catalog.dropTempView(table.name)

    def _wait_for_markers(self) -> None:
        """Wait until every prepared transaction has its markers: EndTxn is answered before they are written."""
        deadline = time.monotonic() + QUERY_SECONDS
        while open_ones := [
            transaction for transaction in self.cluster.transactions() if transaction.state.startswith("Prepare")
        ]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"transactions have no markers after {QUERY_SECONDS} s: {open_ones}")
            time.sleep(0.01)

    def close(self) -> None:
        """Close the clients."""
        self._client.close()


@pytest.fixture(scope="session")
def spark_kafka_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SparkSession, Cluster]]:
    """Yield the session and the cluster that all tests share; an existing session is used and left running."""
    from ottla.spark.session import SparkSetupError, session

    try:
        from pyspark.sql import SparkSession as Known

        before = Known.getActiveSession()
        where = tmp_path_factory.mktemp("spark")
        local = {
            "spark.sql.warehouse.dir": str(where / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={where} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        running = session("tests", master="local[2]", config={} if before is not None else {**SETTINGS, **local})
    except (SparkSetupError, ImportError) as error:
        pytest.skip(str(error))
    with Cluster() as cluster:
        yield running, cluster
    if before is None:
        running.stop()


@pytest.fixture
def spark_kafka(spark_kafka_session: tuple[SparkSession, Cluster], tmp_path: Path) -> Iterator[SparkKafka]:
    """Yield a Spark session and an empty Kafka cluster."""
    kafka = SparkKafka(*spark_kafka_session, tmp_path)
    try:
        yield kafka
    finally:
        kafka.reset()
        kafka.close()


def streamed_rows(folder: Path | str) -> list[dict[str, Any]]:
    """Return what a stream has written to a folder of Parquet, read without Spark.

    Follows the log that Spark keeps in the folder, as Spark does: files of a killed task are not part of the table.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    logs = {int(entry.stem): entry for entry in (Path(folder) / "_spark_metadata").iterdir() if entry.stem.isdigit()}
    whole = max((number for number, entry in logs.items() if entry.suffix == ".compact"), default=0)
    lines = [line for number in sorted(logs) if number >= whole for line in logs[number].read_text().splitlines()[1:]]
    files = [Path(folder) / json.loads(line)["path"].rpartition("/")[2] for line in lines]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _forget_last_commit(commits: Path) -> None:
    """Delete Spark's last commit entry with its checksum."""
    numbers = sorted(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for name in [str(numbers[-1]), f".{numbers[-1]}.crc"] if numbers else []:
        (commits / name).unlink(missing_ok=True)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
