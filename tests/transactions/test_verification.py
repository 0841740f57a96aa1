"""Verification of transactional appends at the leader (KIP-890)."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.transactions.verification import (
    PartitionVerifier,
    SupportedOperation,
    VerificationGuard,
    Verifications,
    produce_operation,
    txn_offset_commit_operation,
)

from .stage import A0, B0, NONE, TV_0, Stage, done

DEFAULT, GENERIC, ADD = SupportedOperation


def leader(stage: Stage) -> PartitionVerifier:
    return PartitionVerifier(stage.clock, lambda: stage.config, lambda _: stage.coordinator)


def asked(stage, producer, operation, *partitions):
    return done(
        leader(stage).add_or_verify("app", producer.producer_id, producer.producer_epoch, partitions, operation)
    )


def produced(stage, producer, operation, *partitions):
    pending = leader(stage).before_produce("app", producer.producer_id, producer.producer_epoch, partitions, operation)
    return {partition: error.code for partition, error in done(pending).items()}


@pytest.mark.parametrize(("version", "operation"), [(3, DEFAULT), (10, DEFAULT), (11, GENERIC), (12, ADD), (13, ADD)])
def test_produce_version_determines_operation(version, operation):
    assert produce_operation(version) is operation


@pytest.mark.parametrize(("version", "operation"), [(0, DEFAULT), (3, DEFAULT), (4, GENERIC), (5, ADD)])
def test_txn_offset_commit_version_determines_operation(version, operation):
    assert txn_offset_commit_operation(version) is operation


def test_newer_client_produce_adds_partition():
    stage = Stage()
    producer = stage.init()
    assert asked(stage, producer, ADD, A0, B0) == {}
    assert stage.state() == "Ongoing"
    assert stage.commit(producer).error is NONE
    assert stage.marked() == [(A0, True, 1), (B0, True, 1)]


def test_older_client_produce_only_verifies():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, version=TV_0)
    assert asked(stage, producer, GENERIC, A0, B0) == {B0: ErrorCode.TRANSACTION_ABORTABLE}
    assert asked(stage, producer, DEFAULT, A0, B0) == {B0: ErrorCode.INVALID_TXN_STATE}


@pytest.mark.parametrize("operation", SupportedOperation)
def test_stale_producer_gets_invalid_producer_epoch(operation):
    stage = Stage()
    old = stage.init()
    stage.init()
    assert asked(stage, old, operation, A0) == {A0: ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize("operation", SupportedOperation)
def test_missing_coordinator_is_retriable(operation):
    stage = Stage()
    producer = stage.init()
    verifier = PartitionVerifier(stage.clock, lambda: stage.config, lambda _: None)
    response = done(verifier.before_produce("app", producer.producer_id, 0, [A0], operation))
    assert response[A0].code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "COORDINATOR_NOT_AVAILABLE" in str(response[A0])


def test_produce_errors_equal_kafkas():
    stage = Stage()
    producer = stage.init()
    assert produced(stage, producer, DEFAULT, A0) == {A0: ErrorCode.INVALID_TXN_STATE}
    assert produced(stage, producer, GENERIC, A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}
    other = producer._replace(producer_id=4711)
    assert produced(stage, other, ADD, A0) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    assert produced(stage, producer, ADD, A0) == {A0: ErrorCode.NOT_ENOUGH_REPLICAS}


def test_older_client_during_markers_gets_retriable_error():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, version=TV_0)
    stage.markers.hold = True
    stage.commit(producer, version=TV_0)
    assert produced(stage, producer, DEFAULT, A0) == {A0: ErrorCode.NOT_ENOUGH_REPLICAS}


def test_newer_client_waits_while_markers_are_written():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    after = stage.commit(producer)
    response = leader(stage).before_produce("app", after.producer_id, after.producer_epoch, [A0], ADD)
    stage.clock.advance(0.05)
    assert not response.done
    stage.markers.release()
    stage.clock.advance(0.02)
    assert done(response) == {}
    assert stage.state() == "Ongoing"


def test_newer_client_gets_concurrent_transactions_after_backoff_max():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    after = stage.commit(producer)
    response = leader(stage).before_produce("app", after.producer_id, after.producer_epoch, [A0], ADD)
    stage.clock.advance(0.2)
    assert done(response)[A0].code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_cancelled_produce_stops_retrying():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    after = stage.commit(producer)
    response = leader(stage).before_produce("app", after.producer_id, after.producer_epoch, [A0], ADD)
    response.cancel()
    stage.markers.release()
    stage.clock.advance(1)
    assert stage.state() == "CompleteCommit"


def test_verification_of_older_clients_can_be_disabled():
    stage = Stage(partition_verification_enable=False)
    verifier = leader(stage)
    assert not verifier.needed("app", DEFAULT)
    assert verifier.needed("app", ADD)
    assert not verifier.needed(None, ADD)
    assert leader(Stage()).needed("app", GENERIC)


# Guards


class Leader:
    """The producer state of a log that verifications use."""

    def __init__(self) -> None:
        self.verifications = Verifications()

    def start(
        self, epoch=0, sequence=0, known_epoch=None, ongoing=False, newer=True, now_ms=0
    ) -> VerificationGuard | None:
        return self.verifications.start(
            7, epoch, sequence, now_ms, known_epoch=known_epoch, ongoing=ongoing, supports_epoch_bump=newer
        )


def test_guard_permits_one_append():
    log = Leader()
    guard = log.start()
    assert log.verifications.may_append(7, guard)
    assert not log.verifications.may_append(8, guard)
    log.verifications.appended(7, 0, is_control=False)
    assert not log.verifications.may_append(7, guard)


def test_missing_guard_permits_no_append():
    assert not Leader().verifications.may_append(7, None)


def test_ongoing_transaction_needs_no_guard():
    assert Leader().start(known_epoch=0, ongoing=True) is None


def test_older_epoch_gets_no_guard():
    with pytest.raises(KafkaError) as refused:
        Leader().start(epoch=1, known_epoch=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("newer", [True, False])
def test_marker_invalidates_guard_of_its_transaction(newer):
    log = Leader()
    guard = log.start(epoch=3, newer=newer)
    log.verifications.appended(7, 4 if newer else 3, is_control=True)
    assert not log.verifications.may_append(7, guard)


def test_marker_keeps_guard_of_next_transaction():
    log = Leader()
    guard = log.start(epoch=4)
    log.verifications.appended(7, 4, is_control=True)
    assert log.verifications.may_append(7, guard)


def test_repeated_verification_returns_same_guard():
    log = Leader()
    assert log.start() is log.start(sequence=5)


def test_guard_of_earlier_log_instance_is_rejected():
    before, after = Leader(), Leader()
    guard = before.start()
    after.start()
    assert not after.verifications.may_append(7, guard)


def test_lowest_sequence_must_be_appended_first():
    log = Leader()
    log.start(sequence=5)
    log.start(sequence=0)
    log.verifications.check_sequence(7, 0)
    with pytest.raises(KafkaError) as refused:
        log.verifications.check_sequence(7, 5)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_resets_lowest_sequence():
    log = Leader()
    log.start(epoch=0, sequence=0)
    log.start(epoch=1, sequence=3)
    log.verifications.check_sequence(7, 3)


def test_unused_verifications_expire():
    log = Leader()
    log.start(now_ms=1000)
    log.verifications.expire(1999, 1000)
    assert len(log.verifications) == 1
    log.verifications.expire(2000, 1000)
    assert len(log.verifications) == 0
