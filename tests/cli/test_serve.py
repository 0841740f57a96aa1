"""`ottla serve` as a process: output, signals, exit codes, imports."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from typer.testing import CliRunner

from ottla.cli import build
from ottla.cli.serving.serve import _create_seed_topic
from ottla.client import Client
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.record_schemas.metadata import PartitionRecord, TopicRecord
from ottla.protocol.record_values import encode_metadata_record
from ottla.protocol.schema import Uuid
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.storage.names import CLEAN_SHUTDOWN_FILE
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 300
FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1" / "data"
TOPIC_ID = Uuid(bytes.fromhex("00000000000040008000000000000091"))


class Serving:
    """Starts `ottla serve` processes; the fixture ends them with the test."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str) -> dict[str, Any]:
        process = self.start(*words, "--json", "-l", "warn")
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if ready else ""
        assert line, "it did not start: " + (process.stderr.read() if process.stderr and process.poll() else "")
        parsed: dict[str, Any] = json.loads(line)
        return parsed

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "serve", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        return process

    @property
    def last(self) -> subprocess.Popen[str]:
        return self._processes[-1]

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def serve() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.end()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_three_nodes_commit_transactions_after_a_restart(serve: Serving, tmp_path: Path, end: signal.Signals) -> None:
    settings = ("offsets.topic.num.partitions=3", "transaction.state.log.num.partitions=3", "min.insync.replicas=2")
    configs = [word for setting in settings for word in ("-c", setting)]
    for round_number in range(2):
        bootstrap = serve("-d", str(tmp_path / "data"), "-p", "0,0,0", *configs)["bootstrap"]
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"writer-{round_number}",
                "message.timeout.ms": SECONDS * 1000,
                "transaction.timeout.ms": SECONDS * 1000,
            }
        )
        if round_number == 0:
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic("orders", 3, 3)])["orders"].result(SECONDS)
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce("orders", b"%d" % round_number, partition=partition)
        producer.commit_transaction(SECONDS)
        with Client(bootstrap) as client:
            partitions = client.topic("orders").partitions.values()
            assert [sorted(partition.in_sync) for partition in partitions] == [[1, 2, 3]] * 3
        serve.last.send_signal(end)
        serve.last.wait(SECONDS)


def test_start_message_shows_addresses_and_next_steps(serve: Serving) -> None:
    process = serve.start("-p", "0", "-l", "none", "--seed-topic", "orders:3", "--metrics", "0")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    assert "listens on 127.0.0.1:" in lines[0]
    assert "memory" in lines[0]
    assert "http://127.0.0.1:" in lines[1]
    assert "bootstrap.servers=127.0.0.1:" in lines[2]
    assert "ottla topic list" in lines[3]
    assert "Ctrl-C" in lines[4]
    where = lines[2].split("bootstrap.servers=")[1].split()[0]
    assert len(AdminClient({"bootstrap.servers": where}).list_topics(timeout=60).topics["orders"].partitions) == 3
    with urllib.request.urlopen(lines[1].split()[1], timeout=60) as page:
        text = page.read().decode()
    assert 'ottla_requests_total{api="Metadata",node="1"}' in text
    assert "process_resident_memory_bytes" in text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_signal_stops_the_broker_cleanly(serve: Serving, tmp_path: Path, how: signal.Signals) -> None:
    where = serve("-p", "0", "-d", str(tmp_path), "--sync", "--seed-topic", "kept")["bootstrap"]
    producer = Producer({"bootstrap.servers": where})
    producer.produce("kept", b"record")
    assert producer.flush(60) == 0
    serve.last.send_signal(how)
    assert serve.last.wait(SECONDS) == 0
    assert (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    assert serve("-p", "0", "-d", str(tmp_path))["cluster_id"]
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()


def test_one_node_per_port(serve: Serving, tmp_path: Path) -> None:
    ready = serve("-p", "0,0,0", "-d", str(tmp_path), "--seed-topic", "spread:6")
    assert len(ready["bootstrap"].split(",")) == 3
    with Client(ready["bootstrap"]) as client:
        assert sorted(client.brokers) == [1, 2, 3]
        assert {partition.leader for partition in client.topic("spread").partitions.values()} == {1, 2, 3}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["node-1", "node-2", "node-3"]


def test_minimal_directory_is_served_from_server_properties(serve: Serving, tmp_path: Path) -> None:
    """The directory has a metadata log (without a number) and a topic's log, but no ids, checkpoints or indexes."""
    logs = tmp_path / "kraft-combined-logs"
    (logs / "__cluster_metadata").mkdir(parents=True)
    (logs / "test-topic-0").mkdir()
    records = [
        TopicRecord(name="test-topic", topic_id=TOPIC_ID),
        PartitionRecord(
            partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=0, partition_epoch=0
        ),
    ]
    values = [Record(0, 1_700_000_000_000, None, encode_metadata_record(record, 0)) for record in records]
    (logs / "__cluster_metadata" / "00000000000000000000.log").write_bytes(build_batch(values))
    data = b"".join(
        build_batch([Record(0, 1_700_000_000_000, None, text)], offset)
        for offset, text in enumerate([b"Hello", b"World!"])
    )
    (logs / "test-topic-0" / "00000000000000000000.log").write_bytes(data)
    properties = tmp_path / "server.properties"
    properties.write_text(f"process.roles=broker,controller\nnode.id=1\nlisteners=PLAINTEXT://:0\nlog.dirs={logs}\n")
    where = serve(str(properties), "-c", "listeners=PLAINTEXT://127.0.0.1:0")["bootstrap"]
    with Client(where) as client:
        topic = client.topic("test-topic")
        assert topic.id == TOPIC_ID
        fetched = client.fetch("test-topic", {0: 0})[0]
        assert bytes(fetched.records)[: len(data)] == data
        assert fetched.high_watermark == 2
    consumer = Consumer({"bootstrap.servers": where, "group.id": "g"})
    consumer.assign([TopicPartition("test-topic", 0, 0)])
    seen = [consumer.poll(60) for _ in range(2)]
    assert [message.value() for message in seen if message is not None] == [b"Hello", b"World!"]
    consumer.close()
    producer = Producer({"bootstrap.servers": where})
    producer.produce("test-topic", b"more")
    assert producer.flush(60) == 0


def test_log_dirs_config_stores_on_disk(serve: Serving, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ready = serve("-p", "0", "-c", f"log.dirs={one},{two}", "--seed-topic", "kept:2")
    assert ready["data"] == f"{one}, {two}"
    assert sorted(name.name for name in (*one.glob("kept-*"), *two.glob("kept-*"))) == ["kept-0", "kept-1"]


def test_directory_without_meta_properties_is_served(serve: Serving, tmp_path: Path) -> None:
    """The metadata assigns every partition to the directory id of the lost meta.properties."""
    data = tmp_path / "data"
    shutil.copytree(FIXTURE, data)
    properties = tmp_path / "server.properties"
    properties.write_text(f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={data}\n")
    (data / "meta.properties").unlink()
    for left in [*data.glob("*-checkpoint"), *data.glob("bootstrap.checkpoint"), *data.glob("*/*index")]:
        left.unlink()
    ready = serve(str(properties))
    with Client(ready["bootstrap"]) as client:
        topics = client.topics()
        assert len(topics) > 3
        assert {partition.leader for topic in topics for partition in topic.partitions.values()} == {1}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-p", "x"], "write port numbers"),
        (["-p", "9092,9092"], "twice"),
        (["-c", "nonsense"], "write key=value"),
        (["-c", "num.partitions=1", "-c", "num.partitions=2"], "num.partitions is given twice"),
        (["--sync"], "--sync requires --data-dir"),
        (["--http-host", "kafka.example"], "--http-host requires --console, --control, --metrics or --registry"),
        (["-l", "loud"], "use one of none, error, warn, info, debug"),
        (["--seed-topic", "t:none"], "name:partitions"),
        (["--as-version", "0.7"], "unknown release"),
        (["--metrics", "here"], "write a port"),
        (["no.such.properties"], "no.such.properties"),
    ],
)
def test_wrong_usage_exits_with_2_and_the_reason(words: list[str], problem: str) -> None:
    result = CliRunner().invoke(build(["serve"]), ["serve", *words])
    assert result.exit_code == 2, result.stderr
    assert result.stdout == ""
    assert problem in result.stderr


def test_wrong_usage_leaves_no_temporary_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = CliRunner().invoke(build(["serve"]), ["serve", "--dev-tls", "--seed-topic", "t:none"])
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "level"), [(2, "INFO"), (3, "WARNING")])
def test_seed_topic_that_exists_is_kept_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int, level: str
) -> None:
    with Cluster(topics=["kept:2"]) as cluster, caplog.at_level("INFO"):
        assert cluster._running is not None
        runtime = cluster._running.runtime
        assert runtime is not None
        _create_seed_topic(runtime, "kept", count)
        assert len(runtime.image.topic("kept").partitions) == 2
    line = next(record for record in caplog.records if "--seed-topic" in record.message)
    assert line.levelname == level
    assert "the topic exists already, with 2 partitions" in line.message


def test_invalid_seed_topic_exits_with_2(serve: Serving) -> None:
    process = serve.start("-p", "0", "--seed-topic", "bad name")
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (2, "")
    assert "INVALID_TOPIC_EXCEPTION" in err
    assert "Traceback" not in err


def test_failed_start_exits_with_1(serve: Serving, tmp_path: Path) -> None:
    ready = serve("-p", "0", "-d", str(tmp_path))
    port = ready["bootstrap"].rpartition(":")[2]
    taken = serve.start("-p", port)
    _, err = taken.communicate(timeout=SECONDS)
    assert taken.returncode == 1
    assert "Traceback" not in err
    locked = serve.start("-p", "0", "-d", str(tmp_path))
    _, err = locked.communicate(timeout=SECONDS)
    assert locked.returncode == 1
    assert "is in use by another process" in err


def test_serve_imports_no_unneeded_module() -> None:
    """Unneeded imports cost start-up time and memory."""
    program = "import sys, ottla.cli\nottla.cli.load('serve')\nprint('\\n'.join(sys.modules))\n"
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    loaded = set(completed.stdout.split())
    heavy = {
        "pyspark", "pyarrow", "pandas", "numpy", "prometheus_client", "cryptography", "joserfc", "confluent_kafka",
        "http.server", "unittest", "ottla.spark", "ottla.client", "ottla.testing", "ottla.cli.options.connect",
        "rich.table", "rich.console",
        "ottla.world.disk_faulty", "ottla.world.transport_simulated", "ottla.cli.debugging.decode",
        "ottla.protocol.inspect.inspector",
    }  # fmt: skip
    assert sorted(loaded & heavy) == []


def test_start_message_lists_every_listener(serve: Serving) -> None:
    listeners = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    configs = [f"listeners={listeners}", "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"]
    words = [word for text in [*configs, "inter.broker.listener.name=INSIDE"] for word in ("-c", text)]
    listed = serve(*words)["listeners"]
    assert [(entry["node"], entry["listener"], entry["protocol"]) for entry in listed] == [
        (1, "INSIDE", "PLAINTEXT"),
        (1, "OUTSIDE", "PLAINTEXT"),
    ]
    process = serve.start(*words, "-l", "none")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert [line.split()[:2] for line in lines[1:]] == [["listener", "INSIDE"], ["listener", "OUTSIDE"]]
    for entry in listed:
        with Client(entry["address"]) as client:
            assert client.brokers == {1: ("127.0.0.1", int(entry["address"].rpartition(":")[2]))}


def test_racks_let_a_consumer_fetch_from_its_rack(serve: Serving) -> None:
    bootstrap = serve("-p", "0,0", "--racks", "north,south", "-c", "default.replication.factor=2")["bootstrap"]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("t", b"x")
    assert producer.flush(SECONDS) == 0
    with Client(bootstrap) as client:
        response = client.to_any(MetadataRequest(topics=[]), MetadataResponse)
    assert {broker.node_id: broker.rack for broker in response.brokers} == {1: "north", 2: "south"}
    refused = serve.start("-p", "0,0", "--racks", "north")
    assert refused.wait(SECONDS) == 2


def test_memory_limit_refuses_records_and_keeps_the_broker_up(serve: Serving) -> None:
    bootstrap = serve("-p", "0", "--memory-limit", "16m", "--seed-topic", "t")["bootstrap"]
    errors: list[object] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": 5000, "compression.type": "none", "log_level": 0}
    )
    for _ in range(40):
        producer.produce("t", bytes(900_000), on_delivery=lambda error, _: errors.append(error) if error else None)
        producer.poll(0)
    producer.flush(SECONDS)
    assert errors
    assert serve.last.poll() is None
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", 0, 0)])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error() is None
    consumer.close()
    serve.last.terminate()
    _, stderr = serve.last.communicate(timeout=SECONDS)
    assert "memory limit" in stderr
    assert "log directory" not in stderr
    assert serve.last.returncode == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--memory-limit", "much"], "is not a size"),
        (["--memory-limit", "1m"], "at least 16m"),
        (["--memory-limit", "1g", "-d", "somewhere"], "cannot be used together"),
    ],
)
def test_memory_limit_that_makes_no_sense_is_refused(serve: Serving, words: list[str], reason: str) -> None:
    process = serve.start(*words)
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert reason in stderr
