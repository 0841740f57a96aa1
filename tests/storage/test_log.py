from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.config import LogConfig

from .batches import batch, checked, values

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

    from .conftest import Opener


def read_all(log: Log, start: int | None = None, max_bytes: int = 1 << 30) -> list[tuple[int, bytes | None]]:
    """Return every record that a consumer reads, fetch by fetch."""
    offset = log.log_start_offset if start is None else start
    consumed = []
    while offset < log.high_watermark:
        result = log.read(offset, max_bytes)
        if result.records is None:
            break
        with result.records as records:
            data = records.read_all()
        headers = checked(data)
        consumed += [(o, v) for o, v in values(data) if o >= offset]
        offset = headers[-1].next_offset
    return consumed


def test_appended_batches_get_consecutive_offsets_and_are_read(opener: Opener) -> None:
    log = opener.log()
    first = log.append_as_leader(batch("a", "b"), 3)
    second = log.append_as_leader(batch("c"), 3)
    assert (first.first_offset, first.last_offset) == (0, 1)
    assert (second.first_offset, second.last_offset) == (2, 2)
    assert log.log_end_offset == log.high_watermark == log.last_stable_offset == 3
    assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    result = log.read(0, 1 << 20)
    assert result.records is not None
    with result.records as records:
        assert [h.partition_leader_epoch for h in checked(records.read_all())] == [3, 3]


@pytest.mark.parametrize("clean", [True, False])
def test_log_reopens_unchanged_after_any_stop(opener: Opener, clean: bool) -> None:
    config = LogConfig(segment_bytes=400)
    log = opener.log(config)
    for number in range(50):
        log.append_as_leader(batch(f"value {number}"), 0)
    assert len(log.segments) == 10
    expected = read_all(log)
    if clean:
        log.close()
    again = opener.log(config, clean=clean)
    assert again.loaded is not clean
    assert again.log_end_offset == 50
    assert read_all(again) == expected
    assert (again.report is None) == clean
    again.append_as_leader(batch("more"), 1)
    assert read_all(again, 49) == [expected[-1], (50, b"more")]
    assert again.end_offset_for_epoch(0) == (0, 50)


def test_read_ends_at_batch_boundary_with_at_least_one_batch(opener: Opener) -> None:
    log = opener.log(LogConfig(index_interval_bytes=200))
    size = 0
    for number in range(100):
        data = batch(f"{number:04d}")
        size = len(data)
        log.append_as_leader(data, 0)
    for max_bytes in (0, 1, size - 1, size, size + 1, 5 * size - 1, 5 * size, 1 << 20):
        for start in (0, 1, 17, 98, 99):
            result = log.read(start, max_bytes)
            assert result.records is not None
            with result.records as records:
                batch_values = values(records.read_all())
            assert batch_values[0][0] == start
            assert len(batch_values) == min(max(1, max_bytes // size), 100 - start)
    nothing = log.read(5, size - 1, min_one_batch=False)
    assert nothing.records is None
    assert nothing.first_batch_too_large
    assert log.read(100, 1 << 20).records is None


def test_read_stops_below_upper_bound(opener: Opener) -> None:
    log = opener.log(LogConfig(segment_bytes=500))
    for number in range(30):
        log.append_as_leader(batch(f"{number:04d}", "x"), 0)
    for bound in range(0, 61, 2):
        result = log.read(0, 1 << 20, bound)
        if bound == 0:
            assert result.records is None
            continue
        assert result.records is not None
        with result.records as records:
            assert values(records.read_all())[-1][0] < bound


def test_read_outside_log_is_out_of_range(opener: Opener) -> None:
    log = opener.log()
    log.append_as_leader(batch("a"), 0)
    for offset in (-1, 2):
        with pytest.raises(KafkaError) as error:
            log.read(offset, 100)
        assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
