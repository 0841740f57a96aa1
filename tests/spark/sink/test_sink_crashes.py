"""An exactly-once write, killed or paused at its n-th request: one attempt's rows of every batch are visible, once.

OTTLA_SINK_CASES=all runs every case; `python -m tests.spark.sink.sink_crashes` runs random ones against any broker.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from ottla.testing import Cluster

from .sink_crashes import Accident, all_cases, random_case, run_cases

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.xdist_group("spark")
SEED = 20261118
CASES = {"few": 24, "all": 0}[os.environ.get("OTTLA_SINK_CASES", "few")]


def expire_with(cluster: Cluster) -> Callable[[str], None]:
    def expire(name: str) -> None:
        try:
            cluster.expire_transaction(name)
        except KeyError:
            return  # it has ended meanwhile

    return expire


def cases() -> list[Accident]:
    if not CASES:
        return all_cases()
    chance = random.Random(SEED)
    return chance.sample(all_cases(), CASES // 2) + [random_case(chance) for _ in range(CASES // 2)]


def test_batch_interrupted_at_any_request_is_written_once() -> None:
    with Cluster(topics=["orders:2"]) as cluster:
        happened = run_cases(cluster.bootstrap, "orders", cases(), expire_with(cluster), {})
    assert sum(happened.values()) >= CASES // 2
