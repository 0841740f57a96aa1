"""Initialization of producers: producer ids, epoch bumps, recovery and fencing."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult
from ottla.transactions.states import fencing_error

from .stage import A0, NONE, TV_0, Stage, done


def test_init_without_transactional_id_returns_new_producer_id():
    stage = Stage()
    assert [stage.init(None) for _ in range(3)] == [
        ProducerResult(NONE, 1000, 0),
        ProducerResult(NONE, 1001, 0),
        ProducerResult(NONE, 1002, 0),
    ]
    assert stage.log.records == {}


def test_init_keeps_producer_id_and_bumps_epoch():
    stage = Stage()
    assert stage.init() == ProducerResult(NONE, 1000, 0)
    assert stage.init() == ProducerResult(NONE, 1000, 1)
    stage.crash()
    assert stage.init() == ProducerResult(NONE, 1000, 2)
    assert stage.states() == ["Empty", "Empty", "Empty"]
    assert [record.producer_epoch for record in stage.history()] == [0, 1, 2]


def test_transactional_ids_have_distinct_producer_ids():
    stage = Stage()
    assert stage.init("one").producer_id != stage.init("two").producer_id


def test_empty_transactional_id_is_invalid_request():
    assert Stage().init("") == ProducerResult(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_outside_limits_is_refused(timeout_ms):
    assert Stage().init(timeout_ms=timeout_ms) == ProducerResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def test_largest_timeout_is_transaction_max_timeout_ms():
    stage = Stage(transaction_max_timeout_ms=5000)
    assert stage.init(timeout_ms=5000).error is NONE
    assert stage.init(timeout_ms=5001).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_latest_timeout_wins():
    stage = Stage()
    stage.init(timeout_ms=1000)
    stage.init(timeout_ms=2000)
    assert stage.last().timeout_ms == 2000


def test_partition_led_elsewhere_is_not_coordinator():
    stage = Stage()
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    assert stage.init() == ProducerResult(ErrorCode.NOT_COORDINATOR)


def test_loading_partition_is_load_in_progress():
    stage = Stage()
    first = stage.init()
    partition = stage.coordinator.partition_for("app")
    stage.coordinator.begin_load(partition, 5)
    assert stage.init() == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    stage.coordinator.load(partition, 5, stage.log.stored(partition))
    assert stage.init() == first._replace(producer_epoch=1)


def test_load_for_earlier_leader_epoch_is_ignored():
    stage = Stage()
    partition = stage.coordinator.partition_for("app")
    stage.coordinator.begin_load(partition, 6)
    stage.coordinator.load(partition, 5, [])
    assert stage.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# Recovery: a producer that says which id and epoch it has (KIP-360)


def test_producer_recovers_with_current_epoch():
    stage = Stage()
    producer = stage.init()
    assert stage.init(expected=(1000, 0)) == producer._replace(producer_epoch=1)


def test_repeated_recovery_returns_same_epoch():
    stage = Stage()
    stage.init()
    first = stage.init(expected=(1000, 0))
    assert stage.init(expected=(1000, 0)) == first == ProducerResult(NONE, 1000, 1)


def test_init_without_expected_epoch_clears_last_epoch():
    stage = Stage()
    stage.init()
    stage.init()
    assert stage.init(expected=(1000, 0)) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_recovery_with_older_epoch_is_fenced():
    stage = Stage()
    for _ in range(4):
        stage.init()
    assert stage.init(expected=(1000, 1)).error is ErrorCode.PRODUCER_FENCED


def test_recovery_with_later_epoch_is_fenced():
    stage = Stage()
    stage.init()
    assert stage.init(expected=(1000, 7)).error is ErrorCode.PRODUCER_FENCED


def test_recovery_with_other_producer_id_is_fenced():
    stage = Stage()
    stage.init()
    assert stage.init(expected=(4711, 0)).error is ErrorCode.PRODUCER_FENCED


def test_recovery_of_expired_id_returns_new_producer_id():
    assert Stage().init(expected=(4711, 3)) == ProducerResult(NONE, 1000, 0)


# Epochs run out


def test_exhausted_epochs_rotate_producer_id_and_keep_previous():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init() == ProducerResult(NONE, 1001, 0)
    assert stage.last().previous_producer_id == 1000


def test_recovery_at_last_epoch_rotates_id_and_accepts_retry():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init(expected=(1000, 32766)) == ProducerResult(NONE, 1001, 0)
    assert stage.init(expected=(1000, 32766)) == ProducerResult(NONE, 1001, 0)


def test_previous_producer_id_recovers_only_with_exhausted_epoch():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    stage.init()
    assert stage.init(expected=(1000, 3)).error is ErrorCode.PRODUCER_FENCED


def test_older_epoch_of_exhausted_id_cannot_recover():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init(expected=(1000, 5)).error is ErrorCode.UNKNOWN_SERVER_ERROR


# An open transaction


def test_init_aborts_ongoing_transaction_and_fences_producer():
    stage = Stage()
    old = stage.init()
    stage.add(old, A0)
    assert stage.init() == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert stage.marked() == [(A0, False, 1)]
    new = stage.init()
    assert new == ProducerResult(NONE, 1000, 2)
    assert stage.states() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort", "Empty"]
    assert stage.add(old, A0) is ErrorCode.PRODUCER_FENCED
    assert stage.add(new, A0) is NONE


@pytest.mark.parametrize("version", [0, 1])
def test_init_fences_producer_before_tv2(version):
    stage = Stage(version=version)
    old = stage.init()
    stage.add(old, A0, version=TV_0)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.marked() == [(A0, False, 1)]
    assert stage.init() == ProducerResult(NONE, 1000, 2)
    assert stage.commit(old, version=TV_0).error is ErrorCode.PRODUCER_FENCED


def test_init_while_markers_are_written_is_concurrent_transactions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    stage.commit(producer)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.markers.release()
    assert stage.init() == ProducerResult(NONE, 1000, 2)


def test_init_while_record_is_written_is_concurrent_transactions():
    stage = Stage()
    producer = stage.init()
    stage.log.hold = True
    adding = stage.coordinator.add_partitions("app", *producer[1:], [A0], TV_0)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.log.release()
    assert done(adding) is NONE


# The log and the producer ids


def test_init_completes_when_record_is_durable():
    stage = Stage()
    stage.log.hold = True
    response = stage.coordinator.init_producer_id("app", 1000)
    assert not response.done
    assert stage.coordinator.describe("app").producer_epoch == -1
    stage.log.release()
    assert done(response) == ProducerResult(NONE, 1000, 0)


@pytest.mark.parametrize(
    ("log_error", "response"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_failed_append_maps_to_coordinator_error(log_error, response):
    stage = Stage()
    stage.init()
    stage.log.fail_with = log_error
    assert stage.init() == ProducerResult(response)
    stage.log.fail_with = NONE
    assert stage.init() == ProducerResult(NONE, 1000, 1)


def test_write_completed_after_move_is_not_coordinator():
    stage = Stage()
    stage.log.hold = True
    response = stage.coordinator.init_producer_id("app", 1000)
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    stage.log.release()
    assert done(response) == ProducerResult(ErrorCode.NOT_COORDINATOR)


def test_init_without_producer_id_block_is_load_in_progress():
    stage = Stage()
    stage.blocks.hold = True
    assert stage.init(None) == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert stage.init() == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(stage.blocks.held) == 1
    stage.blocks.held.pop().complete(stage.blocks.next_block())
    assert stage.init() == ProducerResult(NONE, 1000, 0)


def test_next_producer_id_block_is_prefetched():
    stage = Stage()
    stage.init(None)
    stage.blocks.hold = True
    ids = [stage.init(None).producer_id for _ in range(9)]
    assert ids == list(range(1001, 1010))
    assert len(stage.blocks.held) == 1
    stage.blocks.held.pop().complete(stage.blocks.next_block())
    assert stage.init(None).producer_id == 1010


def test_refused_producer_id_block_is_retried_after_backoff():
    stage = Stage()
    stage.blocks.refuse = True
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.blocks.refuse = False
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.clock.advance(0.05)
    assert stage.init(None) == ProducerResult(NONE, 1000, 0)


def test_earlier_producer_id_block_is_rejected():
    stage = Stage()
    stage.init(None)
    stage.blocks.next_first = 1000
    ids = [stage.init(None).producer_id for _ in range(9)]
    assert ids == list(range(1001, 1010))
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# Two-phase commit (KIP-939), as far as Kafka 4.3 has it


def test_two_phase_commit_requires_config():
    coordinator = Stage().coordinator
    response = done(coordinator.init_producer_id("app", 1000, enable_two_phase_commit=True))
    assert response == ProducerResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_two_phase_commit_has_no_timeout():
    stage = Stage(two_phase_commit_enable=True)
    assert done(stage.coordinator.init_producer_id("app", 0, enable_two_phase_commit=True)).error is NONE
    assert stage.last().timeout_ms == 2**31 - 1


def test_keep_prepared_is_unsupported_version():
    coordinator = Stage().coordinator
    response = done(coordinator.init_producer_id("app", 1000, keep_prepared=True))
    assert response == ProducerResult(ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(("api_key", "first_version"), [(22, 4), (24, 2), (25, 2), (26, 2)])
def test_older_versions_get_invalid_producer_epoch(api_key, first_version):
    fenced = ErrorCode.PRODUCER_FENCED
    assert fencing_error(fenced, api_key, first_version - 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert fencing_error(fenced, api_key, first_version) is fenced
    assert fencing_error(ErrorCode.INVALID_TXN_STATE, api_key, 0) is ErrorCode.INVALID_TXN_STATE
