"""Adding partitions to transactions, and verifying them."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode

from .stage import A0, A1, B0, NONE, OFFSETS_7, TV_0, TV_2, Stage, done


def test_first_partition_begins_transaction():
    stage = Stage()
    producer = stage.init()
    began = stage.clock.now_ms()
    assert stage.add(producer, A0) is NONE
    assert stage.state() == "Ongoing"
    assert stage.last().start_timestamp == began


def test_later_partitions_keep_start_timestamp():
    stage = Stage()
    producer = stage.init()
    began = stage.clock.now_ms()
    stage.add(producer, A0)
    stage.clock.advance(3)
    stage.add(producer, A1, OFFSETS_7)
    last = stage.last()
    assert list(last.partitions) == [A0, A1, OFFSETS_7]
    assert (last.start_timestamp, last.last_update_timestamp) == (began, began + 3000)


def test_added_partitions_write_no_second_record():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, A1)
    assert stage.add(producer, A1) is NONE
    assert stage.states() == ["Empty", "Ongoing"]


def test_record_has_client_transaction_version():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, version=TV_0)
    assert stage.last().client_transaction_version is TV_0
    stage.add(producer, B0, version=TV_2)
    assert stage.last().client_transaction_version is TV_2


@pytest.mark.parametrize("transactional_id", ["", None])
def test_missing_transactional_id_is_invalid_request(transactional_id):
    stage = Stage()
    assert stage.add(stage.init(), A0, transactional_id=transactional_id) is ErrorCode.INVALID_REQUEST


def test_unknown_transactional_id_is_invalid_mapping():
    stage = Stage()
    assert stage.add(stage.init(), A0, transactional_id="other") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_other_producer_id_is_invalid_mapping():
    stage = Stage()
    producer = stage.init()
    assert stage.add(producer._replace(producer_id=4711), A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("epoch", [-1, 0, 2, 32767])
def test_other_epoch_is_fenced(epoch):
    stage = Stage()
    stage.init()
    producer = stage.init()
    assert stage.add(producer._replace(producer_epoch=epoch), A0) is ErrorCode.PRODUCER_FENCED


def test_add_while_markers_are_written_is_concurrent_transactions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    after = stage.commit(producer)
    assert stage.add(after, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.markers.release()
    assert stage.add(after, A0) is NONE


def test_add_while_record_is_written_is_concurrent_transactions():
    stage = Stage()
    producer = stage.init()
    stage.log.hold = True
    first = stage.coordinator.add_partitions("app", *producer[1:], [A0], TV_2)
    assert stage.add(producer, A1) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.log.release()
    assert done(first) is NONE
    assert list(stage.last().partitions) == [A0]


def test_failed_add_is_not_in_transaction():
    stage = Stage()
    producer = stage.init()
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.add(producer, A0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state() == "Empty"
    assert stage.verify(producer, A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}


def test_add_on_other_node_is_not_coordinator():
    stage = Stage()
    producer = stage.init()
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    assert stage.add(producer, A0) is ErrorCode.NOT_COORDINATOR
    assert stage.verify(producer, A0) == {A0: ErrorCode.NOT_COORDINATOR}


# Verification (KIP-890, first part)


def test_only_added_partitions_are_verified():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    assert stage.verify(producer, A0, B0) == {A0: NONE, B0: ErrorCode.TRANSACTION_ABORTABLE}


def test_ended_transaction_has_no_partitions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, version=TV_0)
    stage.commit(producer, version=TV_0)
    assert stage.verify(producer, A0) == {A0: ErrorCode.TRANSACTION_ABORTABLE}


def test_verification_of_stale_producer_is_fenced():
    stage = Stage()
    old = stage.init()
    stage.add(old, A0)
    stage.init()
    stage.init()
    assert stage.verify(old, A0) == {A0: ErrorCode.PRODUCER_FENCED}


def test_verification_of_other_producer_id_is_invalid_mapping():
    stage = Stage()
    stage.add(stage.init(), A0)
    assert stage.verify(stage.init("other"), A0) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_verification_of_unknown_id_is_invalid_mapping():
    stage = Stage()
    producer = stage.init()
    assert stage.verify(producer, A0, transactional_id="x") == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert stage.verify(producer, A0, transactional_id="") == {A0: ErrorCode.INVALID_REQUEST}


def test_verification_while_markers_are_written_is_concurrent():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, version=TV_0)
    stage.markers.hold = True
    stage.commit(producer, version=TV_0)
    assert stage.verify(producer, A0) == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}


def test_verification_during_add_uses_durable_partitions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.log.hold = True
    stage.coordinator.add_partitions("app", *producer[1:], [A1], TV_2)
    assert stage.verify(producer, A0, A1) == {A0: NONE, A1: ErrorCode.TRANSACTION_ABORTABLE}
