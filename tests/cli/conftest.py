"""A cluster of two nodes for the tests of a module; each test has its own topics and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2) as running:
        yield running
