from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.records.control import ControlType
from ottla.records.iterate import Record, iter_records
from ottla.storage.cleaner import compaction
from ottla.storage.config import LogConfig
from ottla.storage.errors import CleaningAbortedError, CorruptLogError
from ottla.storage.log.segment import Segment
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock

from .batches import batch, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.directory import LogDirectory
    from ottla.storage.log.log import Log

    from .conftest import Opener

PARTITION = TopicPartition("compacted", 0)
DAY = 86_400_000
CONFIG = LogConfig(
    cleanup_policy=("compact",), segment_bytes=2000, min_cleanable_dirty_ratio=0.01, delete_retention_ms=DAY
)


def open_directory(opener: Opener, config: LogConfig = CONFIG) -> tuple[LogDirectory, Log]:
    directory = opener.directory()
    directory.open()
    directory.load(lambda topic: config)
    return directory, directory.create_log(PARTITION, config)


def all_bytes(log: Log) -> bytes:
    stored = b""
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = log.read(offset, 1 << 20)
        if result.records is None:
            break
        with result.records as records:
            data = records.read_all()
        stored += data
        offset = checked(data)[-1].next_offset
    return stored


def records_of(log: Log) -> list[Record]:
    data = all_bytes(log)
    return [r for h in iter_batches(data) if not h.is_control for r in iter_records(data, h)]


def put(log: Log, key: str, value: str | None, **options: int) -> int:
    made = build_batch(
        [Record(0, log.env.clock.now_ms(), key.encode(), None if value is None else value.encode())], **options
    )
    return log.append_as_leader(made, 0).first_offset


def roll(log: Log) -> None:
    """Roll the active segment and sync it, so that it may be cleaned."""
    log.roll()
    assert isinstance(log.env.clock, VirtualClock)
    log.env.clock.advance(0)


def test_compaction_keeps_latest_record_of_each_key(opener: Opener) -> None:
    directory, log = open_directory(opener)
    for number in range(200):
        put(log, f"k{number % 7}", f"v{number}")
    roll(log)
    assert directory.clean_all() == 1
    assert [(r.offset, r.value) for r in records_of(log)] == [(n, b"v%d" % n) for n in range(193, 200)]
    assert log.log_end_offset == 200
    assert log.log_start_offset == 0
    assert directory.cleaner_offsets == {PARTITION: 200}
    assert directory.clean_all() == 0
    directory.close()


def test_tombstone_is_removed_after_its_delete_horizon(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    put(log, "a", "1")
    put(log, "a", None)
    put(log, "b", "2")
    put(log, "z", "last")
    roll(log)
    directory.clean_all()
    assert [(r.key, r.value) for r in records_of(log)] == [(b"a", None), (b"b", b"2"), (b"z", b"last")]
    (horizon,) = {h.delete_horizon_ms for h in iter_batches(all_bytes(log)) if h.has_delete_horizon}
    assert horizon == memory_opener.clock.now_ms() + DAY
    memory_opener.clock.advance(DAY / 1000 - 1)
    put(log, "b", "3")
    roll(log)
    directory.clean_all()
    assert (b"a", None) in [(r.key, r.value) for r in records_of(log)]
    memory_opener.clock.advance(2)
    put(log, "b", "4")
    roll(log)
    directory.clean_all()
    assert b"a" not in [r.key for r in records_of(log)]


def test_cleaning_keeps_timestamps_under_new_base_timestamp(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    now = memory_opener.clock.now_ms()
    made = build_batch(
        [Record(0, now - 50, b"a", b"1"), Record(0, now - 7, b"b", None), Record(0, now - 900, b"c", b"3")]
    )
    log.append_as_leader(made, 0)
    put(log, "a", "2")
    put(log, "z", "last")
    roll(log)
    directory.clean_all()
    timestamps = {r.key: r.timestamp for r in records_of(log)}
    assert timestamps[b"b"] == now - 7
    assert timestamps[b"c"] == now - 900
    headers = list(iter_batches(all_bytes(log)))
    assert headers[0].max_timestamp == now - 7
    assert (headers[0].last_offset, headers[0].record_count) == (2, 2)


def test_cleaning_removes_aborted_data_and_markers_after_horizon(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    txn = {"producer_id": 9, "producer_epoch": 0, "transactional": True}
    put(log, "a", "aborted", base_sequence=0, **txn)
    log.append_marker(ControlType.ABORT, 0, producer_id=9, producer_epoch=0, coordinator_epoch=0)
    put(log, "a", "committed", base_sequence=1, **txn)
    log.append_marker(ControlType.COMMIT, 0, producer_id=9, producer_epoch=0, coordinator_epoch=0)
    put(log, "z", "last")
    roll(log)
    assert [t.first_offset for t in log.aborted_transactions(0, 5)] == [0]
    directory.clean_all()
    assert [r.value for r in records_of(log)] == [b"committed", b"last"]
    assert [h.base_offset for h in iter_batches(all_bytes(log)) if h.is_control] == [1, 3]
    for _ in range(2):  # once to see that no data is left and set the horizon, once to let it pass
        memory_opener.clock.advance(2 * DAY / 1000)
        put(log, "z", "last")
        roll(log)
        directory.clean_all()
    assert [h.base_offset for h in iter_batches(all_bytes(log)) if h.is_control] == [3]
    assert log.aborted_transactions(0, 5) == []
    assert log.producers.producers[9].last_sequence == 1


def test_cleaning_keeps_last_batch_of_live_producer_empty(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    put(log, "a", "1", producer_id=5, producer_epoch=2, base_sequence=0)
    put(log, "a", "2", producer_id=5, producer_epoch=2, base_sequence=1)
    put(log, "a", "3")
    roll(log)
    directory.clean_all()
    headers = list(iter_batches(all_bytes(log)))
    assert [(h.base_offset, h.record_count, h.producer_id, h.base_sequence) for h in headers] == [
        (1, 0, 5, 1),
        (2, 1, -1, -1),
    ]
    directory.abandon()
    for snapshot in list(log.snapshots):
        log.discard_snapshot(snapshot)
    again = memory_opener.directory()
    again.open()
    again.load(lambda topic: CONFIG)
    entry = again.logs[PARTITION].producers.producers[5]
    assert (entry.producer_epoch, entry.last_sequence, entry.last_data_offset) == (2, 1, 1)


def test_cleanable_section_follows_min_and_max_compaction_lag(memory_opener: Opener) -> None:
    config = LogConfig(
        cleanup_policy=("compact",),
        segment_bytes=200,
        min_cleanable_dirty_ratio=1.0,
        min_compaction_lag_ms=10_000,
        max_compaction_lag_ms=60_000,
    )
    directory, log = open_directory(memory_opener, config)
    put(log, "a", "1")
    put(log, "a", "2")
    roll(log)
    cleanable = compaction.find_cleanable(log, None, memory_opener.clock.now_ms())
    assert cleanable.dirty_bytes == 0
    memory_opener.clock.advance(11)
    cleanable = compaction.find_cleanable(log, None, memory_opener.clock.now_ms())
    assert cleanable.dirty_bytes > 0
    assert not cleanable.worth_it
    memory_opener.clock.advance(60)
    assert directory.clean_all() == 1
    assert [r.value for r in records_of(log)] == [b"2"]


def test_cleanup_policy_compact_delete_applies_retention(memory_opener: Opener) -> None:
    config = LogConfig(cleanup_policy=("compact", "delete"), retention_ms=1000, min_cleanable_dirty_ratio=0.01)
    directory, log = open_directory(memory_opener, config)
    put(log, "a", "1")
    put(log, "b", "1")
    roll(log)
    memory_opener.clock.advance(2)
    put(log, "b", "2")
    directory.clean_all()
    assert [r.value for r in records_of(log)] == [b"2"]
    assert log.log_start_offset == 2


def test_wrong_crc_stops_cleaning_and_is_located(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    for number in range(10):
        put(log, f"k{number}", "v")
    roll(log)
    before = all_bytes(log)
    path = log.segments[0].log_path
    file = memory_opener.disk.open(path)
    file.write_at(200, bytes([before[200] ^ 1]))
    assert directory.clean_all() == 0
    assert path in directory.uncleanable[PARTITION]
    file.write_at(200, before[200:201])
    assert all_bytes(log) == before


def test_swap_is_refused_when_log_changed_meanwhile(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    for number in range(50):
        put(log, f"k{number % 3}", "v" * 50)
    roll(log)
    cleanable = directory.filthiest()
    assert cleanable is not None
    cleaning = compaction.begin(cleanable, memory_opener.clock.now_ms())
    cleaning.build_map()
    made = cleaning.clean(cleaning.groups[0])
    log.advance_log_start(log.log_end_offset)
    log.delete_old_segments()
    assert not compaction.swap_in(log, made, cleaning.groups[0])
    assert not [name for name in memory_opener.disk.list(log.folder) if name.endswith(".cleaned")]


def test_cleaning_merges_small_segments(opener: Opener) -> None:
    directory, log = open_directory(opener)
    for number in range(300):
        put(log, f"key {number % 50}", "x" * 20)
    roll(log)
    before = len(log.segments)
    directory.clean_all()
    put(log, "key", "x")
    roll(log)
    directory.clean_all()  # groups are made by the sizes that segments have before they are cleaned
    assert len(log.segments) < before / 2
    opener.clock.advance(61)
    names = opener.disk.list(log.folder)
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]
    assert sum(name.endswith(".log") for name in names) == len(log.segments)
    directory.close()


@dataclass
class Model:
    """The expected contents: the last value of each key, and the record written at each offset."""

    written: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    latest: dict[bytes, int] = field(default_factory=dict)


@pytest.mark.parametrize("seed", range(12))
def test_any_cleaning_keeps_latest_value_of_every_key(memory_opener: Opener, seed: int) -> None:
    chance = random.Random(seed)
    config = LogConfig(
        cleanup_policy=("compact",),
        segment_bytes=chance.choice([700, 3000, 1 << 20]),
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=chance.choice([0, 1000, DAY]),
        index_interval_bytes=chance.choice([0, 100, 4096]),
    )
    directory, log = open_directory(memory_opener, config)
    model = Model()
    compression = chance.choice([0, 0, 1, 2, 3, 4])
    for _ in range(12):
        for _ in range(chance.randrange(1, 25)):
            records = [
                Record(
                    0,
                    memory_opener.clock.now_ms() - chance.randrange(1000),
                    b"k%d" % chance.randrange(30),
                    None if chance.random() < 0.2 else b"v%d" % chance.randrange(10**6),
                )
                for _ in range(chance.randrange(1, 6))
            ]
            first = log.append_as_leader(build_batch(records, compression=compression), 0).first_offset
            for number, record in enumerate(records):
                assert record.key is not None
                model.written[first + number] = (record.key, record.value)
                model.latest[record.key] = first + number
        memory_opener.clock.advance(chance.choice([0, 1, 90_000]))
        if chance.random() < 0.7:
            roll(log)
        directory.clean_all()
        if chance.random() < 0.3:
            clean = chance.random() < 0.5
            (directory.close if clean else directory.abandon)()
            directory = memory_opener.directory()
            directory.open()
            directory.load(lambda topic, config=config: config)
            log = directory.logs[PARTITION]
        check(log, model)


def check(log: Log, model: Model) -> None:
    remaining = records_of(log)
    offsets = [record.offset for record in remaining]
    assert offsets == sorted(set(offsets))
    for record in remaining:
        assert model.written[record.offset] == (record.key, record.value)
    present = set(offsets)
    for key, offset in model.latest.items():
        if model.written[offset][1] is not None:
            assert offset in present, f"the latest value of {key!r} at {offset} is gone"
    for start in offsets[:: max(1, len(offsets) // 20)]:
        result = log.read(start, 1)
        assert result.records is not None
        with result.records as records:
            header = checked(records.read_all())[0]
        assert header.base_offset <= start <= header.last_offset


def test_unreadable_records_stop_cleaning(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    broken = batch("v", keys=[b"k"])
    log.append_raw(_with_count(broken, 2))
    put(log, "z", "last")
    roll(log)
    cleanable = directory.filthiest()
    assert cleanable is not None
    with pytest.raises(CorruptLogError):
        compaction.clean(cleanable, memory_opener.clock.now_ms())


def _with_count(made: bytearray, count: int) -> bytearray:
    from ottla.records.batch import compute_crc

    made[57:61] = count.to_bytes(4)
    made[17:21] = compute_crc(made, 0, len(made)).to_bytes(4)
    return made


def test_cleaned_segment_has_valid_indexes(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener, LogConfig(cleanup_policy=("compact",), index_interval_bytes=100))
    for number in range(500):
        put(log, f"k{number % 100}", f"v{number}")
    roll(log)
    directory.clean_all()
    segment = Segment(log.env, log.folder, 0)
    assert len(segment.offset_index) > 10
    for header in segment.batches():
        indexed = segment.find(header.base_offset)
        assert indexed == header


def test_cleaning_runs_in_a_thread_beside_appends(opener: Opener) -> None:
    directory, log = open_directory(opener)
    for number in range(3000):
        put(log, f"k{number % 40}", f"v{number}")
    roll(log)
    steps = directory.cleaning()
    written = 3000
    with ThreadPoolExecutor(1) as pool:
        step: Callable[[], object] | None = next(steps)
        while step is not None:
            future = pool.submit(step)
            while written < 3500:
                put(log, f"k{written % 40}", f"v{written}")
                written += 1
                if future.done():
                    break
            try:
                step = steps.send(future.result())
            except StopIteration as end:
                step, cleaned = None, end.value
    assert cleaned >= 1
    assert written > 3000
    latest = {record.key: record.value for record in records_of(log)}
    assert latest == {b"k%d" % (n % 40): b"v%d" % n for n in range(written - 40, written)}
    directory.close()


def test_deleting_a_log_stops_its_cleaning_only(memory_opener: Opener) -> None:
    directory, log = open_directory(memory_opener)
    for number in range(100):
        put(log, f"k{number % 3}", "v" * 50)
    roll(log)
    steps = directory.cleaning()
    next(steps)()
    directory.delete_log(PARTITION)
    copy = steps.send(None)
    with pytest.raises((CleaningAbortedError, FileNotFoundError)) as aborted:
        copy()  # its files have been moved away
    with pytest.raises(StopIteration):
        steps.throw(aborted.value)
    assert directory.online
