"""Recovery at start: torn tails, interrupted swaps, missing files, directories that no broker wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.records.batch import HEADER_SIZE, compute_crc
from ottla.storage.cleaner import compaction
from ottla.storage.config import LogConfig
from ottla.storage.names import TopicPartition

from .batches import batch, values
from .test_compaction import open_directory, put, records_of, roll
from .test_log import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log
    from ottla.world.disk import Disk

    from .conftest import Opener

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=100)


def filled(opener: Opener, count: int = 20, config: LogConfig = CONFIG) -> Log:
    log = opener.log(config)
    for number in range(count):
        log.append_as_leader(batch(f"{number:04d}"), 0)
    return log


@pytest.mark.parametrize("tail", [b"\x00", bytes(5), bytes(61), bytes(4096), b"garbage" * 9])
def test_torn_tail_is_truncated_and_reported(opener: Opener, tail: bytes) -> None:
    log = filled(opener, 19)
    path, size = log.active_segment.log_path, log.active_segment.size
    opener.disk.open(path).append(tail)
    again = opener.log(CONFIG, clean=False)
    assert again.log_end_offset == 19
    assert again.report is not None
    (damage,) = again.report.damage
    assert (damage.path, damage.position, damage.offset, damage.bytes_dropped) == (path, size, 19, len(tail))
    assert opener.disk.size(path) == size
    third = opener.log(CONFIG, clean=False)
    assert third.report is not None
    assert third.report.damage == []


@pytest.mark.parametrize("cut", [1, 11, 16, 17, 40, HEADER_SIZE - 1, HEADER_SIZE])
def test_partial_batch_is_truncated(opener: Opener, cut: int) -> None:
    log = filled(opener, 19)
    last = list(log.active_segment.batches())[-1]
    opener.disk.open(log.active_segment.log_path).truncate(last.position + cut)
    again = opener.log(CONFIG, clean=False)
    assert again.log_end_offset == 18
    assert [o for o, _ in read_all(again)] == list(range(18))
    assert again.report is not None
    assert again.report.bytes_dropped == cut


def test_damage_drops_all_later_segments(opener: Opener) -> None:
    log = filled(opener)
    victim = log.segments[2]
    opener.disk.open(victim.log_path).write_at(70, b"\xff")
    again = opener.log(CONFIG, clean=False)
    assert again.log_end_offset == victim.base_offset
    assert again.report is not None
    assert again.report.segments_dropped == log.bases[3:]
    assert again.report.damage[0].reason == "wrong CRC"
    assert again.report.bytes_dropped == sum(segment.size for segment in log.segments[2:])
    assert [o for o, _ in read_all(again)] == list(range(victim.base_offset))


def test_recovery_skips_below_recovery_point(opener: Opener) -> None:
    log = filled(opener)
    opener.disk.open(log.segments[0].log_path).write_at(70, b"\xff")
    again = opener.log(CONFIG, clean=False, recovery_point=log.bases[2])
    assert again.log_end_offset == 20
    assert again.report is not None
    assert again.report.segments_checked == len(log.segments) - 2


def test_missing_index_is_rebuilt_after_clean_stop(opener: Opener) -> None:
    log = filled(opener)
    log.close()
    expected = {name: opener.disk.read(f"{log.folder}/{name}") for name in opener.disk.list(log.folder)}
    for name in expected:
        if name.endswith((".index", ".timeindex")):
            opener.disk.remove(f"{log.folder}/{name}")
    again = opener.log(CONFIG)
    assert again.report is not None
    again.close()
    assert {name: opener.disk.read(f"{log.folder}/{name}") for name in opener.disk.list(log.folder)} == expected


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("contents", [b"x", b"\x7f" * 24, bytes(240), b"\x00\x00\x00\x01\x00\x00\x00\x07" * 3])
def test_corrupt_index_is_rebuilt_on_use(opener: Opener, suffix: str, contents: bytes) -> None:
    log = filled(opener)
    log.close()
    for segment in log.segments:
        file = opener.disk.open(segment.path(suffix))
        file.truncate(0)
        file.append(contents)
    again = opener.log(CONFIG)
    assert again.log_end_offset == 20
    for offset in range(20):
        assert read_all(again, offset, 1)[0][0] == offset
    result = again.offset_for_timestamp(1_700_000_000_000)
    assert result is not None
    assert result.offset == 0


def test_index_without_log_is_removed(opener: Opener) -> None:
    log = filled(opener, 3)
    log.close()
    for suffix in (".index", ".timeindex", ".txnindex"):
        opener.disk.open(f"{log.folder}/00000000000000000777{suffix}", create=True).append(bytes(12))
    again = opener.log(CONFIG)
    assert again.log_end_offset == 3
    assert not [name for name in opener.disk.list(log.folder) if "777" in name]


def test_log_ending_before_its_start_is_reset(opener: Opener) -> None:
    log = filled(opener, 5)
    log.close()
    again = opener.log(CONFIG, clean=False, log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    assert again.report is not None
    assert again.report.segments_dropped == log.bases
    assert again.append_as_leader(batch("x"), 0).first_offset == 100


def test_directory_with_gaps_and_wrong_count_is_served_unchanged(opener: Opener) -> None:
    folder = f"{opener.root}/foo-0"
    opener.disk.make_dirs(folder)
    odd = batch("one", base_offset=7)
    odd[57:61] = (5).to_bytes(4)  # a count that no validator would take
    odd[17:21] = compute_crc(odd, 0, len(odd)).to_bytes(4)
    later = batch("two", base_offset=20)
    opener.disk.open(f"{folder}/00000000000000000007.log", create=True).append(odd, later)
    opener.disk.open(f"{folder}/00000000000000000040.log", create=True).append(batch("three", base_offset=40))
    opener.disk.open(f"{folder}/partition.metadata", create=True).append(
        b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw==\n"
    )
    directory = opener.directory()
    directory.open()
    directory.load()
    log = directory.logs[TopicPartition("foo", 0)]
    assert (log.log_start_offset, log.log_end_offset) == (7, 41)
    assert str(directory.topic_id(TopicPartition("foo", 0))) == "AAECAwQFBgcICQoLDA0ODw"
    result = log.read(7, 1 << 20)
    assert result.records is not None
    with result.records as records:
        assert records.read_all() == bytes(odd + later)
    assert read_all(log, 20) == [(20, b"two"), (40, b"three")]
    assert read_all(log, 30) == [(40, b"three")]
    directory.close()


def test_old_message_formats_are_recovered_and_served(opener: Opener) -> None:
    import struct
    import zlib

    def message(offset: int, magic: int, value: bytes) -> bytes:
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1_600_000_000_000) if magic else b"")
        body += struct.pack(">ii", -1, len(value)) + value
        return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body

    folder = f"{opener.root}/old-0"
    opener.disk.make_dirs(folder)
    data = message(0, 0, b"v0") + message(1, 1, b"v1") + bytes(batch("v2", base_offset=2))
    opener.disk.open(f"{folder}/00000000000000000000.log", create=True).append(data)
    log = opener.log(CONFIG, clean=False, name="old-0")
    assert log.log_end_offset == 3
    result = log.read(0, 1 << 20)
    assert result.records is not None
    with result.records as records:
        assert records.read_all() == data
    assert values(data[-len(batch("v2")) :]) == [(2, b"v2")]


def crash_in_swap(opener: Opener, stop_before: int) -> tuple[list[tuple[int, bytes | None]], list[str]]:
    """Compact a log and stop before the n-th rename of the swap; return its contents and file names."""
    directory, log = open_directory(opener, LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01))
    for round_ in range(3):
        for key in "abc":
            put(log, key, f"{key}{round_}")
        roll(log)
    cleanable = directory.filthiest()
    assert cleanable is not None
    cleaning = compaction.begin(cleanable, opener.clock.now_ms())
    cleaning.build_map()
    (group,) = cleaning.groups
    made = cleaning.clean(group)
    expected = [(record.offset, record.value) for record in records_of(log)]
    count = 0
    rename = opener.disk.rename

    class Stop(BaseException):
        pass

    def counting(old: str, new: str) -> None:
        nonlocal count
        if count == stop_before:
            raise Stop
        count += 1
        rename(old, new)

    opener.disk.rename = counting  # type: ignore[method-assign]
    try:
        compaction.swap_in(log, made, group)
    except Stop:
        pass
    else:
        pytest.skip("the swap has fewer steps")
    finally:
        opener.disk.rename = rename  # type: ignore[method-assign]
        directory.abandon()
    return expected, opener.disk.list(log.folder)


@pytest.mark.parametrize("stop_before", range(18))
def test_interrupted_swap_is_completed_or_undone(memory_opener: Opener, stop_before: int) -> None:
    before, _ = crash_in_swap(memory_opener, stop_before)
    for _ in range(2):
        directory, log = open_directory(memory_opener)
        contents = [(record.offset, record.value) for record in records_of(log)]
        assert contents in (before, [(6, b"a2"), (7, b"b2"), (8, b"c2")])
        names = memory_opener.disk.list(log.folder)
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert log.log_end_offset == 9
        directory.abandon()


def test_swap_after_remaining_cleaned_segment_is_dropped(memory_opener: Opener) -> None:
    log = filled(memory_opener)
    log.close()
    folder, disk = log.folder, memory_opener.disk
    expected = read_all(log)

    def copy(name: str, mark: str) -> None:
        disk.open(f"{folder}/{name}{mark}", create=True).append(b"whatever")

    copy("00000000000000000004.log", ".cleaned")
    copy("00000000000000000008.log", ".swap")
    again = memory_opener.log(CONFIG)
    assert read_all(again) == expected
    assert not [name for name in disk.list(folder) if name.endswith((".cleaned", ".swap"))]


def test_deleted_files_are_removed_at_start(opener: Opener) -> None:
    directory = opener.directory()
    directory.open()
    directory.load()
    partition = TopicPartition("t", 0)
    log = directory.create_log(partition, CONFIG)
    for number in range(20):
        log.append_as_leader(batch(f"{number:04d}"), 0)
    log.advance_log_start(10)
    log.delete_old_segments()
    other = TopicPartition("gone", 0)
    directory.create_log(other, CONFIG).append_as_leader(batch("x"), 0)
    directory.delete_log(other)
    assert [name for name in opener.disk.list(opener.root) if name.endswith("-delete")]
    directory.checkpoint()
    directory.abandon()
    again = opener.directory()
    again.open()
    again.load()
    assert set(again.logs) == {partition}
    assert again.logs[partition].log_start_offset == 10
    assert not [name for name in opener.disk.list(opener.root) if name.endswith("-delete")]
    assert not [name for name in opener.disk.list(log.folder) if name.endswith(".deleted")]
    again.close()


def test_read_in_progress_survives_log_deletion(opener: Opener) -> None:
    directory = opener.directory()
    directory.open()
    directory.load()
    partition = TopicPartition("t", 0)
    log = directory.create_log(partition, LogConfig(file_delete_delay_ms=10))
    log.append_as_leader(batch("a", "b"), 0)
    result = log.read(0, 1000)
    assert result.records is not None
    directory.delete_log(partition)
    opener.clock.advance(1)
    assert [v for _, v in values(result.records.read_all())] == [b"a", b"b"]
    assert [name for name in opener.disk.list(opener.root) if name.endswith("-delete")]
    result.records.release()
    assert not [name for name in opener.disk.list(opener.root) if name.endswith("-delete")]
    again = directory.create_log(partition, LogConfig())
    assert again.log_end_offset == 0
    directory.close()


def test_stray_logs_are_renamed(opener: Opener) -> None:
    directory = opener.directory()
    directory.open()
    directory.load()
    directory.create_log(TopicPartition("t", 0), CONFIG).append_as_leader(batch("x"), 0)
    directory.close()
    again = opener.directory()
    again.open()
    again.load(is_stray=lambda partition, topic_id: partition.topic == "t")
    assert again.logs == {}
    (name,) = again.strays
    assert name.startswith("t-0.")
    assert name.endswith("-stray")
    assert _files(opener.disk, f"{opener.root}/{name}", lambda n: n.endswith(".log"))
    again.close()


def _files(disk: Disk, folder: str, keep: Callable[[str], bool]) -> list[str]:
    return [name for name in disk.list(folder) if keep(name)]
