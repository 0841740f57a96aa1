"""The pytest plugin: a cluster as a fixture.

    def test_it(kafka):                      a cluster for this test alone
        produce(kafka.bootstrap, ...)

    @pytest.mark.kafka(brokers=3, topics=["orders:3"])
    def test_it(kafka): ...

    def test_it(kafka_session): ...          one cluster for all tests, reset before each

When a test fails, its report shows what the cluster saw last and the state of its groups and transactions. Each worker
of pytest-xdist has clusters of its own; the fixtures are as good in coroutine tests as in others.
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
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "kafka(**options): options of ottla.testing.Cluster for the fixtures kafka and kafka_session"
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster for one test; the marker `kafka` says what it is like."""
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
    """One cluster for all tests that ask for it, as new for each; the marker `kafka` may name topics."""
    from ottla.testing.cluster import wanted_topics

    options = _options(request.node)
    others = sorted(set(options) - {"topics"})
    if others:
        raise pytest.UsageError(
            f"{request.node.nodeid}: kafka_session is shared: its marker takes topics= only, not {', '.join(others)}="
        )
    _kafka_session.reset()
    for name, wanted in wanted_topics(options.get("topics", ())).items():
        _kafka_session.create_topic(name, **wanted)
    _remember(request.node, _kafka_session)
    return _kafka_session


def _options(node: pytest.Item) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"{node.nodeid}: the marker kafka takes keywords only, such as topics=['orders:3']")
        found.update(marker.kwargs)
    return found


def _remember(node: pytest.Item, cluster: Cluster) -> None:
    node.stash.setdefault(_clusters, []).append(cluster)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add what the cluster saw to the report of a test that failed."""
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
