from __future__ import annotations

import pytest

from .fuzz import run


@pytest.mark.parametrize("seed", range(4))
def test_broken_batches_are_refused_alike_by_both_forms_and_never_crash(seed: int) -> None:
    cases = 150
    refused = run(cases, seed)
    assert 0 < refused < cases
