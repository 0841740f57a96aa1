"""Well-known mistakes break under a fault, and the corrected applications do not.

tests/interop/test_explorer.py lets the explorer find these schedules itself.
"""

from __future__ import annotations

import pytest

from ottla.testing.explore import replay_schedule
from tests.testing.explore.applications import APPLICATIONS


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_fault_breaks_the_mistake_and_not_its_correction(name: str) -> None:
    application = APPLICATIONS[name]
    cluster = {"topics": list(application.topics), "configs": dict(application.configs)}
    options = {**application.options, "run_timeout": "120s"}

    wrong = replay_schedule(application.version(correct=False), application.schedule, cluster=cluster, **options)
    right = replay_schedule(application.version(correct=True), application.schedule, cluster=cluster, **options)

    assert not wrong.ok, "the mistake passed"
    assert right.ok, right.findings[0].outcome.message
