"""The explorer's options and marker for pytest. Imports nothing else of the explorer: every run of pytest loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ottla.testing.explore.pytest_explore import ItemExploration

MARKER = "kafka_explore"
EXPLORE_ALL = "all"
FILE_NAME = "kafka_regressions.json"
PROPERTY = "ottla_exploration"
EXPLORATION: pytest.StashKey[ItemExploration] = pytest.StashKey()
"""The exploration in progress, in the stash of its item."""
_MARKER_TEXT = (
    f"{MARKER}(faults, apis, combinations, seed, budget, late, run_timeout, checks, every_point, max_findings): "
    "explore this test with Kafka's faults"
)


def add_options(parser: pytest.Parser) -> None:
    """Add the explorer's options to pytest."""
    group = parser.getgroup("ottla", "Kafka fault explorer")
    group.addoption(
        "--kafka-explore",
        nargs="?",
        const=EXPLORE_ALL,
        metavar="N",
        help="run each test that uses the fixture kafka with every single fault; with N, with N random combinations",
    )
    group.addoption("--kafka-seed", type=int, metavar="SEED", help="seed of the random combinations (default: 1)")
    group.addoption("--kafka-budget", metavar="TIME", help="end the exploration of a test after this time, such as 60s")
    group.addoption(
        "--kafka-replay", metavar="FAULTS", help="run tests with these faults, such as 'response-lost at Produce#1'"
    )
    group.addoption("--kafka-save", action="store_true", help=f"add found failures to {FILE_NAME}")
    group.addoption(
        "--kafka-report", metavar="FILE", help="write the HTML report to this file (default: kafka-explore.html)"
    )


def register_marker(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER_TEXT)


def is_active(config: pytest.Config) -> bool:
    """Return whether an option or a file of regressions asks for the explorer."""
    options = ("kafka_explore", "kafka_replay")
    return any(config.getoption(name) is not None for name in options) or (config.rootpath / FILE_NAME).exists()


def explores(config: pytest.Config, item: Any) -> bool:
    """Return whether a test is to be explored: by an option or by its marker."""
    return config.getoption("kafka_explore") is not None or item.get_closest_marker(MARKER) is not None


def was_explored(terminal: pytest.TerminalReporter) -> bool:
    """Return whether a report holds the result of an exploration, made here or by a worker of pytest-xdist."""
    return any(
        name == PROPERTY
        for reports in terminal.stats.values()
        for report in reports
        for name, _ in getattr(report, "user_properties", ())
    )
