"""A broker starts on a damaged log directory or refuses with a sentence and a command, without any silent loss.

OTTLA_HOSTILE_RESTART_SEEDS sets how many directories are damaged, OTTLA_HOSTILE_RESTART_FIRST_SEED which ones.
"""

from __future__ import annotations

import os

import pytest

from .hostile_directory import Damaged, check_restart, run, stopped

SEEDS = int(os.environ.get("OTTLA_HOSTILE_RESTART_SEEDS", "200"))
FIRST = int(os.environ.get("OTTLA_HOSTILE_RESTART_FIRST_SEED", "0"))
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_restart_on_randomly_damaged_directory(part: int) -> None:
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        run(seed)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_restart_on_undamaged_directory_reports_nothing(clean: bool) -> None:
    assert check_restart(stopped(clean), Damaged(stopped(clean).files)) == "started"


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("kind", ["delete", "empty"])
def test_every_single_file_may_be_lost(kind: str, clean: bool) -> None:
    for path in stopped(clean).files:
        if path.endswith("/.lock"):
            continue
        damaged = Damaged(dict(stopped(clean).files), [f"{kind} {path}"], {path})
        if kind == "delete":
            del damaged.files[path]
        else:
            damaged.files[path] = b""
        try:
            check_restart(stopped(clean), damaged)
        except Exception as error:
            raise AssertionError(f"{damaged.done[0]}: {error}") from error
