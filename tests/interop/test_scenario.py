"""A directory that Kafka's clients filled through ottla: Apache Kafka opens it and returns the same state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.ottla_node import OttlaNode

from . import scenario
from .apache_kafka import ApacheKafka, check_log_directory
from .test_contents import SETTINGS, comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .java_client import JavaClients
    from .jvm import Jvm

pytestmark = pytest.mark.interop

STEPS: dict[str, Callable[[scenario.Broker, JavaClients], None]] = {
    "topics": scenario.write_topics,
    "configs": scenario.write_configs,
    "acls": scenario.write_acls,
    "users": scenario.write_users,
    "quotas": scenario.write_quotas,
    "records": scenario.write_records,
    "transactions": scenario.write_transactions,
    "compacted": scenario.write_compacted,
    "groups": scenario.write_groups,
    "share groups": scenario.write_share_groups,
}
QUESTIONS = [name for name in scenario.QUESTIONS if name not in ("quorum", "tokens", "log_dirs", "share_groups")]


@dataclass(slots=True)
class Outcome:
    """What happened in ottla, and what each broker said afterwards."""

    node: Any
    problems: dict[str, Exception] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    records: Any = None

    def ask(self, clients: JavaClients) -> None:
        """Put every question and keep answers and refusals."""
        scenario_run = scenario.Asked(self.node, clients)
        for name in QUESTIONS:
            try:
                self.answers[name] = scenario.QUESTIONS[name](scenario_run)
            except Exception as problem:
                self.problems[f"ask {name}"] = problem
        self.records = scenario.collect_records(self.node, clients)


@pytest.fixture(scope="module")
def outcomes(
    kafka_jvm: Jvm,
    java_clients: JavaClients,
    tmp_path_factory: pytest.TempPathFactory,
    module_node: Callable[[Any], Any],
) -> Iterator[tuple[Outcome, Outcome]]:
    """ottla's story and Kafka's; Kafka is running, on the directory that ottla wrote."""
    data = tmp_path_factory.mktemp("ottlas") / "data"
    settings = {**SETTINGS, "log.retention.ms": "-1"}
    ottla = Outcome(module_node(OttlaNode(data, settings=settings)))
    with ottla.node:
        for name, step in STEPS.items():
            try:
                step(ottla.node, java_clients)
            except Exception as problem:
                ottla.problems[name] = problem
    with ottla.node:  # started again, as Kafka is: loading forgets producers whose last record is old
        ottla.ask(java_clients)
    kafka = Outcome(module_node(ApacheKafka(data, settings=settings)))
    with kafka.node:
        kafka.ask(java_clients)
        yield ottla, kafka


@pytest.mark.parametrize("step", STEPS)
def test_kafka_clients_fill_ottla_directory(outcomes: tuple[Outcome, Outcome], step: str) -> None:
    if step in outcomes[0].problems:
        raise outcomes[0].problems[step]


@pytest.mark.parametrize("question", QUESTIONS)
def test_kafka_describes_ottla_directory_as_ottla(outcomes: tuple[Outcome, Outcome], question: str) -> None:
    ottla, kafka = outcomes
    for entry in outcomes:
        if f"ask {question}" in entry.problems:
            raise entry.problems[f"ask {question}"]
    assert comparable(question, kafka.answers[question]) == comparable(question, ottla.answers[question])


def test_kafka_reads_all_records_of_ottla(outcomes: tuple[Outcome, Outcome]) -> None:
    ottla, kafka = outcomes
    assert kafka.records == ottla.records


def test_neither_broker_logs_warnings(outcomes: tuple[Outcome, Outcome]) -> None:
    ottla, kafka = outcomes
    assert ottla.node.complaints() == []
    assert kafka.node.complaints() == []
    assert kafka.node.recovered_logs() == []


def test_dump_log_segments_finds_no_fault_in_any_file(
    outcomes: tuple[Outcome, Outcome], java_clients: JavaClients
) -> None:
    kafka = outcomes[1].node
    kafka.stop()  # the files as they are after both brokers
    check_log_directory(kafka.log_dir, java_clients)
