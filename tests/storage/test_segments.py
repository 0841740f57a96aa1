"""Segments: rolling, retention, deletion, truncation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.config import LogConfig
from ottla.storage.log.segment import Segment
from ottla.storage.names import TopicPartition
from ottla.storage.open_files import OpenFiles

from .batches import batch, values
from .test_log import read_all

if TYPE_CHECKING:
    from ottla.storage.log.log import Log

    from .conftest import Opener

NOW = 1_700_000_000_000


def filled(opener: Opener, config: LogConfig, count: int = 40) -> Log:
    log = opener.log(config)
    for number in range(count):
        log.append_as_leader(batch(f"{number:04d}", timestamp=opener.clock.now_ms()), 0)
    return log


def test_segment_rolls_before_exceeding_segment_bytes(memory_opener: Opener) -> None:
    log = filled(memory_opener, LogConfig(segment_bytes=300))
    assert all(segment.size <= 300 for segment in log.segments)
    assert log.bases == list(range(0, 40, 4))
    with pytest.raises(KafkaError) as error:
        log.append_as_leader(batch("x" * 400), 0)
    assert error.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_segment_rolls_by_batch_timestamps(memory_opener: Opener) -> None:
    log = memory_opener.log(LogConfig(segment_ms=1000))
    for timestamp in (NOW, NOW + 500, NOW + 1000, NOW + 1001, NOW + 1, NOW + 2001, NOW + 2002):
        log.append_as_leader(batch("x", timestamp=timestamp), 0)
    assert log.bases == [0, 3, 6]
    memory_opener.clock.advance(5000)  # the wall clock does not count while records have timestamps
    log.append_as_leader(batch("x", timestamp=NOW + 2003), 0)
    assert log.bases == [0, 3, 6]


def test_first_timestamp_is_known_without_reading_log(memory_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = memory_opener.log(LogConfig(segment_ms=1000))
    log.append_as_leader(batch("a"), 0)
    monkeypatch.setattr(Segment, "batches", None)
    assert log.append_as_leader(batch("b"), 0).first_offset == 1
    assert log.active_segment.base_offset == 0


def test_jitter_makes_segments_roll_earlier(memory_opener: Opener) -> None:
    log = memory_opener.log(LogConfig(segment_ms=1000, segment_jitter_ms=900))
    jitter = log.active_segment.jitter_ms
    assert 0 <= jitter < 900
    log.append_as_leader(batch("x", timestamp=NOW), 0)
    log.append_as_leader(batch("x", timestamp=NOW + 1000 - jitter), 0)
    assert log.bases == [0]
    log.append_as_leader(batch("x", timestamp=NOW + 1001 - jitter), 0)
    assert log.bases == [0, 2]


def test_segment_rolls_when_index_is_full(memory_opener: Opener) -> None:
    log = filled(memory_opener, LogConfig(segment_index_bytes=48, index_interval_bytes=0))
    assert len(log.segments) > 4
    assert max(len(segment.offset_index) for segment in log.segments) <= 48 // 8


def test_segment_rolls_when_relative_offset_overflows_index(memory_opener: Opener) -> None:
    log = memory_opener.log()
    log.append_raw(batch("a", base_offset=5))
    log.append_raw(batch("b", base_offset=2**31 - 1))
    assert log.bases == [0]
    log.append_raw(batch("c", base_offset=2**31 + 5))
    assert log.bases == [0, 2**31 + 5]
    assert [offset for offset, _ in read_all(log)] == [5, 2**31 - 1, 2**31 + 5]
    with pytest.raises(ValueError, match="cannot follow"):
        log.append_raw(batch("d", base_offset=7))


def test_retention_deletes_by_time_and_size(memory_opener: Opener) -> None:
    config = LogConfig(segment_bytes=300, retention_ms=10_000, file_delete_delay_ms=1000)
    log = filled(memory_opener, config)
    memory_opener.clock.advance(6)
    for number in range(40, 60):
        log.append_as_leader(batch(f"{number:04d}", timestamp=memory_opener.clock.now_ms()), 0)
    memory_opener.clock.advance(5)
    assert log.delete_old_segments() == 10
    assert (log.log_start_offset, log.bases[0]) == (40, 40)
    assert read_all(log)[0] == (40, b"0040")
    log.config = LogConfig(segment_bytes=300, retention_bytes=700)
    log.delete_old_segments()
    assert 700 <= log.size <= 1000
    memory_opener.clock.advance(100)
    log.config = config
    assert log.delete_old_segments() > 0
    assert (log.log_start_offset, log.log_end_offset) == (60, 60)
    assert log.append_as_leader(batch("next"), 0).first_offset == 60


def test_delete_records_moves_log_start_and_deletes_segments(memory_opener: Opener) -> None:
    log = filled(memory_opener, LogConfig(segment_bytes=300, cleanup_policy=("compact",)), 0)
    for number in range(20):
        log.append_as_leader(batch(f"{number:04d}", keys=[b"k"]), 0)
    assert log.advance_log_start(10)
    assert not log.advance_log_start(9)
    with pytest.raises(KafkaError) as error:
        log.read(9, 100)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError):
        log.advance_log_start(21)
    before = len(log.segments)
    assert log.delete_old_segments() == before - len(log.segments) > 0
    assert log.bases[0] <= 10 < log.bases[1]
    assert read_all(log)[0][0] == 10


def test_files_are_renamed_then_deleted_after_delay(opener: Opener) -> None:
    log = filled(opener, LogConfig(segment_bytes=300, file_delete_delay_ms=60_000))
    log.advance_log_start(9)
    log.delete_old_segments()
    marked = [name for name in opener.disk.list(log.folder) if name.endswith(".deleted")]
    assert {name.split(".")[1] for name in marked} == {"log", "index", "timeindex", "snapshot"}
    opener.clock.advance(59)
    assert marked == [name for name in opener.disk.list(log.folder) if name.endswith(".deleted")]
    opener.clock.advance(2)
    assert not [name for name in opener.disk.list(log.folder) if name.endswith(".deleted")]


def test_pinned_segment_is_not_deleted(opener: Opener) -> None:
    log = filled(opener, LogConfig(segment_bytes=300, file_delete_delay_ms=1))
    result = log.read(0, 1 << 20)
    assert result.records is not None
    log.advance_log_start(20)
    log.delete_old_segments()
    opener.clock.advance(10)
    assert [name for name in opener.disk.list(log.folder) if name.endswith(".log.deleted")]
    assert [offset for offset, _ in values(result.records.read_all())] == [0, 1, 2, 3]
    assert result.records.read(10, 5) == result.records.read_all()[10:15]
    result.records.release()
    result.records.release()
    assert not [name for name in opener.disk.list(log.folder) if name.endswith(".deleted")]


def test_logs_share_bounded_open_files(opener: Opener) -> None:
    directory = opener.directory(max_open_files=5)
    directory.open()
    directory.load()
    for round_ in range(3):
        for number in range(30):
            log = directory.create_log(TopicPartition("t", number), LogConfig())
            log.append_as_leader(batch(f"{number}-{round_}"), 0)
            assert len(directory.env.files) <= 5
    for number, log in enumerate(directory.logs.values()):
        assert [value for _, value in read_all(log)] == [f"{number}-{r}".encode() for r in range(3)]
        assert len(directory.env.files) <= 5
    directory.close()


def test_pinned_file_is_not_closed(opener: Opener) -> None:
    for name in "abcd":
        opener.disk.open(f"{opener.root}/{name}", create=True).append(name.encode())
    files = OpenFiles(opener.disk, 2)
    pinned = [files.pin(f"{opener.root}/a"), files.pin(f"{opener.root}/b")]
    assert files.get(f"{opener.root}/c").read_at(0, 1) == b"c"
    assert [entry.file.read_at(0, 1) for entry in pinned] == [b"a", b"b"]
    files.drop(f"{opener.root}/a")
    assert pinned[0].file.read_at(0, 1) == b"a"
    for name, entry in zip("ab", pinned, strict=True):
        files.unpin(f"{opener.root}/{name}", entry)
    files.get(f"{opener.root}/d")
    files.close()
    assert len(files) == 0


@pytest.mark.parametrize("offset", [0, 1, 17, 20, 39, 40])
def test_truncate_to_deletes_from_offset(opener: Opener, offset: int) -> None:
    config = LogConfig(segment_bytes=300, index_interval_bytes=100)
    log = filled(opener, config)
    log.append_as_leader(batch("e", producer_id=3, producer_epoch=0, base_sequence=0), 4)
    assert log.truncate_to(offset)
    assert log.log_end_offset == log.high_watermark == offset
    assert [o for o, _ in read_all(log)] == list(range(offset))
    assert 3 not in log.producers.producers or offset == 41
    assert log.epochs.entries() == ([(0, 0)] if offset else [])
    assert not log.truncate_to(offset)
    log.append_as_leader(batch("again"), 5)
    assert read_all(log)[-1] == (offset, b"again")
    log.close()
    assert read_all(opener.log(config)) == read_all(log)


def test_truncate_fully_continues_at_later_offset(opener: Opener) -> None:
    log = filled(opener, LogConfig(segment_bytes=300))
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert log.append_as_leader(batch("x"), 0).first_offset == 1000
    log.close()
    again = opener.log(LogConfig(segment_bytes=300))
    assert again.log_start_offset == 1000
    assert read_all(again) == [(1000, b"x")]
