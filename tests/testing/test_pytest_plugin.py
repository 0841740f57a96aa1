"""The pytest plugin in a project that has it installed."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from confluent_kafka import Consumer, Producer

def produce(kafka, *values):
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce("orders", value)
    assert producer.flush(60) == 0

@pytest.mark.kafka(brokers=2, topics=["orders:3"])
def test_marked(kafka):
    produce(kafka, "a", "b")
    assert len(kafka.nodes()) == 2
    assert sum(p.high_watermark for p in kafka.partitions("orders")) == 2

def test_plain(kafka):
    assert kafka.topics() == []

@pytest.mark.kafka(topics=["orders"])
@pytest.mark.parametrize("number", range(3))
def test_shared(kafka_session, number):
    assert kafka_session.records("orders") == []
    produce(kafka_session, str(number))
    assert [r.value for r in kafka_session.records("orders")] == [str(number).encode()]

@pytest.mark.kafka(topics=["orders"])
async def test_async(kafka):
    from aiokafka import AIOKafkaProducer
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait("orders", b"x")
    assert len(kafka.records("orders")) == 1
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\naddopts = --strict-markers"
    )
    return pytester


def run(project: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest in a subprocess with only the plugins that the tests need, so that it starts quickly."""
    plugins = ["pytest_asyncio.plugin", "ottla.testing.pytest_plugin", *(["xdist.plugin"] if "-n" in options else [])]
    return project.runpytest_subprocess(*(word for name in plugins for word in ("-p", name)), *options)


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_fixtures_marker_and_reset(project: pytest.Pytester, options: list[str]) -> None:
    project.makepyfile(SUITE)
    result = run(project, *options)
    result.assert_outcomes(passed=6)


def test_failure_report_shows_cluster(project: pytest.Pytester) -> None:
    project.makepyfile(
        SUITE
        + """
@pytest.mark.kafka(topics=["orders"])
def test_that_fails(kafka):
    produce(kafka, "a")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[__import__("confluent_kafka").TopicPartition("orders", 0, 1)], asynchronous=False)
    transactional = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "tx"})
    transactional.init_transactions(60)
    assert False
"""
    )
    result = run(project, "-k", "fails")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*kafka cluster 1*",
            "cluster *, nodes 1 at 127.0.0.1:*",
            "topic orders: 0: 0..1",
            "group billing (classic): Empty, epoch 0",
            "  committed orders-0: 1",
            "transaction tx: Empty, producer * epoch 0, no partitions",
            "the last 40 of * events:",
            "*transaction.state*transactional_id=tx*",
        ]
    )


def test_invalid_marker_arguments_are_usage_errors(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
import pytest

@pytest.mark.kafka(brokers=3)
def test_shared(kafka_session):
    pass

@pytest.mark.kafka(3)
def test_positional(kafka):
    pass
"""
    )
    result = run(project)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*takes only topics=, not brokers=*", "*takes keywords only*"])


def test_entry_point_is_declared() -> None:
    from importlib.metadata import entry_points
    from pathlib import Path

    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nottla = "ottla.testing.pytest_plugin"' in declared
    plugins = [entry for entry in entry_points(group="pytest11") if entry.name == "ottla"]
    assert all(entry.value == "ottla.testing.pytest_plugin" for entry in plugins)
