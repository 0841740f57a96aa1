"""Seeded simulation: 500 schedules of clients; `python -m tests.groups.simulation` runs more."""

from __future__ import annotations

import pytest

from tests.groups.simulation import run

SCHEDULES = 500
PER_TEST = 25


@pytest.mark.parametrize("first", range(0, SCHEDULES, PER_TEST))
def test_simulated_groups_keep_their_invariants(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        run(seed)
