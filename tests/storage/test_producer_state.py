from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_schemas.storage import ProducerSnapshot
from ottla.records.batch import read_header
from ottla.records.control import ControlType
from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptSnapshotError
from ottla.storage.log.producer_state import AppendOrigin, ProducerEntry, ProducerState, decode_snapshot

from .batches import batch
from .test_log import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.appending import AppendResult
    from ottla.storage.log.log import Log

    from .conftest import Opener

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


def produce(
    log: Log,
    sequence: int,
    *values: str,
    epoch: int = 0,
    pid: int = 7,
    transactional: bool = False,
    verified: bool = True,
    supports_epoch_bump: bool = False,
) -> AppendResult:
    data = batch(
        *(values or ("v",)),
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return log.append_as_leader(data, 0, verified=verified, supports_epoch_bump=supports_epoch_bump)


def refused(code: ErrorCode, call: Callable[[], AppendResult]) -> None:
    with pytest.raises(KafkaError) as error:
        call()
    assert error.value.code == code


def test_duplicate_of_last_five_batches_returns_first_offsets(memory_opener: Opener) -> None:
    log = memory_opener.log()
    for number in range(7):
        produce(log, 2 * number, "a", "b")
    for number in range(2, 7):
        result = produce(log, 2 * number, "a", "b")
        assert (result.first_offset, result.last_offset, result.duplicate) == (2 * number, 2 * number + 1, True)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: produce(log, 2, "a", "b"))
    assert log.log_end_offset == 14


def test_sequence_gap_is_out_of_order(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 0, "a", "b", "c")
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: produce(log, 4))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: produce(log, 2))
    produce(log, 3)
    assert log.log_end_offset == 4


def test_unknown_producer_starts_anywhere_new_epoch_at_zero(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 41)
    produce(log, 42)
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: produce(log, 43, epoch=1))
    produce(log, 0, epoch=1)
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: produce(log, 43, epoch=0))
    refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, lambda: produce(log, 5, pid=8, supports_epoch_bump=True))


def test_sequence_wraps_after_int32_max(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 2**31 - 2, "a", "b")
    produce(log, 0)
    assert log.producers.producers[7].last_sequence == 0
    result = produce(log, 2**31 - 2, "a", "b")
    assert result.duplicate
    wrapped = memory_opener.log(name="t-1")
    produce(wrapped, 2**31 - 1, "a", "b")
    produce(wrapped, 1)
    assert produce(wrapped, 2**31 - 1, "a", "b").duplicate


def test_last_stable_offset_waits_for_oldest_transaction(memory_opener: Opener) -> None:
    log = memory_opener.log(LogConfig(segment_bytes=300))
    produce(log, 0, pid=1, transactional=True)  # 0
    produce(log, 0, pid=2, transactional=True)  # 1
    log.append_as_leader(batch("plain"), 0)  # 2
    assert log.last_stable_offset == 0
    log.append_marker(ABORT, 0, producer_id=1, producer_epoch=0, coordinator_epoch=0)  # 3
    assert log.last_stable_offset == 1
    produce(log, 1, pid=1, transactional=True)  # 4
    log.append_marker(COMMIT, 0, producer_id=2, producer_epoch=0, coordinator_epoch=0)  # 5
    assert log.last_stable_offset == 4
    log.append_marker(ABORT, 0, producer_id=1, producer_epoch=0, coordinator_epoch=0)  # 6
    assert log.last_stable_offset == log.high_watermark == 7
    actual = [
        (t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset) for t in log.aborted_transactions(0, 7)
    ]
    assert actual == [(1, 0, 3, 1), (1, 4, 6, 7)]
    assert [t.first_offset for t in log.aborted_transactions(4, 5)] == [4]
    assert [t.first_offset for t in log.aborted_transactions(1, 2)] == [0]
    result = log.read(0, 1 << 20, log.last_stable_offset, aborted=True)
    assert result.aborted is not None
    assert {t.first_offset for t in result.aborted} <= {0, 4}
    assert result.records is not None
    result.records.release()


def test_unverified_transaction_is_refused(memory_opener: Opener) -> None:
    log = memory_opener.log()
    refused(ErrorCode.INVALID_TXN_STATE, lambda: produce(log, 0, transactional=True, verified=False))
    produce(log, 0, transactional=True)
    produce(log, 1, transactional=True, verified=False)
    assert log.has_ongoing_transaction(7, 0)
    assert not log.has_ongoing_transaction(7, 1)
    refused(ErrorCode.INVALID_TXN_STATE, lambda: produce(log, 2))


def test_marker_of_older_coordinator_epoch_is_fenced(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 0, transactional=True)
    marker = {"producer_id": 7, "producer_epoch": 0}
    log.append_marker(COMMIT, 0, coordinator_epoch=3, **marker)
    refused(
        ErrorCode.TRANSACTION_COORDINATOR_FENCED, lambda: log.append_marker(COMMIT, 0, coordinator_epoch=2, **marker)
    )
    refused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        lambda: log.append_marker(COMMIT, 0, producer_id=7, producer_epoch=-1, coordinator_epoch=3),
    )


def test_transaction_v2_marker_bumps_epoch_and_may_repeat(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 0, transactional=True)
    refused(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        lambda: log.append_marker(
            COMMIT, 0, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=2
        ),
    )
    for _ in range(2):
        log.append_marker(COMMIT, 0, producer_id=7, producer_epoch=1, coordinator_epoch=0, transaction_version=2)
    assert log.producers.producers[7].producer_epoch == 1
    refused(ErrorCode.INVALID_PRODUCER_EPOCH, lambda: produce(log, 1, transactional=True))


def test_snapshot_equals_kafkas_bytes() -> None:
    state = ProducerState()
    append = state.prepare(5, AppendOrigin.CLIENT)
    header = read_header(batch("a", "b", producer_id=5, producer_epoch=3, base_sequence=0, transactional=True))
    append.append_data(header, 100, 1234)
    state.update(append)
    state.producers[6] = ProducerEntry(6, 1, 9, 77)
    data = state.encode_snapshot()
    body = struct.pack(">i", 2)
    body += struct.pack(">qhiqiqiq", 5, 3, 1, 101, 1, 1234, -1, 100)
    body += struct.pack(">qhiqiqiq", 6, 1, -1, -1, 0, 77, 9, -1)
    assert data == struct.pack(">hI", 1, crc32c(body)) + body
    again = ProducerState()
    again.load(decode_snapshot(data), 102, 1300)
    assert again.producers == state.producers
    assert list(again.ongoing.items()) == [(100, 5)]
    for broken in (b"", data[:9], data[:-1], data + b"x", b"\x00\x02" + data[2:], data[:20] + b"\x09" + data[21:]):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(broken)


def test_producer_expires_unless_in_transaction(memory_opener: Opener) -> None:
    log = memory_opener.log()
    produce(log, 0, pid=1)
    produce(log, 0, pid=2, transactional=True)
    log.producers.remove_expired(1_700_000_000_000 + 86_400_000 - 1)
    assert set(log.producers.producers) == {1, 2}
    log.producers.remove_expired(1_700_000_000_000 + 86_400_000)
    assert set(log.producers.producers) == {2}


def test_producer_state_is_rebuilt_without_valid_snapshot(opener: Opener) -> None:
    config = LogConfig(segment_bytes=300)
    log = opener.log(config)
    for number in range(12):
        produce(log, number)
    log.close()
    for offset in list(log.snapshots):
        opener.disk.open(log.snapshot_path(offset)).write_at(5, b"\xee\xee")
    again = opener.log(config, clean=False)
    assert again.producers.producers[7].last_sequence == 11
    produce(again, 12)
    assert len(read_all(again)) == 13


def test_snapshot_matches_protocol_schema() -> None:
    state = ProducerState()
    state.producers[6] = ProducerEntry(6, 1, 9, 77)
    (entry,) = ProducerSnapshot.decode(state.encode_snapshot()[2:], 1).producer_entries
    assert (entry.producer_id, entry.epoch, entry.last_sequence, entry.timestamp) == (6, 1, -1, 77)


def by_id(data: bytes) -> list[ProducerEntry]:
    return sorted(decode_snapshot(data), key=lambda entry: entry.producer_id)


def test_snapshot_of_many_producers_is_encoded_in_pieces(
    memory_opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.storage.log.rolling.INLINE_PRODUCERS", 30)
    log = memory_opener.log()
    for pid in range(100):
        produce(log, 0, pid=pid)
    expected = by_id(log.producers.encode_snapshot())
    log.roll()
    assert log.snapshots == []
    turns = 0
    while not log.snapshots:
        for pid in (turns, 99 - turns):  # producers write in between, encoded already or not
            produce(log, 1, pid=pid)
        assert memory_opener.clock.step()
        turns += 1
    assert turns >= 4
    assert log.snapshots == [100]
    assert by_id(memory_opener.disk.read(log.snapshot_path(100))) == expected
    monkeypatch.setattr("ottla.storage.log.rolling.INLINE_PRODUCERS", 1000)
    recovered = memory_opener.log(clean=False)
    assert by_id(recovered.producers.encode_snapshot()) == by_id(log.producers.encode_snapshot())


def test_truncation_cancels_snapshot_in_progress(memory_opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.storage.log.rolling.INLINE_PRODUCERS", 30)
    log = memory_opener.log()
    for pid in range(100):
        produce(log, 0, pid=pid)
    log.roll()
    log.truncate_to(50)
    memory_opener.clock.run_until_idle()
    assert log.snapshots == []
    assert len(log.producers.producers) == 50
