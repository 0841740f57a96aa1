"""The pytest plugin: clusters as fixtures.

    def test_orders(kafka):                      # a new cluster for this test
        produce(kafka.bootstrap, ...)

    @pytest.mark.kafka(brokers=3, topics=["orders:3"])
    def test_three_brokers(kafka): ...

    def test_shared(kafka_session): ...          # one cluster for all tests, reset before each

    pytest --kafka-explore                       # runs tests again with Kafka's faults (`testing.explore`)

The report of a failed test shows the cluster's topics, groups, transactions and last events. Each pytest-xdist worker
has its own clusters. The fixtures also work in coroutine tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ottla.testing.explore import pytest_options

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ottla.testing.cluster import Cluster

MARKER = "kafka"
_clusters: pytest.StashKey[list[Cluster]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fault explorer."""
    pytest_options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and check the options."""
    pytest_options.register_marker(config)
    if pytest_options.is_active(config):
        from ottla.testing.explore import pytest_explore

        pytest_explore.check_options(config)
    config.addinivalue_line(
        "markers", "kafka(**options): options of ottla.testing.Cluster for the fixtures kafka and kafka_session"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Add the items of the fault explorer: shares of an exploration, and regressions."""
    if "kafka" in metafunc.fixturenames and _uses_explorer(metafunc.config, metafunc.definition):
        from ottla.testing.explore import pytest_explore

        pytest_explore.parametrize(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Explore the test if that is requested."""
    if "kafka" not in getattr(item, "fixturenames", ()) or not _uses_explorer(item.config, item):
        return None
    from ottla.testing.explore import pytest_explore

    return pytest_explore.run_item(item, nextitem)


def _uses_explorer(config: pytest.Config, item: Any) -> bool:
    return pytest_options.is_active(config) or pytest_options.explores(config, item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Interrupt an explored run that takes too long."""
    exploration = item.stash.get(pytest_options.EXPLORATION, None)
    if exploration is None:
        yield
        return
    with exploration.runner.deadline():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the result of explorations."""
    if pytest_options.was_explored(terminalreporter):
        from ottla.testing.explore import pytest_explore

        pytest_explore.write_summary(terminalreporter, config)


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Start a cluster for one test; the marker `kafka` takes the arguments of `Cluster`."""
    from ottla.testing.cluster import Cluster

    exploration = request.node.stash.get(pytest_options.EXPLORATION, None)
    if exploration is not None:
        yield exploration.runner.cluster()
        return
    with Cluster(**cluster_options(request.node)) as cluster:
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

    options = cluster_options(request.node)
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


def cluster_options(node: pytest.Item) -> dict[str, Any]:
    """Return the arguments of `Cluster` that the markers of a test give."""
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if marker.args:
            raise pytest.UsageError(f"{node.nodeid}: the marker kafka takes keywords only, such as topics=['orders:3']")
        options.update(marker.kwargs)
    return options


def _remember(node: pytest.Item, cluster: Cluster) -> None:
    node.stash.setdefault(_clusters, []).append(cluster)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Add the state and the last events of its clusters to the report of a failed test."""
    exploration = item.stash.get(pytest_options.EXPLORATION, None)
    if exploration is not None:
        exploration.note_exception(call)
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
