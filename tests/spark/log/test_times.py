"""Timestamp filters pushed to `ottla-log` return exactly the matching rows for timestamps in any order."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as filters

from ottla.records import kernel
from ottla.records.builder import build_batch
from ottla.records.compression import CompressionType
from ottla.records.iterate import Record
from ottla.records.uncompiled import load_uncompiled_kernel
from ottla.spark.log import files as log_files
from ottla.spark.log import read as log_read
from ottla.spark.log.source import LogSource
from tests.spark.direct import plan, rows

pytestmark = pytest.mark.xdist_group("spark")

START = 1_700_000_000_000
FORMS = [load_uncompiled_kernel(), *([kernel] if kernel.COMPILED else [])]
# Timestamps close together, and far enough apart for varints of any length.
times = st.integers(-20, 20) | st.integers(-(2**40), 2**40)
batches = st.lists(
    st.tuples(
        st.lists(times, min_size=1, max_size=6),
        st.sampled_from([CompressionType.NONE, CompressionType.NONE, CompressionType.LZ4, CompressionType.GZIP]),
        st.none() | times,  # when a broker stamped it
        st.booleans(),  # whether a segment ends behind it
    ),
    min_size=1,
    max_size=8,
)


def moment(time: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=START + time)


def write(folder: Path, written: list[tuple[list[int], int, int | None, bool]]) -> dict[int, int]:
    """Write a partition's files without indexes; return the timestamp of each offset."""
    (folder / "meta.properties").write_text("version=1\nnode.id=1\n")
    (folder / ".kafka_cleanshutdown").write_text("")
    partition = folder / "shuffled-0"
    partition.mkdir()
    timestamps: dict[int, int] = {}
    segment, offset = bytearray(), 0
    base = 0
    for number, (times, codec, stamp, ends) in enumerate(written):
        records = [Record(0, START + time, None, b"value " * (time % 30)) for time in times]
        stamped = None if stamp is None else START + stamp
        segment += build_batch(records, offset, compression=codec, log_append_time=stamped)
        for time in times:
            timestamps[offset] = time if stamp is None else stamp
            offset += 1
        if ends or number == len(written) - 1:
            (partition / f"{base:020d}.log").write_bytes(segment)
            segment, base = bytearray(), offset
    return timestamps


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "compiled" if form.COMPILED else "uncompiled")
@given(written=batches, low=times, high=times)
@settings(max_examples=60, deadline=None)
def test_timestamp_filter_returns_exactly_matching_rows(
    form: object, written: list[tuple[list[int], int, int | None, bool]], low: int, high: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_read, "kernel", form)
        patch.setattr(log_read, "CHUNK", 300)
        patch.setattr(log_files, "_FIRST_READ", 100)
        patch.setattr(log_files, "_FEW_RECORDS", 3)
        there = write(Path(folder), written)
        options = {"path": folder, "columns": "offset"}
        both = [
            filters.GreaterThanOrEqual(("timestamp",), moment(low)),
            filters.LessThanOrEqual(("timestamp",), moment(high)),
        ]
        for given, expected in (
            (both, [offset for offset, time in there.items() if low <= time <= high]),
            (both[:1], [offset for offset, time in there.items() if low <= time]),
            (both[1:], [offset for offset, time in there.items() if time <= high]),
        ):
            assert [row["offset"] for row in rows(LogSource, options, given)] == expected


def test_batches_probably_too_late_are_read_in_few_large_tasks(tmp_path: Path) -> None:
    """Skipping batches costs a fraction of decoding them, and every task has a fixed cost."""
    there = write(tmp_path, [([30 * number] * 50, CompressionType.NONE, None, True) for number in range(40)])
    options = {"path": str(tmp_path), "columns": "offset", "minPartitions": "4"}
    until = [filters.LessThan(("timestamp",), moment(600))]
    tasks = [[piece.segment // 50 for piece in task.pieces] for task in plan(LogSource, options, until)[1]]
    assert sorted(number for task in tasks for number in set(task)) == list(range(40))
    assert all(len([number for number in task if number < 20]) <= 7 for task in tasks)
    assert max(len([number for number in task if number > 20]) for task in tasks) >= 15
    assert len(tasks) < len(plan(LogSource, options | {"minPartitions": "40"}, until)[1])
    assert [row["offset"] for row in rows(LogSource, options, until)] == [n for n, time in there.items() if time <= 600]


def test_timestamp_filter_ignores_damage_after_last_offset(tmp_path: Path) -> None:
    """Without an index, the reader skips batches outside the filter up to the last offset."""
    write(tmp_path, [([100], CompressionType.NONE, None, number == 4) for number in range(6)])
    segment = tmp_path / "shuffled-0" / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[3 * len(data) // 5 + 16] = 0  # the fourth of five batches has another format
    segment.write_bytes(data)
    options = {"path": str(tmp_path), "columns": "offset"}
    for time, expected in ((50, []), (100, [0, 1])):
        given = [filters.LessThanOrEqual(("timestamp",), moment(time)), filters.LessThanOrEqual(("offset",), 1)]
        assert [row["offset"] for row in rows(LogSource, options, given)] == expected
