"""Fixtures with the real Apache Kafka; without Java or Maven tests are skipped with the reason."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.ottla_node import OttlaNode

from .apache_kafka import ApacheKafka
from .java_client import JavaClients
from .jvm import Jvm, JvmMissingError, jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

N = TypeVar("N", ApacheKafka, OttlaNode)
_NODES = pytest.StashKey[list[ApacheKafka | OttlaNode]]()
_CLIENTS = pytest.StashKey[JavaClients]()


@pytest.fixture(scope="session")
def kafka_jvm() -> Jvm:
    """A Java that can run Apache Kafka's classes."""
    try:
        return jvm()
    except JvmMissingError as problem:
        pytest.skip(f"Apache Kafka cannot run here: {problem}")


@pytest.fixture(scope="session")
def apache_kafka(
    kafka_jvm: Jvm, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ApacheKafka]:
    """One running Apache Kafka that all tests of the session share: use topics and groups of your own.

    Records with times of long ago stay.
    """
    data = tmp_path_factory.mktemp("apache-kafka") / "data"
    node = ApacheKafka(data, sasl=True, settings={"log.retention.ms": "-1"})
    request.config.stash.setdefault(_NODES, []).append(node)
    with node:
        yield node


@pytest.fixture(scope="module")
def java_clients(
    kafka_jvm: Jvm, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[JavaClients]:
    """Kafka's Java clients in one JVM for all tests of a module; they talk to Apache Kafka and to ottla alike.

    Not for the whole session: clients that look for brokers which are gone would use a core to its end.
    """
    with JavaClients(log_file=tmp_path_factory.mktemp("java-clients") / "clients.log") as clients:
        request.config.stash[_CLIENTS] = clients
        yield clients
        del request.config.stash[_CLIENTS]


@contextmanager
def _kept(request: pytest.FixtureRequest) -> Iterator[Callable[[N], N]]:
    """Take in nodes: they are shown beside failures, and end with what they were made for."""
    made: list[ApacheKafka | OttlaNode] = []
    stash = request.config.stash.setdefault(_NODES, [])

    def take_in(node: N) -> N:
        made.append(node)
        stash.append(node)
        return node

    yield take_in
    for node in made:
        node.kill()
        stash.remove(node)


@pytest.fixture
def apache_kafka_factory(
    kafka_jvm: Jvm, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., ApacheKafka]]:
    """Return a factory of Kafka nodes, not started: `factory(log_dir=..., **options)`; stopped after the test."""
    numbers = count()
    with _kept(request) as take_in:
        yield lambda log_dir=None, **options: take_in(
            ApacheKafka(log_dir or tmp_path / f"kafka-{next(numbers)}", **options)
        )


@pytest.fixture
def ottla_factory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., OttlaNode]]:
    """Return a factory of ottla brokers, not started: `factory(log_dir=..., **options)`; stopped after the test."""
    numbers = count()
    with _kept(request) as take_in:
        yield lambda log_dir=None, **options: take_in(
            OttlaNode(log_dir or tmp_path / f"ottla-{next(numbers)}", **options)
        )


@pytest.fixture(scope="module")
def module_node(request: pytest.FixtureRequest) -> Iterator[Callable[[N], N]]:
    """Take in a node that the tests of a module share."""
    with _kept(request) as take_in:
        yield take_in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show the end of each node's log, and of the Java clients', beside a failure."""
    report = yield
    if report.failed:
        clients = item.config.stash.get(_CLIENTS, None)
        if clients is not None:
            report.sections.append(("log of the Java clients", clients.log_tail()))
        for node in item.config.stash.get(_NODES, []):
            report.sections.append((f"log of {type(node).__name__} on {node.log_dir}", node.log_tail()))
    return report
