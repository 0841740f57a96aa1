"""A broker starts on a damaged log directory or refuses with a sentence and a command, without any silent loss.

OTTLA_HOSTILE_RESTART_SEEDS sets how many directories are damaged, OTTLA_HOSTILE_RESTART_FIRST_SEED which ones.
"""

from __future__ import annotations

import os

import pytest

from ottla.broker.start import close_cluster
from ottla.records.batch import iter_batches

from .hostile_directory import (
    METADATA_FOLDER,
    Damaged,
    check_restart,
    logged,
    make_world,
    open_broker,
    read_records,
    run,
    stopped,
)

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


def restart_lines(damaged: Damaged) -> tuple[list[str], list[str]]:
    """Start on the files, read every log, stop; return the warnings and the names in the directory."""
    world = make_world(damaged.files)
    with logged() as lines:
        runtime = open_broker(world)
        for partition in runtime.partitions.values():
            read_records(partition.log)
        close_cluster(runtime)
        return list(lines), world.disk.list("/data")


def test_start_that_cuts_the_metadata_log_makes_no_strays() -> None:
    files = stopped(False).files
    path = f"{METADATA_FOLDER}{0:020d}.log"
    batches = list(iter_batches(files[path]))
    creation = next(batch for batch in batches if b"late" in files[path][batch.position : batch.end])
    torn = {**files, path: files[path][: creation.position + 20]}
    lines, names = restart_lines(Damaged(torn))
    assert [name for name in names if name.endswith("-stray")] == []
    assert "late-0" in names
    assert any("late-0: the metadata does not have this partition; left as it is" in line for line in lines)
    assert any(path in line and "are dropped" in line for line in lines)


def test_cut_of_a_log_that_is_loaded_on_first_use_is_reported() -> None:
    files = stopped(True).files
    path = f"/data/plain-0/{9:020d}.log"
    lines, _ = restart_lines(Damaged({**files, path: files[path][:-5]}))
    assert [line for line in lines if path in line and "are dropped" in line] != []


def test_recreated_topic_does_not_take_over_an_unclaimed_folder() -> None:
    files = stopped(False).files
    path = f"{METADATA_FOLDER}{0:020d}.log"
    creation = next(batch for batch in iter_batches(files[path]) if b"late" in files[path][batch.position : batch.end])
    world = make_world({**files, path: files[path][: creation.position + 20]})
    with logged() as lines:
        runtime = open_broker(world)
        runtime.create_topic("late", 1, 1)
        assert runtime.partitions["late", 0].log.log_end_offset == 0
        close_cluster(runtime)
    assert any("/data/late-0: belongs to topic id" in line for line in lines)
