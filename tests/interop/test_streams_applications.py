"""Kafka Streams applications as members of streams groups (KIP-1071), on ottla and on Apache Kafka.

One without state, one that counts through a repartition topic into a changelog, and one that does so in transactions,
each in two processes of which one is killed, and then the broker. What comes out is what Python computes.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.protocol.messages import k44_incremental_alter_configs as k44
from ottla.protocol.messages import k89_streams_group_describe as k89
from tests.conversations.side_by_side import Talk

from .jvm import JvmMissingError, streams_jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka
    from .jvm import Jvm

pytestmark = pytest.mark.interop

PARTITIONS = 4
SECONDS = 240
WORDS = ("river", "stone", "cloud", "ember", "lantern", "harbour", "meadow")
APPLICATIONS = ("loud", "count", "exact")
SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.num.standby.replicas": "1",
}


class Application:
    """A process with all three applications; what it says is kept."""

    def __init__(self, java: Jvm, bootstrap: str, directory: Path) -> None:
        self.said: list[str] = []
        self.log = directory.parent / f"{directory.name}.log"
        self._errors = self.log.open("wb")
        self._process = subprocess.Popen(
            java.command("StreamsApp", bootstrap, "words", str(directory), log_level="ERROR"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.strip())

    def close(self) -> None:
        """Let it close its applications, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(SECONDS) == 0
        self._end()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._end()

    def _end(self) -> None:
        self._listener.join()
        self._errors.close()


class Output:
    """What the applications wrote and committed, read as it comes."""

    def __init__(self, bootstrap: str) -> None:
        self.values: dict[str, dict[str, list[str]]] = {application: {} for application in APPLICATIONS}
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        self._consumer = Consumer({**settings, "enable.auto.commit": False})
        self._consumer.assign(
            [TopicPartition(application, index, 0) for application in APPLICATIONS for index in range(PARTITIONS)]
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Read until something holds."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.values}"
            for message in self._consumer.consume(500, timeout=0.2):
                if message.error() is not None:  # the broker is away for a moment, or has just come back
                    assert not message.error().fatal(), message.error()
                    continue
                key, value = (message.key() or b"").decode(), (message.value() or b"").decode()
                self.values[message.topic() or ""].setdefault(key, []).append(value)

    def written(self, application: str) -> int:
        """How many records of an application came so far."""
        return sum(map(len, self.values[application].values()))

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()


@pytest.fixture(scope="module")
def java(kafka_jvm: Jvm) -> Jvm:
    try:
        return streams_jvm()
    except JvmMissingError as problem:
        pytest.skip(f"Kafka Streams cannot run here: {problem}")


@pytest.fixture
def start(java: Jvm, tmp_path: Path) -> Iterator[Callable[[str, str], Application]]:
    """Start processes, each with a name, and end them with the test."""
    made: list[Application] = []

    def make(name: str, bootstrap: str) -> Application:
        made.append(Application(java, bootstrap, tmp_path / name))
        return made[-1]

    yield make
    for connection in made:
        connection.kill()
        print(
            f"{connection.log.name}: {connection.said}\n{connection.log.read_text(errors='replace')[-20_000:]}"
        )  # shown if it failed


@pytest.fixture(params=["ottla", pytest.param("Kafka", marks=pytest.mark.peer)])
def node(
    request: pytest.FixtureRequest,
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    tmp_path: Path,
) -> OttlaNode | ApacheKafka:
    factory = ottla_factory if request.param == "ottla" else apache_kafka_factory
    return factory(tmp_path / "data", settings=SETTINGS).start()


def write(bootstrap: str, words: Sequence[str]) -> None:
    """Write words, each with its number as its key."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for index, word in enumerate(words):
        producer.produce("words", word.encode(), str(index).encode(), partition=index % PARTITIONS)
    assert producer.flush(SECONDS) == 0


def groups(talk: Talk) -> dict[str, k89.DescribedGroup]:
    """The groups of the applications."""
    request = k89.StreamsGroupDescribeRequest(group_ids=[f"{application}-app" for application in APPLICATIONS])
    return {group.group_id: group for group in talk.quietly(request, k89.StreamsGroupDescribeResponse).groups}


def sessions(talk: Talk, seconds: int) -> None:
    """Change after what silence members are taken for dead."""
    change = k44.AlterableConfig(name="streams.session.timeout.ms", config_operation=0, value=str(seconds * 1000))
    resources = [
        k44.AlterConfigsResource(resource_type=32, resource_name=f"{application}-app", configs=[change])
        for application in APPLICATIONS
    ]
    reply = talk.quietly(k44.IncrementalAlterConfigsRequest(resources=resources), k44.IncrementalAlterConfigsResponse)
    assert [response.error_code for response in reply.responses] == [0] * len(APPLICATIONS), reply


def test_streams_output_equals_python(node: OttlaNode | ApacheKafka, start: Callable[[str, str], Application]) -> None:
    with closing(Talk(node.bootstrap, str(node.log_dir))) as talk:
        for topic in ("words", *APPLICATIONS):
            talk.create(topic, PARTITIONS)
        with closing(Output(node.bootstrap)) as output:
            compare(node, talk, output, start)


def compare(
    node: OttlaNode | ApacheKafka, talk: Talk, output: Output, start: Callable[[str, str], Application]
) -> None:
    """Run the applications, kill one of them and then the broker, and compare what comes out all the while."""
    first = [WORDS[index * index % len(WORDS)] for index in range(400)]
    then = [WORDS[index % len(WORDS)] for index in range(600)]
    write(node.bootstrap, first)
    one, two = start("one", node.bootstrap), start("two", node.bootstrap)

    def complete(words: Sequence[str]) -> bool:
        """Return whether all results were written; without transactions, uncommitted records may be counted twice."""
        loud = Counter(word.upper() for word in words) - Counter(chain(*output.values["loud"].values()))
        result = [output.values[name] for name in ("count", "exact")]
        return not loud and all(
            max(map(int, entry.get(word, "0"))) >= count for entry in result for word, count in Counter(words).items()
        )

    output.until(lambda: complete(first), "the first words")
    assert output.values["exact"] == counts(first)

    # Who is silent for so long is taken for dead: short, so that one takes over soon from the other that is killed, and
    # long enough for a machine that stands still for a moment.
    sessions(talk, seconds=15)

    # Both have tasks, and a copy of the state of what the other runs.
    def shared() -> bool:
        result = groups(talk)
        for group, with_state in (("loud-app", False), ("count-app", True), ("exact-app", True)):
            members = [member.assignment for member in result[group].members]
            active = sorted(len(active_task.partitions) for tasks in members for active_task in tasks.active_tasks)
            standby = sorted(len(standby_task.partitions) for tasks in members for standby_task in tasks.standby_tasks)
            if result[group].group_state != "Stable" or active != [2] * (4 if with_state else 2):
                return False
            if standby != ([2, 2] if with_state else []):
                return False
        return True

    output.until(shared, "tasks for both")
    assert not [line for line in (*one.said, *two.said) if "died" in line]

    def outlive(kill: Callable[[], object], words: Sequence[str]) -> None:
        """Kill something in the middle of these words: the numbers of the exact application go on as if nothing was."""
        write(node.bootstrap, words[: len(words) // 2])
        before = output.written("exact")
        output.until(lambda: output.written("exact") > before, "something new")
        kill()
        write(node.bootstrap, words[len(words) // 2 :])
        so_far.extend(words)
        output.until(lambda: complete(so_far), "the other words")
        assert output.values["exact"] == counts(so_far)

    so_far = list(first)
    outlive(one.kill, then[:300])
    sessions(talk, seconds=60)
    outlive(lambda: (node.kill(), node.start()), then[300:])
    two.close()


def counts(words: Sequence[str]) -> dict[str, list[str]]:
    """What counting gives: for each word the numbers up to how often it came."""
    return {word: [str(index + 1) for index in range(count)] for word, count in Counter(words).items()}
