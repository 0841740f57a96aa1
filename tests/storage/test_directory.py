from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.uuids import Uuid
from ottla.storage.config import LogConfig
from ottla.storage.names import TopicPartition

from .batches import batch
from .test_log import read_all

if TYPE_CHECKING:
    from .conftest import Opener

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b.c_d-e", 0)


def test_clean_stop_reopens_logs_without_reading_them(opener: Opener) -> None:
    directory = opener.directory()
    directory.open()
    directory.load()
    for partition in (A0, A1, B0):
        log = directory.create_log(partition, LogConfig(), Uuid(b"0123456789abcdef"))
        log.append_as_leader(batch(str(partition)), 0)
    directory.close(broker_epoch=7)
    again = opener.directory()
    again.open()
    assert again.load() == []
    assert again.had_clean_shutdown
    assert again.previous_broker_epoch == 7
    assert not any(log.loaded for log in again.logs.values())
    assert set(again.logs) == {A0, A1, B0}
    assert again.topic_id(A0) == Uuid(b"0123456789abcdef")
    for partition, log in again.logs.items():
        assert read_all(log) == [(0, str(partition).encode())]
    again.close()


def test_unclean_stop_recovers_and_reports_every_log(opener: Opener) -> None:
    directory = opener.directory()
    directory.open()
    directory.load()
    directory.create_log(A0, LogConfig()).append_as_leader(batch("x"), 0)
    directory.abandon()
    again = opener.directory()
    again.open()
    (report,) = again.load()
    assert (report.topic_partition, report.segments_checked, report.bytes_dropped) == (A0, 1, 0)
    assert read_all(again.logs[A0]) == [(0, b"x")]
    again.close()


def test_log_directory_is_locked(opener: Opener) -> None:
    first, second = opener.directory(), opener.directory()
    first.open()
    with pytest.raises(BlockingIOError):
        second.open()
    first.close()
    second.open()
    second.close()
