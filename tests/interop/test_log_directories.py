"""Two log directories, one of them cordoned: placement of partitions, refused requests and metadata records.

The same steps on Apache Kafka and on ottla; the answers, the places and the metadata records must be alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from ottla.client.client import Client
from ottla.client.configs import Operation, Resource, alter_configs
from ottla.client.topics import create_partitions, create_topic
from ottla.cluster.metadata.meta_properties import read_meta_properties
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from ottla.protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from ottla.protocol.record_schemas.metadata import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from ottla.protocol.record_values import decode_metadata_record
from ottla.records.iterate import iter_all_records
from ottla.world.disk_real import RealDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.ottla_node import OttlaNode

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

CONFIG = "cordoned.log.dirs"
SECONDS = 300  # a guard


class Directories:
    """What is asked of one of the two, and what it answered, with its directories called `one` and `two`."""

    def __init__(self, client: Client, one: Path, two: Path) -> None:
        self.client = client
        self.directories = (one, two)
        self.paths = {"one": str(one), "two": str(two)}
        self.answers: list[Any] = []

    def _named(self, text: str) -> str:
        for name, path in self.paths.items():
            text = text.replace(path, name)
        return text

    def tries(self, what: str, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except KafkaError as error:
            self.answers.append((what, int(error.code), self._named(error.message)))
        else:
            self.answers.append((what, 0, ""))

    def cordon(self, value: str | None) -> None:
        text = value
        for name, path in self.paths.items():
            text = None if text is None else text.replace(name, path)
        change = (CONFIG, Operation.DELETE if text is None else Operation.SET, text)
        self.tries(f"cordon {value}", lambda: alter_configs(self.client, Resource.BROKER, "1", [change]))

    def described(self) -> DescribeLogDirsResponse:
        return self.client.to_node(1, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)

    def await_cordoned(self, *expected: str) -> None:
        """A change has its effect a little after the answer: in the controller too, which the broker has to tell."""
        self.wait(
            lambda: {self._named(result.log_dir) for result in self.described().results if result.is_cordoned},
            set(expected),
        )
        self.wait(lambda: recorded(*self.directories)[0][-1:], [sorted(expected)])

    def await_recorded(self, *topics: str) -> None:
        """The controller is told of the directories that a broker chose after the answer, too."""

        def places() -> dict[str, list[str]]:
            observe = {topic: self.places(topic) for topic in topics}
            return {
                topic: sorted(name for name in value for _ in range(value[name])) for topic, value in observe.items()
            }

        self.wait(lambda: recorded(*self.directories)[1], places())

    def wait(self, observe: Callable[[], object], expected: object) -> None:
        deadline = time.monotonic() + SECONDS
        while (last := observe()) != expected:
            assert time.monotonic() < deadline, f"{last} is not {expected}, after {self.answers}"
            time.sleep(0.05)

    def places(self, topic: str) -> dict[str, int]:
        return {
            self._named(result.log_dir): sum(
                len(observe.partitions) for observe in result.topics if observe.name == topic
            )
            for result in self.described().results
        }

    def move(self, topic: str, partition: int, to: str) -> None:
        directories = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=self.paths[to], topics=[AlterReplicaLogDirTopic(name=topic, partitions=[partition])]
                )
            ]
        )
        response = self.client.to_node(1, directories, AlterReplicaLogDirsResponse)
        self.answers.append((f"move {topic}-{partition} to {to}", response.results[0].partitions[0].error_code))


def conversation(directories: Directories) -> None:
    def make(topic: str, partitions: int) -> None:
        directories.tries(
            f"create {topic}",
            lambda: create_topic(directories.client, topic, partitions=partitions, replication_factor=1),
        )

    make("spread", 6)
    directories.wait(lambda: sum(directories.places("spread").values()), 6)
    directories.answers.append(directories.places("spread"))
    for wrong in ("/nowhere", "*,two", "one,/nowhere", "two,two", "one,,two"):
        directories.cordon(wrong)
    directories.tries(
        "cordon everywhere",
        lambda: alter_configs(
            directories.client, Resource.BROKER, "", [(CONFIG, Operation.SET, directories.paths["one"])]
        ),
    )
    directories.cordon("two")
    directories.await_cordoned("two")
    make("kept", 4)
    directories.wait(lambda: sum(directories.places("kept").values()), 4)
    directories.answers.append(directories.places("kept"))
    directories.move("kept", 0, "two")
    directories.move("kept", 0, "one")
    directories.cordon("*")
    directories.await_cordoned("one", "two")
    make("refused", 1)
    directories.tries("grow kept", lambda: create_partitions(directories.client, "kept", 5))
    directories.tries(
        "create by hand",
        lambda: create_topic(directories.client, "by-hand", assignment={0: [1]}),
    )
    directories.wait(lambda: sum(directories.places("by-hand").values()), 1)
    directories.cordon(None)
    directories.await_cordoned()
    make("late", 2)
    directories.wait(lambda: sum(directories.places("late").values()), 2)
    directories.answers.append(directories.places("late"))
    directories.move("kept", 0, "two")
    directories.wait(lambda: directories.places("kept"), {"one": 3, "two": 1})
    directories.await_recorded("spread", "kept", "by-hand", "late")


def recorded(one: Path, two: Path) -> tuple[list[list[str]], dict[str, list[str]]]:
    """What the metadata log says: the cordoned directories as they changed, and where each topic's logs are at last."""
    names = {
        meta.directory_id: path.name for path in (one, two) if (meta := read_meta_properties(RealDisk(), str(path)))
    }
    cordoned: list[list[str]] = []
    topics: dict[object, str] = {}
    counts: dict[tuple[str, int], str] = {}
    for segment in sorted((one / "__cluster_metadata-0").glob("*.log")):
        for header, record in iter_all_records(segment.read_bytes()):
            message = None if header.is_control else decode_metadata_record(record.value or b"")
            match message:
                case TopicRecord():
                    topics[message.topic_id] = message.name
                case PartitionRecord() | PartitionChangeRecord() if message.directories:
                    directory = message.directories[0]
                    counts[topics[message.topic_id], message.partition_id] = names.get(directory, str(directory))
                case BrokerRegistrationChangeRecord() if message.cordoned_log_dirs is not None:
                    cordoned.append(sorted(names[cordoned_log_dir] for cordoned_log_dir in message.cordoned_log_dirs))
    at_last: dict[str, list[str]] = {}
    for (topic, _), value in sorted(counts.items()):
        at_last.setdefault(topic, []).append(value)
    return cordoned, {topic: sorted(observe) for topic, observe in at_last.items()}


def test_both_place_and_refuse_partitions_alike(
    tmp_path: Path, apache_kafka_factory: Callable[..., ApacheKafka], ottla_factory: Callable[..., OttlaNode]
) -> None:
    observe = {}
    for name, factory in (("kafka", apache_kafka_factory), ("ottla", ottla_factory)):
        one, two = tmp_path / name / "one", tmp_path / name / "two"
        with (
            factory(log_dir=one, settings={"log.dirs": f"{one},{two}"}) as node,
            Client(node.bootstrap, timeout=SECONDS) as client,
        ):
            directories = Directories(client, one, two)
            conversation(directories)
        observe[name] = [*directories.answers, *recorded(one, two)]
    assert observe["ottla"] == observe["kafka"]
