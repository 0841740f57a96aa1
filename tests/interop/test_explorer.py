"""The explorer finds ten well-known mistakes by itself, and passes the corrected applications."""

from __future__ import annotations

import pytest

from ottla.testing.explore import explore
from tests.testing.explore.applications import APPLICATIONS

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_explorer_finds_the_mistake(name: str) -> None:
    application = APPLICATIONS[name]
    cluster = {"topics": list(application.topics), "configs": dict(application.configs)}
    result = explore(application.version(correct=False), cluster=cluster, max_findings=1, **application.options)
    assert result.findings, f"{name}: {result.problem}; {result.runs} runs"


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_explorer_passes_the_corrected_application(name: str) -> None:
    application = APPLICATIONS[name]
    cluster = {"topics": list(application.topics), "configs": dict(application.configs)}
    options = {**application.options, "budget": "8s", "run_timeout": "120s"}
    result = explore(application.version(correct=True), cluster=cluster, **options)
    problems = [f"{finding.schedule}: {finding.outcome.message}" for finding in result.findings]
    assert result.ok, problems or result.problem
