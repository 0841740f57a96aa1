"""ListOffsets lookups: by timestamp, earliest, latest, max timestamp."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from ottla.storage.config import LogConfig
from ottla.storage.log.reading import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)

if TYPE_CHECKING:
    from .conftest import Opener

NOW = 1_700_000_000_000


@pytest.mark.parametrize("seed", range(8))
def test_offset_for_timestamp_returns_first_record_at_or_after(memory_opener: Opener, seed: int) -> None:
    chance = random.Random(seed)
    config = LogConfig(segment_bytes=chance.choice([600, 5000]), index_interval_bytes=chance.choice([0, 200, 4096]))
    log = memory_opener.log(config)
    timestamps: list[int] = []
    at = NOW - 1_000_000
    for _ in range(60):
        made = []
        for _ in range(chance.randrange(1, 5)):
            at += chance.randrange(0, 3000)
            made.append(Record(0, at - chance.choice([0, 0, 0, 2000]), None, b"v"))
        log.append_as_leader(build_batch(made, compression=chance.choice([0, 4])), 1)
        timestamps += [record.timestamp for record in made]
    start = chance.choice([0, 0, 50])
    log.advance_log_start(start)
    by_segment = [*log.bases[1:], len(timestamps)]
    for target in [*chance.sample(timestamps, 20), timestamps[0] - 5, max(timestamps), max(timestamps) + 1]:
        expected = None
        for low, high in zip(log.bases, by_segment, strict=True):
            if max(timestamps[low:high], default=-1) >= target:  # the first segment that has any, then in order
                hits = [o for o in range(max(low, start), high) if timestamps[o] >= target]
                expected = hits[0] if hits else None
                break
        result = log.offset_for_timestamp(target)
        if expected is None:
            assert result is None
        else:
            assert result == (timestamps[expected], expected, 1)
    largest = log.offset_for_timestamp(MAX_TIMESTAMP)
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (max(timestamps), timestamps.index(max(timestamps)))


def test_special_timestamps_return_offsets_and_epochs(memory_opener: Opener) -> None:
    log = memory_opener.log()
    assert log.offset_for_timestamp(MAX_TIMESTAMP) is None
    assert log.offset_for_timestamp(LATEST_TIMESTAMP) == (-1, 0, None)
    assert log.offset_for_timestamp(EARLIEST_TIMESTAMP) == (-1, 0, None)
    for epoch in (2, 2, 5):
        log.append_as_leader(build_batch([Record(0, NOW, None, b"v")]), epoch)
    assert log.offset_for_timestamp(LATEST_TIMESTAMP) == (-1, 3, 5)
    assert log.offset_for_timestamp(EARLIEST_TIMESTAMP) == (-1, 0, 2)
    log.advance_log_start(1)
    assert log.offset_for_timestamp(EARLIEST_LOCAL_TIMESTAMP) == (-1, 1, 2)
    assert log.offset_for_timestamp(LATEST_TIERED_TIMESTAMP) == (-1, -1, -1)
    assert log.offset_for_timestamp(NOW + 1) is None
    log.start_epoch(9)
    assert log.offset_for_timestamp(LATEST_TIMESTAMP) == (-1, 3, 9)
    assert log.end_offset_for_epoch(5) == (5, 3)


def test_log_append_time_is_broker_time(memory_opener: Opener) -> None:
    log = memory_opener.log(LogConfig(message_timestamp_type="LogAppendTime"))
    result = log.append_as_leader(build_batch([Record(0, 5, None, b"v"), Record(0, 7, None, b"w")]), 0)
    now = memory_opener.clock.now_ms()
    assert result.log_append_time_ms == now
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == (now, 0, 0)
    assert log.offset_for_timestamp(now) == (now, 0, 0)
    assert log.offset_for_timestamp(now + 1) is None
