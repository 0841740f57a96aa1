"""Metadata of a directory: both brokers must describe the same topics, configs, ACLs, users, groups
and transactions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ottla_node import OttlaNode

from . import scenario
from .java_client import JavaClients, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "kafka" / "4.3.1"

# The fixtures grow old; what is in them must not expire while they are looked at.
FOREVER = {
    "offsets.retention.minutes": str(2**31 - 1),
    "transactional.id.expiration.ms": str(2**31 - 1),
    "producer.id.expiration.ms": str(2**31 - 1),
}


def strip(node: Any) -> Any:
    """Leave out what a restart, another port or the passing of time changes."""
    if isinstance(node, dict):
        dropped = ("port", "host", "leaderEpoch", "lastFetchTimestamp", "lastCaughtUpTimestamp", "logEndOffset")
        return {key: strip(value) for key, value in node.items() if key not in dropped}
    if isinstance(node, list):
        return [strip(entry) for entry in node]
    return node


def comparable(question: str, response: Any) -> Any:
    """Leave out of an answer what is not the directory's."""
    if question == "share_group_offsets":
        return {group: {at: value["startOffset"] for at, value in value.items()} for group, value in response.items()}
    if question == "scram":  # the order of a user's mechanisms is that of a hash map
        return {
            user: sorted(
                (credentialinfo["mechanism"], credentialinfo["iterations"])
                for credentialinfo in value["credentialInfos"]
            )
            for user, value in response.items()
        }
    if question == "features":
        return response["finalized"]
    if question == "cluster":
        return response["cluster_id"]
    if question == "groups":
        return sorted((entry["groupId"], entry["type"], entry["protocol"]) for entry in response)
    if question == "configs":
        return {
            resource: {
                name: record["value"] for name, record in value.items() if record["source"].startswith("DYNAMIC")
            }
            for resource, value in response.items()
        }
    if question == "producers":  # a coordinator that starts writes to its own topics
        return {
            partition: [(entry["producerId"], entry["producerEpoch"], entry["lastSequence"]) for entry in value]
            for partition, value in response.items()
            if not partition.startswith(("__", "open"))
        }
    if question == "transactions":  # the open one may time out
        return {name: (value["producerId"], value["state"]) for name, value in response.items() if name != "tx-open"}
    if question == "offsets":
        return {
            kind: {at: strip(value) for at, value in value.items() if not at.startswith(("__", "open"))}
            for kind, value in response.items()
        }
    if question == "consumer_groups":
        return {
            group: (value["groupId"], value["type"], value["partitionAssignor"], members(value))
            for group, value in response.items()
        }
    return strip(response)


def members(group: dict[str, Any]) -> list[Any]:
    return sorted(
        (
            member["consumerId"],
            member["groupInstanceId"],
            member["clientId"],
            sorted(member["assignment"]["topicPartitions"]),
        )
        for member in group["members"]
    )


QUESTIONS = [name for name in scenario.QUESTIONS if name not in ("quorum", "tokens", "log_dirs", "share_groups")]
EXPECTED: dict[str, Any] = json.loads((FIXTURE / "facts.json").read_text())
SETTINGS = {**scenario.SETTINGS, **FOREVER}


def read_records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURE / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def ottla_on_kafkas(
    java_clients: JavaClients,
    tmp_path_factory: pytest.TempPathFactory,
    module_node: Callable[[OttlaNode], OttlaNode],
) -> Iterator[OttlaNode]:
    """One ottla on a copy of the directory that Kafka wrote, for all questions."""
    folder = tmp_path_factory.mktemp("kafkas")
    # Sessions of members begin with the start, and the first questions take a JVM long: those are asked elsewhere.
    for name in ("to begin with", "data"):
        shutil.copytree(FIXTURE / "data", folder / name)
        with module_node(OttlaNode(folder / name, settings=SETTINGS)) as node:
            assert scenario.QUESTIONS["consumer_groups"](scenario.Asked(node, java_clients))
            if name == "data":
                yield node


@pytest.mark.parametrize("question", QUESTIONS)
def test_ottla_describes_kafka_directory_as_kafka(
    ottla_on_kafkas: OttlaNode, java_clients: JavaClients, question: str
) -> None:
    response = scenario.QUESTIONS[question](scenario.Asked(ottla_on_kafkas, java_clients))
    assert comparable(question, response) == comparable(question, EXPECTED[question])


def test_java_consumer_reads_same_records_from_both_brokers(
    ottla_on_kafkas: OttlaNode, java_clients: JavaClients
) -> None:
    assert scenario.collect_records(ottla_on_kafkas, java_clients) == read_records()


def test_kafka_directory_survives_ottla(
    ottla_factory: Callable[..., OttlaNode],
    apache_kafka_factory: Callable[..., ApacheKafka],
    java_clients: JavaClients,
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    shutil.copytree(FIXTURE / "data", data)
    for turn in range(2):
        with ottla_factory(data, settings=SETTINGS) as ottla:
            java_clients.admin(ottla.bootstrap).create_topic(f"by-ottla-{turn}")
            with java_clients.producer(ottla.bootstrap, enable_idempotence="false") as producer:
                producer.send([Record(f"by-ottla-{turn}", b"new")])
        assert ottla.complaints() == []
    with apache_kafka_factory(data, settings=SETTINGS, sasl=True) as kafka:
        assert [record.value for record in java_clients.read_all(kafka.bootstrap, ["by-ottla-0", "by-ottla-1"])] == [
            b"new"
        ] * 2
        java_clients.admin(kafka.bootstrap).call("delete_topics", topics=["by-ottla-0", "by-ottla-1"])
        facts = scenario.collect_facts(kafka, java_clients)
        records = scenario.collect_records(kafka, java_clients)
    for question in QUESTIONS:
        assert comparable(question, facts[question]) == comparable(question, EXPECTED[question]), question
    assert records == read_records()
    assert kafka.recovered_logs() == []
