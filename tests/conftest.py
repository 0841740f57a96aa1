"""Hypothesis profiles and xdist groups of all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or takes to be made, says more about the machine than about the code.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples on every machine and in every run, so that what passes passes; `--hypothesis-profile explore` looks
# for others.
settings.register_profile("ottla", settings.get_profile("explore"), derandomize=True)
settings.load_profile("ottla")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of an `xdist_group` on one worker.

    pytest-xdist 3.8 writes a test's group into its `_nodeid`, which pytest 9.2 does not look at any more: without this
    every worker would start a Spark, and a cluster for each module, of its own.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        expected = getattr(item, "_nodeid", item.nodeid)
        if expected != item.nodeid:
            item._id = type(item._id).parse(expected)  # type: ignore[attr-defined]
        marked = item.get_closest_marker("xdist_group") is not None
        assert not marked or "@" in item.nodeid, f"{item.nodeid} would not stay with its group"
