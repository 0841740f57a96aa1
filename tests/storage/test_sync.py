"""With sync, the high watermark waits for fsync; a failed fsync takes the directory offline."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_faulty import FaultyDisk
from ottla.world.random import SeededRandom

from .batches import batch

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def started(sync: bool = True, **config: int) -> tuple[LogDirectory, FaultyDisk, VirtualClock, list[OSError]]:
    clock = VirtualClock()
    disk = FaultyDisk(SeededRandom(1), clock, sync_seconds=(0.01, 0.01))
    failures: list[OSError] = []
    directory = LogDirectory(
        disk, clock, SeededRandom(1), "/data", sync=sync, on_failure=lambda where, error: failures.append(error)
    )
    directory.open()
    directory.load()
    for partition in (A, B):
        directory.create_log(partition, LogConfig(**config))
    return directory, disk, clock, failures


def test_high_watermark_waits_for_fsync() -> None:
    directory, disk, clock, _ = started()
    log = directory.logs[A]
    seen: list[int] = []
    log.on_high_watermark = lambda moved: seen.append(moved.high_watermark)
    log.append_as_leader(batch("a"), 0)
    done: list[OSError | None] = []
    log.flush(done.append)
    log.append_as_leader(batch("b", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), 0)
    log.flush(done.append)
    assert (log.log_end_offset, log.high_watermark, log.durable_offset, done) == (2, 0, 0, [])
    assert log.read(0, 1000).records is None
    clock.advance(0.01)
    assert (log.high_watermark, done) == (1, [None])
    clock.advance(0.01)
    assert (log.high_watermark, log.last_stable_offset, done, seen) == (2, 1, [None, None], [1, 2])
    assert disk.unsynced_bytes(log.active_segment.log_path) == 0
    log.flush(done.append)
    clock.advance(0)
    assert done == [None, None, None]


def test_last_stable_offset_waits_for_durable_marker() -> None:
    from ottla.records.control import ControlType

    directory, _, clock, _ = started()
    log = directory.logs[A]
    log.append_as_leader(batch("b", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), 0)
    log.append_as_leader(batch("plain"), 0)
    log.flush()
    clock.advance(0.01)
    log.append_marker(ControlType.COMMIT, 0, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    assert (log.high_watermark, log.last_stable_offset) == (2, 0)
    log.flush()
    clock.advance(0.02)
    assert (log.high_watermark, log.last_stable_offset) == (3, 3)


def test_failed_fsync_takes_directory_offline() -> None:
    directory, disk, clock, failures = started()
    log = directory.logs[A]
    disk.fail("sync", "*.log")
    log.append_as_leader(batch("a"), 0)
    done: list[OSError | None] = []
    log.flush(done.append)
    clock.advance(0.02)
    assert isinstance(done[0], OSError)
    assert len(failures) == 1
    assert not directory.online
    assert log.high_watermark == 0
    disk.heal()
    for call in (
        lambda: log.append_as_leader(batch("b"), 0),
        lambda: directory.logs[B].append_as_leader(batch("b"), 0),
        lambda: log.read(0, 100),
        lambda: log.flush(),
        lambda: directory.checkpoint(),
        lambda: directory.create_log(TopicPartition("c", 0), LogConfig()),
    ):
        with pytest.raises(KafkaError) as error:
            call()
        assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    directory.close()
    assert not disk.exists("/data/.kafka_cleanshutdown")


def test_flush_messages_and_flush_ms_trigger_flush() -> None:
    directory, disk, clock, _ = started(False, flush_messages=3, flush_ms=5000)
    log = directory.logs[A]
    for _ in range(2):
        log.append_as_leader(batch("a"), 0)
    clock.advance(1)
    assert disk.unsynced_bytes(log.active_segment.log_path) > 0
    log.append_as_leader(batch("a"), 0)
    clock.advance(1)
    assert disk.unsynced_bytes(log.active_segment.log_path) == 0
    other = directory.logs[B]
    other.append_as_leader(batch("b"), 0)
    directory.flush_dirty()
    clock.advance(1)
    assert disk.unsynced_bytes(other.active_segment.log_path) > 0
    clock.advance(5)
    directory.flush_dirty()
    clock.advance(1)
    assert disk.unsynced_bytes(other.active_segment.log_path) == 0


def test_high_watermark_does_not_wait_without_sync() -> None:
    directory, _, _, _ = started(False)
    log = directory.logs[A]
    log.append_as_leader(batch("a"), 0)
    assert log.high_watermark == 1
