"""The pytest plugin: clusters as fixtures.

    def test_orders(kafka):                      # a new cluster for this test
        produce(kafka.bootstrap, ...)

    @pytest.mark.kafka(brokers=3, topics=["orders:3"])
    def test_three_brokers(kafka): ...

    def test_shared(kafka_session): ...          # one cluster for all tests, reset before each

The report of a failed test shows the cluster's topics, groups, transactions and last events. Each pytest-xdist worker
has its own clusters. The fixtures also work in coroutine tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ottla.testing.cluster import Cluster

MARKER = "kafka"
_clusters: pytest.StashKey[list[Cluster]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "kafka(**options): options of ottla.testing.Cluster for the fixtures kafka and kafka_session"
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Start a cluster for one test; the marker `kafka` takes the arguments of `Cluster`."""
    from ottla.testing.cluster import Cluster

    with Cluster(**_options(request.node)) as cluster:
        _remember(request.node, cluster)
        yield cluster


@pytest.fixture(scope="session")
def _kafka_session() -> Iterator[Cluster]:
    from ottla.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def kafka_session(request: pytest.FixtureRequest, _kafka_session: Cluster) -> Cluster:
    """Reset and return the cluster that tests share; the marker `kafka` may give `topics`."""
    from ottla.testing.cluster import parse_topics

    options = _options(request.node)
    others = sorted(set(options) - {"topics"})
    if others:
        raise pytest.UsageError(
            f"{request.node.nodeid}: kafka_session is shared: its marker takes only topics=, not {', '.join(others)}="
        )
    _kafka_session.reset()
    for name, topic in parse_topics(options.get("topics", ())).items():
        _kafka_session.create_topic(name, **topic)
    _remember(request.node, _kafka_session)
    return _kafka_session


def _options(node: pytest.Item) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"{node.nodeid}: the marker kafka takes keywords only, such as topics=['orders:3']")
        options.update(marker.kwargs)
    return options


def _remember(node: pytest.Item, cluster: Cluster) -> None:
    node.stash.setdefault(_clusters, []).append(cluster)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the state and the last events of its clusters to the report of a failed test."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.when != "call" or not report.failed:
        return
    clusters: list[Cluster] = item.stash.get(_clusters, [])
    for number, cluster in enumerate(clusters, 1):
        try:
            text = cluster.report()
        except RuntimeError as error:
            text = str(error)
        report.sections.append((f"kafka cluster {number}", text))
