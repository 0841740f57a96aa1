"""Batch reads of the format `ottla`, over the network from an ottla in this process, without Spark's JVM."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import datasource as filters

from ottla.client.client import Client
from ottla.client.producer import Producer as RecordProducer
from ottla.protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ottla.spark.data_loss import DataLossError
from ottla.spark.network.source import NetworkSource
from ottla.spark.options import OptionError
from ottla.testing import Cluster
from tests.spark.direct import plan, rows, table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("spark")

START = 1_700_000_000_000
RECORDS = 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, topics=["orders:3", "payments:1"], configs={"log.retention.ms": "-1"}) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap, "linger.ms": 5, "batch.num.messages": 40})
        for number in range(RECORDS):
            producer.produce(
                "orders",
                key=None if number % 10 == 0 else str(number),
                value=None if number % 7 == 0 else f"order {number}",
                partition=number % 3,
                timestamp=START + number,
                headers=[("n", str(number)), ("none", None)],
            )
        assert producer.flush(60) == 0
        yield running


def options(cluster: Cluster, **more: str) -> dict[str, str]:
    source_options = {"kafka.bootstrap.servers": cluster.bootstrap, "kafka.request.timeout.ms": "60000"}
    if not {"assign", "subscribePattern", "subscribe"} & more.keys():
        source_options["subscribe"] = "orders"
    return source_options | {
        name.replace("kafka_", "kafka.").replace("_level", ".level"): text for name, text in more.items()
    }


def at(number: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START + number)


def expected(numbers: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": None if number % 10 == 0 else str(number).encode(),
            "value": None if number % 7 == 0 else f"order {number}".encode(),
            "topic": "orders",
            "partition": number % 3,
            "offset": number // 3,
            "timestamp": at(number),
            "timestampType": 0,
            "headers": [{"key": "n", "value": str(number).encode()}, {"key": "none", "value": None}],
        }
        for number in sorted(numbers, key=lambda number: (number % 3, number))
    ]


def test_rows_equal_produced_records_for_any_split(cluster: Cluster) -> None:
    for more in ({}, {"minPartitions": "11"}, {"maxRecordsPerPartition": "50"}):
        source_options = options(cluster, includeHeaders="true", **more)
        assert rows(NetworkSource, source_options) == expected(range(RECORDS))
        tasks = len(plan(NetworkSource, source_options)[1])
        assert tasks == 1 if not more else tasks >= 11


def test_small_partitions_share_tasks_unless_min_partitions_is_set(cluster: Cluster) -> None:
    cluster.create_topic("many", 40)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(200):
        producer.produce("many", value=str(number), partition=number % 40)
    assert producer.flush(60) == 0
    for more, least, most in (
        ({}, 2, 2),
        ({"minPartitions": "40"}, 40, 40),
        ({"maxRecordsPerPartition": "10"}, 20, 20),
    ):
        source_options = options(cluster, subscribe="many", **more)
        assert least <= len(plan(NetworkSource, source_options)[1]) <= most
        records = sorted(rows(NetworkSource, source_options), key=lambda row: row["partition"])
        assert [row["value"] for row in records] == [
            str(number).encode() for partition in range(40) for number in range(partition, 200, 40)
        ]
    # A partition that fails is read alone, by the rules of failOnDataLoss.
    reader, tasks = plan(NetworkSource, options(cluster, subscribe="many", failOnDataLoss="false"))
    delete_records(cluster, "many", 5, 3)
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 197
    strict, _ = plan(NetworkSource, options(cluster, subscribe="many"))
    with pytest.raises(DataLossError, match="many-5: offset 0 is out of range, the log has 3 to 5"):
        [list(strict.read(task)) for task in tasks]


def test_small_fetch_size_loses_no_rows(cluster: Cluster) -> None:
    records = rows(NetworkSource, options(cluster, **{"kafka.max.partition.fetch.bytes": "1k"}))
    assert len(records) == RECORDS


def test_offsets_and_timestamps_bound_read(cluster: Cluster) -> None:
    bounded = rows(
        NetworkSource,
        options(
            cluster,
            startingOffsets='{"orders": {"0": 10, "1": -2, "2": 331}}',
            endingOffsets='{"orders": {"0": 20, "1": 5, "2": -1}}',
        ),
    )
    expected_offsets = [(0, n) for n in range(10, 20)] + [(1, n) for n in range(5)] + [(2, 331), (2, 332)]
    assert [(r["partition"], r["offset"]) for r in bounded] == expected_offsets
    between = options(cluster, startingTimestamp=str(START + 100), endingTimestamp=str(START + 200))
    assert sorted(row["timestamp"] for row in rows(NetworkSource, between)) == [at(n) for n in range(100, 200)]
    per_partition = options(
        cluster,
        startingOffsetsByTimestamp=json.dumps({"orders": {str(p): START + 900 for p in range(3)}}),
        endingOffsetsByTimestamp=json.dumps({"orders": {str(p): START + 9000 for p in range(3)}}),
    )
    assert len(rows(NetworkSource, per_partition)) == 100


def test_subscribe_pattern_and_assign_select_partitions(cluster: Cluster) -> None:
    assert {r["partition"] for r in rows(NetworkSource, options(cluster, assign='{"orders": [0, 2]}'))} == {0, 2}
    assert len(rows(NetworkSource, options(cluster, subscribePattern="ord.*"))) == RECORDS
    assert rows(NetworkSource, options(cluster, subscribePattern="nothing.*")) == []
    # A part of the name is enough, and internal topics match no pattern, as in Spark's own source.
    assert len(rows(NetworkSource, options(cluster, subscribePattern=" rder|nothing "))) == RECORDS
    Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "internal"}).init_transactions()
    assert {row["topic"] for row in rows(NetworkSource, options(cluster, subscribePattern="^[a-z_]+$"))} >= {"orders"}
    assert rows(NetworkSource, options(cluster, subscribePattern="^__")) == []


def test_starting_timestamp_overrides_other_bounds(cluster: Cluster) -> None:
    by_partition = json.dumps({"orders": {str(p): START for p in range(3)}})
    for more in ({"startingOffsetsByTimestamp": by_partition}, {"startingOffsets": "earliest"}):
        assert len(rows(NetworkSource, options(cluster, startingTimestamp=str(START + 990), **more))) == 10
    offsets = '{"orders": {"0": 330, "1": 330, "2": 330}}'
    source_options = options(cluster, startingOffsetsByTimestamp=by_partition, startingOffsets=offsets)
    assert len(rows(NetworkSource, source_options)) == RECORDS


def test_offsets_outside_log_follow_fail_on_data_loss(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.create_topic("cut", 1)
    produce_one_batch(cluster, "cut", 20)
    delete_records(cluster, "cut", 0, 8)
    for start, end, left in (
        (2, 15, range(8, 15)),
        (10, 99, range(10, 20)),
        (2, -1, range(8, 20)),
        (-2, 99, range(8, 20)),
        (3, 6, range(0)),
        (30, 40, range(0)),
    ):
        source_options = options(
            cluster,
            subscribe="cut",
            startingOffsets=f'{{"cut": {{"0": {start}}}}}',
            endingOffsets=f'{{"cut": {{"0": {end}}}}}',
        )
        with pytest.raises(DataLossError, match=r"cut-0 has offsets 8 to 20, and the read requests .* are gone"):
            rows(NetworkSource, source_options)
        lenient = rows(NetworkSource, source_options | {"failOnDataLoss": "false"})
        assert [row["offset"] for row in lenient] == list(left)
        assert "records are gone" in capfd.readouterr().err
    for more in ({"startingOffsets": '{"cut": {"0": 30}}'}, {"endingOffsets": '{"cut": {"0": 3}}'}):
        with pytest.raises(OptionError, match=r"cut-0 would be read from offset .*: the end is before the start"):
            rows(NetworkSource, options(cluster, subscribe="cut", **more))


def test_deleted_records_in_a_batch_that_reaches_beyond_are_not_returned(cluster: Cluster) -> None:
    cluster.create_topic("erased", 1)
    produce_one_batch(cluster, "erased", 100)
    source_options = options(cluster, subscribe="erased", failOnDataLoss="false")
    reader, tasks = plan(NetworkSource, source_options)
    delete_records(cluster, "erased", 0, 40)
    late = [offset for task in tasks for batch in reader.read(task) for offset in batch["offset"].to_pylist()]
    assert late == list(range(40, 100))
    assert [row["offset"] for row in rows(NetworkSource, source_options)] == list(range(40, 100))


def delete_records(cluster: Cluster, topic: str, partition: int, offset: int) -> None:
    with Client(cluster.bootstrap) as client:
        chosen = [DeleteRecordsPartition(partition_index=partition, offset=offset)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=chosen)], timeout_ms=60_000)
        client.to_node(client.leader(topic, partition), request, DeleteRecordsResponse)


def produce_one_batch(cluster: Cluster, topic: str, count: int) -> None:
    with Client(cluster.bootstrap) as client:
        producer = RecordProducer(client)
        for number in range(count):
            producer.send(topic, None, str(number).encode(), timestamp=START + number)
        producer.flush()


def test_filters_limit_fetched_offsets(cluster: Cluster) -> None:
    source_options = options(cluster)
    everything = rows(NetworkSource, source_options)
    cases: list[tuple[list[Any], Any, int]] = [
        ([filters.EqualTo(("partition",), 1)], lambda r: r["partition"] == 1, 334),
        ([filters.EqualTo(("topic",), "other")], lambda r: False, 0),
        ([filters.GreaterThan(("offset",), 300)], lambda r: r["offset"] > 300, 3 * 34),
        ([filters.LessThanOrEqual(("offset",), 9)], lambda r: r["offset"] <= 9, 30),
        ([filters.GreaterThanOrEqual(("timestamp",), at(990))], lambda r: r["timestamp"] >= at(990), 12),
        ([filters.EqualTo(("timestamp",), at(500))], lambda r: r["timestamp"] == at(500), 1000),
    ]
    for pushed, passes, most in cases:
        _, tasks = plan(NetworkSource, source_options, pushed)
        assert sum(part.size for task in tasks for part in task.ranges) <= most, pushed
        filtered = rows(NetworkSource, source_options, pushed)
        assert [row for row in filtered if passes(row)] == [row for row in everything if passes(row)], pushed
    assert len(rows(NetworkSource, source_options, cases[-1][0])) == 1


def test_filters_keep_records_without_timestamp(cluster: Cluster) -> None:
    """Their timestamp is -1, the last millisecond of 1969, which ListOffsets cannot look up."""
    cluster.create_topic("timeless", 1)
    with Client(cluster.bootstrap) as client:
        producer = RecordProducer(client)
        for timestamp in (-1, 5, -1, 1000):
            producer.send("timeless", None, b"", timestamp=timestamp)
        producer.flush()
    source_options = options(cluster, subscribe="timeless")
    for bound, left in ((datetime(1960, 1, 1, tzinfo=UTC), [0, 1, 2, 3]), (datetime(1970, 1, 1, tzinfo=UTC), [1, 3])):
        filtered = rows(NetworkSource, source_options, [filters.GreaterThanOrEqual(("timestamp",), bound)])
        assert [row["offset"] for row in filtered] == left
    none = filters.EqualTo(("timestamp",), datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))
    assert [row["offset"] for row in rows(NetworkSource, source_options, [none])] == [0, 2]


def test_read_committed_skips_aborted_and_open_transactions(cluster: Cluster) -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": "writer",
            "transaction.timeout.ms": 600_000,
            "linger.ms": 0,
            "batch.num.messages": 3,
        }
    )
    producer.init_transactions()
    committed = []
    for round_number in range(6):
        producer.begin_transaction()
        for number in range(20):
            producer.produce("payments", value=f"{round_number}/{number}", partition=0)
        producer.flush(60)
        if round_number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            committed += [f"{round_number}/{number}".encode() for number in range(20)]
    producer.begin_transaction()
    producer.produce("payments", value="open", partition=0)
    producer.flush(60)
    for more in ({}, {"minPartitions": "9"}, {"kafka.max.partition.fetch.bytes": "100"}):
        source_options = options(cluster, subscribe="payments", **more) | {"kafka.isolation.level": "read_committed"}
        assert [row["value"] for row in rows(NetworkSource, source_options)] == committed
    assert table(NetworkSource, options(cluster, subscribe="payments")).num_rows == 121
    producer.abort_transaction()


def test_records_deleted_after_planning_are_reported_or_fail(cluster: Cluster) -> None:
    cluster.create_topic("trimmed")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 10})
    for number in range(100):
        producer.produce("trimmed", value=str(number))
    producer.flush(60)
    source_options = options(cluster, subscribe="trimmed")
    reader, tasks = plan(NetworkSource, source_options)
    delete_records(cluster, "trimmed", 0, 40)
    with pytest.raises(DataLossError, match="trimmed-0: offset 0 is out of range, the log has 40 to 100"):
        list(reader.read(tasks[0]))
    lenient, _ = plan(NetworkSource, source_options | {"failOnDataLoss": "false"})
    assert sum(batch.num_rows for batch in lenient.read(tasks[0])) == 60
    with pytest.raises(DataLossError, match="trimmed-0 has offsets 40 to 100, and the read requests 3 to 100"):
        rows(NetworkSource, source_options | {"startingOffsets": '{"trimmed": {"0": 3}}'})


def test_topic_recreated_after_planning_is_not_read(cluster: Cluster) -> None:
    cluster.create_topic("again")
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("again", value="old")
    producer.flush(60)
    reader, tasks = plan(NetworkSource, options(cluster, subscribe="again"))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics(["again"])["again"].result(60)
    cluster.create_topic("again")
    producer.produce("again", value="new")
    producer.flush(60)
    with pytest.raises(DataLossError, match="again was deleted and recreated while it was being read"):
        list(reader.read(tasks[0]))


def test_read_authenticates_with_sasl() -> None:
    with Cluster(topics=["secret"], users={"ada": "ada-secret"}) as cluster:
        login = {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": 'ScramLoginModule required username="ada" password="ada-secret";',
        }
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "ada",
                "sasl.password": "ada-secret",
            }
        )
        producer.produce("secret", value="told")
        assert producer.flush(60) == 0
        source_options = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": "secret",
            "kafka.request.timeout.ms": "60000",
        }
        assert [row["value"] for row in rows(NetworkSource, source_options | login)] == [b"told"]
        wrong = login | {"kafka.sasl.jaas.config": login["kafka.sasl.jaas.config"].replace("ada-secret", "guess")}
        with pytest.raises(Exception, match=r"(?i)authentication"):
            rows(NetworkSource, source_options | wrong)


@pytest.mark.parametrize(
    ("source_options", "message"),
    [
        ({"kafka.bootstrap.servers": None}, 'needs the option kafka.bootstrap.servers, for example .option("kafka.boo'),
        (
            {"kafka.bootstrap.servers": "host:port"},
            "kafka.bootstrap.servers: 'host:port' is not host:port, for example",
        ),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "no broker answers at 127.0.0.1:1 (kafka.bootstrap.servers)"),
        ({"subscribe": None}, 'needs a choice of topics, for example .option("subscribe", "orders,payments")'),
        ({"subscribe": "nothing"}, "there is no topic nothing; there are "),
        ({"subscribe": "no/name"}, "'no/name' is no topic name"),
        ({"subscribe": None, "assign": '{"orders": [7]}'}, "there is no partition orders-7: it has 3"),
        ({"startingoffset": "earliest"}, "no option startingoffset; did you mean startingOffsets?"),
        (
            {"startingOffsets": "{orders: 1}"},
            'startingOffsets must be earliest, latest or JSON such as {"orders"',
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}'},
            "startingOffsets must name every partition that is read (-2 is earliest, -1 latest); it lacks orders-1, ",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest (-1) in a batch read"),
        (
            {"startingOffsets": '{"orders": {"0": -1, "1": -2, "2": 5}}'},
            "startingOffsets cannot be latest (-1) in a batch read",
        ),
        (
            {"startingTimestamp": str(START + 600), "endingTimestamp": str(START + 30)},
            "orders-0 would be read from offset 200 to 10: the end is before the start",
        ),
        ({"endingOffsets": '{"nothing": {"0": 1}}'}, "endingOffsets names nothing-0, which is not among"),
        ({"startingTimestamp": "9999999999999"}, "has no record at 9999999999999 ms or later"),
        ({"kafka.isolation.level": "dirty"}, "kafka.isolation.level must be one of read_uncommitted, read_committed"),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset is not supported: use startingOffsets"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time with its unit, for example 15m"),
        ({"groupId": " "}, "groupId must be the name of a group, for example"),
        ({"path": "/data"}, 'for files use spark.read.format("ottla-log").load(path)'),
        ({"kafka.security.protocol": "SAFE"}, "kafka.security.protocol"),
    ],
)
def test_invalid_option_error_shows_valid_value(
    cluster: Cluster, source_options: dict[str, str | None], message: str
) -> None:
    merged = {**options(cluster), **source_options}
    with pytest.raises(OptionError) as raised:
        rows(NetworkSource, {name: value for name, value in merged.items() if value is not None})
    assert message in str(raised.value)


def test_executors_do_not_import_broker() -> None:
    """Unpickling a task imports neither server nor broker nor coordinators."""
    code = (
        "import importlib, pkgutil, sys\n"
        "import ottla.spark\n"
        "for each in pkgutil.iter_modules(ottla.spark.__path__):\n"
        "    if each.name.startswith(('log_', 'network_', 'table', 'sink', 'exactly_once')):\n"
        "        importlib.import_module(f'ottla.spark.{each.name}')\n"
        "rooms = ('server', 'broker', 'handlers', 'groups', 'transactions', 'testing', 'cli')\n"
        "print([name for name in sys.modules if name.startswith('ottla.') and name.split('.')[1] in rooms])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
