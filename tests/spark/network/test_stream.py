"""Streams of the format `ottla`, driven as Spark does but without its JVM."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ottla.client.client import Client
from ottla.client.connection import BrokerConnection
from ottla.client.groups import committed
from ottla.spark.data_loss import DataLossError
from ottla.spark.network.source import NetworkSource
from ottla.spark.network.stream import Position
from ottla.spark.options import OptionError
from ottla.testing import Cluster
from tests.ports import free_ports
from tests.spark.direct import make_source
from tests.spark.network.test_read import delete_records, produce_one_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ottla.spark.network.stream import NetworkStreamReader

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(topics=["orders:2"]) as running:
        yield running


def produce(cluster: Cluster, topic: str, values: Any, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value=str(value), partition=partition)
    assert producer.flush(60) == 0


def stream(cluster: Cluster, **more: str) -> NetworkStreamReader:
    source_options = {"kafka.bootstrap.servers": cluster.bootstrap, "startingOffsets": "earliest", **more}
    if "subscribePattern" not in more:
        source_options.setdefault("subscribe", "orders")
    source, schema = make_source(NetworkSource, source_options)
    return source.streamReader(schema)  # type: ignore[return-value]


class Query:
    """Drive a reader as Spark does: pass offsets as JSON; plan, read and commit each batch."""

    def __init__(self, reader: NetworkStreamReader, at: str | None = None) -> None:
        self.reader = reader
        self.at = at or json.dumps(reader.initialOffset())

    def batch(self, limit: Any = None) -> list[int] | None:
        """Return the values of the next micro-batch, or None if there is no new record."""
        end = json.dumps(self.reader.latestOffset(json.loads(self.at), limit or self.reader.getDefaultReadLimit()))
        if end == self.at:
            return None
        tasks = self.reader.partitions(json.loads(self.at), json.loads(end))
        values = [int(row["value"]) for t in tasks for batch in self.reader.read(t) for row in batch.to_pylist()]
        self.at = end
        return values


def values(reader: NetworkStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the values of one micro-batch."""
    tasks = reader.partitions(start, end)
    return [int(row["value"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_batches_have_no_gaps_and_no_duplicates(cluster: Cluster) -> None:
    produce(cluster, "orders", range(10))
    query = Query(stream(cluster))
    assert query.batch() == list(range(10))
    assert query.batch() is None
    produce(cluster, "orders", range(10, 15), partition=1)
    assert query.batch() == list(range(10, 15))
    # A restart continues at the checkpoint, and equal offsets give equal tasks.
    again = Query(stream(cluster), query.at)
    assert again.batch() is None
    produce(cluster, "orders", [15])
    assert again.batch() == [15]


def test_stream_starts_at_latest_by_default(cluster: Cluster) -> None:
    produce(cluster, "orders", range(5))
    source_options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "orders"}
    source, schema = make_source(NetworkSource, source_options)
    query = Query(source.streamReader(schema))  # type: ignore[arg-type]
    assert query.batch() is None
    produce(cluster, "orders", [5])
    assert query.batch() == [5]
    offsets = '{"orders": {"0": 2, "1": -1}}'
    assert Query(stream(cluster, startingOffsets=offsets)).batch() == [2, 3, 4, 5]


def test_offset_limit_is_divided_in_proportion_to_lag(cluster: Cluster) -> None:
    produce(cluster, "orders", range(90))
    produce(cluster, "orders", range(90, 100), partition=1)
    query = Query(stream(cluster, maxOffsetsPerTrigger="20"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    first = query.batch()
    assert first is not None
    assert len(first) == 20
    assert {value >= 90 for value in first} == {True, False}
    sizes, seen = [], first
    while (batch := query.batch()) is not None:
        sizes.append(len(batch))
        seen += batch
    assert max(sizes) <= 20
    assert sorted(seen) == list(range(100))
    assert Query(stream(cluster, maxOffsetsPerTrigger="20")).batch(ReadAllAvailable()) is not None


def test_available_now_stops_at_initial_end_offset(cluster: Cluster) -> None:
    produce(cluster, "orders", range(10))
    query = Query(stream(cluster, maxOffsetsPerTrigger="4"))
    query.reader.prepareForTriggerAvailableNow()
    produce(cluster, "orders", range(10, 20))
    cluster.create_topic("later")
    seen = []
    while (batch := query.batch()) is not None:
        seen += batch
    assert seen == list(range(10))
    assert Query(stream(cluster), query.at).batch() == list(range(10, 20))


def test_min_offsets_per_trigger_delays_batch(cluster: Cluster) -> None:
    for more in ({"maxOffsetsPerTrigger": "100"}, {}):
        cluster.create_topic(f"few{len(more)}", 1)
        source_options = {
            "subscribe": f"few{len(more)}",
            "minOffsetsPerTrigger": "5",
            "maxTriggerDelay": "1 hour",
            **more,
        }
        query = Query(stream(cluster, **source_options))
        produce(cluster, source_options["subscribe"], [0])
        assert query.batch() == [0]  # the first batch does not wait
        produce(cluster, source_options["subscribe"], range(1, 4))
        assert query.batch() is None
        produce(cluster, source_options["subscribe"], range(4, 7))
        assert query.batch() == list(range(1, 7))
    produce(cluster, "orders", range(6))
    hasty = Query(stream(cluster, minOffsetsPerTrigger="50", maxOffsetsPerTrigger="100", maxTriggerDelay="0ms"))
    assert hasty.batch() == list(range(6))


def test_new_partitions_and_topics_are_read_from_earliest(cluster: Cluster) -> None:
    query = Query(stream(cluster, subscribePattern="orders.*"))
    produce(cluster, "orders", [1])
    assert query.batch() == [1]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(60)
    produce(cluster, "orders", [2], partition=2)
    cluster.create_topic("orders-eu")
    produce(cluster, "orders-eu", [3])
    cluster.create_topic("other")
    produce(cluster, "other", [4])
    assert query.batch() == [2, 3]


def test_recreated_topic_is_detected_by_topic_id(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    query = Query(stream(cluster))
    produce(cluster, "orders", range(5))
    assert query.batch() == list(range(5))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics(["orders"])["orders"].result(60)
    cluster.create_topic("orders", 2)
    produce(cluster, "orders", range(100, 110))
    with pytest.raises(DataLossError, match=r"orders was deleted and recreated: its id was .* up to \{0: 5, 1: 0\}"):
        query.batch()
    lenient = Query(stream(cluster, failOnDataLoss="false"), query.at)
    assert lenient.batch() == list(range(100, 110))
    assert "deleted and recreated" in capfd.readouterr().err
    assert lenient.batch() is None


def test_deleted_topic_is_reported(cluster: Cluster) -> None:
    cluster.create_topic("second")
    query = Query(stream(cluster, subscribe="orders,second"))
    produce(cluster, "orders", [1])
    produce(cluster, "second", [2])
    assert query.batch() == [1, 2]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics(["second"])["second"].result(60)
    produce(cluster, "orders", [3])
    with pytest.raises(DataLossError, match=r"topic second is gone; the stream had read it up to \{0: 1\}"):
        query.batch()
    source = NetworkSource(
        {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "orders,second", "failondataloss": "false"}
    )
    lenient = Query(source.streamReader(stream(cluster)._plan.settings.columns.spark), query.at)
    assert lenient.batch() == [3]


def test_expired_offsets_are_reported(cluster: Cluster) -> None:
    produce(cluster, "orders", range(10))
    query = Query(stream(cluster), '{"orders": {"0": 50, "1": 0}}')
    with pytest.raises(DataLossError, match="orders-0 has offsets 0 to 10, and the stream is at 50"):
        query.batch()


def test_offsets_below_log_start_are_reported_and_not_returned(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    produce_one_batch(cluster, "orders", 20)
    delete_records(cluster, "orders", 0, 12)
    below = '{"orders": {"0": 5, "1": 0}}'
    with pytest.raises(DataLossError, match="orders-0 has offsets 12 to 20, and the stream is at 5"):
        Query(stream(cluster, startingOffsets=below)).batch()
    assert Query(stream(cluster, startingOffsets=below, failOnDataLoss="false")).batch() == list(range(12, 20))
    assert "records are gone" in capfd.readouterr().err


def test_unfinished_first_batch_keeps_its_starting_offsets(cluster: Cluster) -> None:
    produce(cluster, "orders", range(5))
    reader = stream(cluster, startingOffsets="latest")
    start = reader.initialOffset()
    produce(cluster, "orders", range(5, 8))
    end = reader.latestOffset(json.loads(json.dumps(start)), reader.getDefaultReadLimit())
    produce(cluster, "orders", range(8, 10))
    # Spark stored only the end of the first batch: after a restart it asks for the start again.
    again = stream(cluster, startingOffsets="latest")
    assert again.initialOffset() != start
    assert values(again, again.initialOffset(), end) == [5, 6, 7]
    query = Query(again, json.dumps(end))
    assert query.batch() == [8, 9]
    assert query.batch() is None
    # Spark may run a first batch without records.
    assert values(again, again.initialOffset(), again.initialOffset()) == []
    assert values(again, again.initialOffset(), start) == []
    # The end of a first batch that Spark's own source planned does not have its start.
    theirs = {"orders": {"0": 8, "1": 0}}
    with pytest.raises(DataLossError, match="planned by Spark's own source and is not finished: its starting offsets"):
        values(again, again.initialOffset(), theirs)
    earliest = stream(cluster, startingOffsets="earliest")
    assert values(earliest, earliest.initialOffset(), theirs) == list(range(8))


def test_checkpoint_has_partitions_of_topics_only(cluster: Cluster) -> None:
    """Spark's own source reads the offsets as a map of maps of numbers and skips an entry without partitions."""
    produce(cluster, "orders", [1])
    query = Query(stream(cluster))
    query.batch()
    offsets = json.loads(query.at)
    assert {topic: numbers for topic, numbers in offsets.items() if numbers} == {"orders": {"0": 1, "1": 0}}
    old = {"orders": {"0": 1, "1": 0}, "": {"orders": Position.parse(offsets).ids["orders"]}}
    assert Position.parse(old).ids == Position.parse(offsets).ids


def test_idle_trigger_sends_the_same_requests_for_any_number_of_partitions() -> None:
    counts = []
    for topics in (["orders:1"], ["orders:30", "orders-eu:30", "orders-us:1"]):
        with Cluster(topics=topics) as cluster:
            query = Query(stream(cluster, subscribePattern="orders"))
            assert query.batch() is None
            sent: list[str] = []
            send = BrokerConnection.send

            def counted(
                self: Any, request: Any, *source_options: Any, _sent: list[str] = sent, _send: Any = send, **more: Any
            ) -> Any:
                _sent.append(type(request).__name__)
                return _send(self, request, *source_options, **more)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BrokerConnection, "send", counted)
                assert query.batch() is None
            counts.append(sent)
    assert counts[0] == counts[1] == ["MetadataRequest", "ListOffsetsRequest"]


def test_checkpoint_of_spark_kafka_source_is_accepted(cluster: Cluster) -> None:
    produce(cluster, "orders", range(10))
    query = Query(stream(cluster), '{"orders": {"1": 0, "0": 7}}')
    assert query.batch() == [7, 8, 9]
    assert query.batch() is None


def test_stream_commits_offsets_to_group(cluster: Cluster) -> None:
    produce(cluster, "orders", range(10))
    query = Query(stream(cluster, groupId="job", maxOffsetsPerTrigger="6"))
    with Client(cluster.bootstrap) as client:
        assert query.batch() == list(range(6))
        query.batch()
        assert committed(client, "job") == {("orders", 0): 6, ("orders", 1): 0} or committed(client, "job") == {
            ("orders", 0): 6
        }
        assert query.batch() is None  # what Spark asks after the last batch is enough
        assert committed(client, "job")["orders", 0] == 10
        query.reader.commit(json.loads(query.at))
        assert committed(client, "job")["orders", 0] == 10
    query.reader.stop()


def test_stream_survives_broker_restart(tmp_path: Path) -> None:
    kept = {"ports": free_ports(1), "data_dir": str(tmp_path), "topics": ["orders:2"]}
    with Cluster(**kept) as before:
        produce(before, "orders", range(3))
        query = Query(stream(before, **{"kafka.request.timeout.ms": "60000"}))
        assert query.batch() == [0, 1, 2]
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(query.batch)  # polls while the broker is down
        with Cluster(**kept) as after:
            assert waiting.result(120) is None
            produce(after, "orders", [3])
            assert query.batch() == [3]


def test_unsupported_stream_option_fails(cluster: Cluster) -> None:
    """The reader's first call fails, because Spark hides an error of `streamReader` itself."""
    refused = stream(cluster, endingOffsets="latest")
    for ask in (refused.initialOffset, lambda: refused.latestOffset({}, ReadAllAvailable())):
        with pytest.raises(
            OptionError, match=r"endingOffsets is for spark.read; a stream ends with trigger\(available"
        ):
            ask()
