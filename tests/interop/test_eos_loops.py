"""A consume-transform-produce loop that is killed and restarted, as is its broker.

Under read_committed the output holds every input exactly once. Kills follow the loop's own progress, so that they fall
into the middle of it on a slow machine as on a fast one; OTTLA_SEED repeats a run.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.client.client import Client
from ottla.client.topics import create_topic
from tests.markers import OPEN, markers_written

from .librdkafka import PATIENCE, read_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.ottla_node import OttlaNode

    from .jvm import Jvm

pytestmark = pytest.mark.interop

SEED = int(os.environ.get("OTTLA_SEED", str(random.SystemRandom().randrange(1 << 32))))
PORTION, PARTITIONS = 300, 3
WORKER_KILLS, BROKER_KILLS = 4, 3
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
ROOT = Path(__file__).parents[2]


class Worker:
    """One loop as a process; what it says goes to a queue."""

    def __init__(self, command: Sequence[str], reports: queue.Queue[tuple[Worker, str]]) -> None:
        self._command = command
        self._said = reports
        self._process: subprocess.Popen[str] | None = None
        self.starts = 0

    def start(self) -> None:
        """Start it (again)."""
        self.starts += 1
        process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        self._process = process
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put((self, line.strip()))
        process.wait()
        if process is self._process:
            self._said.put((self, "ended"))

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


class Input:
    """What the loop reads, written a portion at a time."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0

    def add(self, bootstrap: str) -> None:
        """Write another portion."""
        failed: list[object] = []
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = Producer({**settings, "message.timeout.ms": int(PATIENCE * 1000)})
        for _ in range(PORTION):
            producer.produce(
                self.topic,
                b"%d" % self.count,
                partition=self.count % PARTITIONS,
                on_delivery=lambda error, _: error and failed.append(error),
            )
            self.count += 1
        assert producer.flush(PATIENCE) == 0, "the input is not written"
        assert not failed, failed


def committed(bootstrap: str, group: str, topic: str) -> int | None:
    """Return how much of the input the group has committed, or None while no broker answers."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        committed = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], timeout=30)
        return sum(max(record.offset, 0) for record in committed)
    except KafkaException:
        return None
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("language", "protocol"), [("python", "classic"), ("python", "consumer"), ("java", "consumer")]
)
def test_exactly_once_loop_copies_every_input_once(
    ottla_factory: Callable[..., OttlaNode],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    language: str,
    protocol: str,
) -> None:
    print(f"OTTLA_SEED={SEED}")
    chance = random.Random(f"{SEED} {language} {protocol}")
    node = ottla_factory(tmp_path / "data", settings=SETTINGS, log_level="warn")
    node.start()
    with Client(node.bootstrap, timeout=PATIENCE) as client:
        for topic in ("input", "output"):
            create_topic(client, topic, partitions=PARTITIONS)
    provided = Input("input")
    provided.add(node.bootstrap)
    if language == "java":
        jvm: Jvm = request.getfixturevalue("kafka_jvm")
        command = jvm.command("EosLoop", heap="128m", log_level="ERROR")
    else:
        command = [sys.executable, "-m", "tests.interop.eos_loop"]
    messages: queue.Queue[tuple[Worker, str]] = queue.Queue()
    workers = [
        Worker([*command, node.bootstrap, "input", "output", "loop", f"loop-{number}", protocol], messages)
        for number in range(2)
    ]
    kills = ["worker"] * WORKER_KILLS + ["broker"] * BROKER_KILLS
    chance.shuffle(kills)
    patience = chance.randrange(1, 8)
    commits = 0
    deaths: list[str] = []
    deadline = time.monotonic() + 3 * PATIENCE
    for worker in workers:
        worker.start()
    try:
        while True:
            notified = f"{commits} commits, {len(kills)} kills left, loops ended with {deaths[-5:]}"
            assert time.monotonic() < deadline, f"seed {SEED}: not done after {notified}"
            try:
                worker, line = messages.get(timeout=1)
            except queue.Empty:
                if committed(node.bootstrap, "loop", "input") == provided.count and messages.empty():
                    if not kills:
                        break
                    provided.add(node.bootstrap)
                continue
            if line.startswith("committed"):
                commits += 1
                patience -= 1
            elif line.startswith("died"):
                deaths.append(line)
            elif line == "ended":
                worker.start()  # the client failed after the broker was killed: start it again
            if patience <= 0 and kills:
                patience = chance.randrange(1, 12)
                if kills.pop() == "broker":
                    node.kill()
                    node.start()
                else:
                    victim = chance.choice(workers)
                    victim.kill()
                    victim.start()
                provided.add(node.bootstrap)
    finally:
        for worker in workers:
            worker.kill()
    # A loop that was killed, or lost its partitions to the other, may have left a transaction open: until its time is
    # over it hides what was committed after it began.
    markers_written(node.bootstrap, OPEN)
    read = read_to_end(node.bootstrap, "output", dict.fromkeys(range(PARTITIONS), 0), committed=True)
    counts = Counter(message.value() for message in read)
    print(f"{language}, {protocol}: {commits} commits seen, {sum(worker.starts for worker in workers)} starts of loops")
    expected = Counter(b"%d!" % number for number in range(provided.count))
    lost, extra = expected - counts, counts - expected
    assert not lost, f"seed {SEED}: {len(lost)} of {provided.count} are not in the output, such as {list(lost)[:5]}"
    assert not extra, f"seed {SEED}: {len(extra)} are there more than once, such as {list(extra)[:5]}"
