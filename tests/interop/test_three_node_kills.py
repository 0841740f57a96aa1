"""Kills (SIGKILL) a process with three nodes, replication factor 3 and min.insync.replicas=2, again and again.

After every restart all replicas are in sync, acknowledged records are at their offsets, and a consume-transform-produce
loop (a consumer group and transactions) goes on: its output has every input exactly once. Apache Kafka opens the
directory of the first node in the end. OTTLA_KILLS sets the number of kills (default 20), OTTLA_SEED repeats a run.
"""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Message, Producer

from ottla.client.client import Client
from ottla.client.topics import create_topic
from tests.markers import OPEN, markers_written

from .apache_kafka import check_log_directory
from .librdkafka import PATIENCE, read_to_end
from .test_eos_loops import Worker, committed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka
    from .java_client import JavaClients

pytestmark = pytest.mark.interop

KILLS = int(os.environ.get("OTTLA_KILLS", "20"))
SEED = int(os.environ.get("OTTLA_SEED", str(random.SystemRandom().randrange(1 << 32))))
PARTITIONS, REPLICAS = 3, 3
GROUP = "mover"
SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}


class Load:
    """An idempotent producer of the input; remembers every acknowledged record."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.number = 0

    def write(self, bootstrap: str, stop: threading.Event) -> None:
        """Write until `stop` is set."""
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": int(PATIENCE * 1000),
                "log_level": 0,
            }
        )
        while not stop.is_set():
            for _ in range(10):
                self.number += 1
                value = b"%d" % self.number
                producer.produce("input", value, partition=self.number % PARTITIONS, on_delivery=self._delivered)
            producer.poll(0.02)
        producer.purge()
        producer.flush(5)

    def _delivered(self, error: object, message: Message) -> None:
        if error is None:
            self.acknowledged[message.partition() or 0, message.offset() or 0] = message.value() or b""


def check_in_sync(bootstrap: str) -> None:
    """Every partition, of internal topics too, has all replicas in its ISR."""
    with Client(bootstrap, timeout=PATIENCE) as client:
        for topic in ("input", "output", "__consumer_offsets", "__transaction_state"):
            for partition in client.topic(topic).partitions.values():
                assert sorted(partition.in_sync) == [1, 2, 3], f"seed {SEED}: {topic} {partition}"


def read(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Return the committed values of a topic by partition and offset."""
    messages = read_to_end(bootstrap, topic, dict.fromkeys(range(PARTITIONS), 0), committed=True)
    return {(message.partition() or 0, message.offset() or 0): message.value() or b"" for message in messages}


def check_input(bootstrap: str, load: Load) -> None:
    """Every acknowledged record is at its offset."""
    there = read(bootstrap, "input")
    lost = [at for at, value in load.acknowledged.items() if there.get(at) != value]
    assert lost == [], f"seed {SEED}: lost or changed {lost[:5]} of {len(load.acknowledged)}"


def check_output(bootstrap: str, *, complete: bool) -> None:
    """No input is in the output twice, and with `complete` none is missing."""
    inputs = Counter(value + b"!" for value in read(bootstrap, "input").values())
    outputs = Counter(read(bootstrap, "output").values())
    assert outputs <= inputs, f"seed {SEED}: written twice {list((outputs - inputs).items())[:5]}"
    if complete:
        assert outputs == inputs, f"seed {SEED}: missing {list((inputs - outputs).items())[:5]}"


def wait_for_commit(reports: queue.Queue[tuple[Worker, str]], worker: Worker) -> None:
    """Return after the loop's next committed transaction; start the loop again if it ends."""
    deadline = time.monotonic() + PATIENCE
    while True:
        _, line = reports.get(timeout=max(deadline - time.monotonic(), 0.1))
        if line.startswith("committed"):
            return
        if line == "ended":
            worker.start()


def test_acknowledged_records_and_transactions_survive_three_node_kills(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    print(f"OTTLA_SEED={SEED} OTTLA_KILLS={KILLS}")
    chance = random.Random(SEED)
    load = Load()
    data = tmp_path / "data"
    node = ottla_factory(data, settings=SETTINGS, nodes=3, log_level="warn")
    reports: queue.Queue[tuple[Worker, str]] = queue.Queue()
    for kill in range(KILLS):
        node.start()
        if kill == 0:
            with Client(node.bootstrap, timeout=PATIENCE) as client:
                for topic in ("input", "output"):
                    create_topic(client, topic, partitions=PARTITIONS, replication_factor=REPLICAS)
        else:
            check_in_sync(node.bootstrap)
            check_input(node.bootstrap, load)
            check_output(node.bootstrap, complete=False)
        loop = ("tests.interop.eos_loop", node.bootstrap, "input", "output", GROUP, "mover", "consumer")
        worker = Worker([sys.executable, "-m", *loop], reports)
        stop = threading.Event()
        writer = threading.Thread(target=load.write, args=(node.bootstrap, stop))
        writer.start()
        try:
            worker.start()
            wait_for_commit(reports, worker)
            time.sleep(chance.random() / 3)
            assert node.running, f"seed {SEED}: the process ended by itself"
        finally:
            node.kill()
            worker.kill()
            stop.set()
            writer.join()
    node.start()
    check_in_sync(node.bootstrap)
    check_input(node.bootstrap, load)
    worker.start()
    written = sum(1 for _ in read(node.bootstrap, "input"))
    deadline = time.monotonic() + PATIENCE
    while (committed(node.bootstrap, GROUP, "input") or 0) < written:
        assert time.monotonic() < deadline, f"seed {SEED}: the loop does not reach the end of the input"
        if not reports.empty() and reports.get()[1] == "ended":
            worker.start()
    worker.kill()
    markers_written(node.bootstrap, OPEN)
    check_output(node.bootstrap, complete=True)
    there = {topic: read(node.bootstrap, topic) for topic in ("input", "output")}
    node.stop()
    print(f"{KILLS} kills, {len(load.acknowledged)} records acknowledged, {len(there['output'])} moved")
    for number in range(1, REPLICAS + 1):
        check_log_directory(data / f"node-{number}", java_clients)
    owned = {
        topic: [index for index in range(PARTITIONS) if (data / "node-1" / f"{topic}-{index}").exists()]
        for topic in there
    }
    with apache_kafka_factory(data / "node-1") as kafka, Client(kafka.bootstrap, timeout=PATIENCE) as client:
        for topic, records in there.items():
            led = [index for index, state in client.topic(topic).partitions.items() if state.leader == 1]
            assert led == owned[topic]
            messages = read_to_end(kafka.bootstrap, topic, dict.fromkeys(led, 0), committed=True)
            read_by_kafka = {(message.partition(), message.offset()): message.value() for message in messages}
            assert read_by_kafka == {at: value for at, value in records.items() if at[0] in led}
    assert kafka.recovered_logs() == []
    node.start()
    check_in_sync(node.bootstrap)
    assert {topic: read(node.bootstrap, topic) for topic in ("input", "output")} == there
