from __future__ import annotations

import pytest

from .fuzz import run


@pytest.mark.parametrize("seed", range(4))
def test_both_kernels_refuse_broken_batches_alike(seed: int) -> None:
    cases = 150
    refused = run(cases, seed)
    assert 0 < refused < cases
