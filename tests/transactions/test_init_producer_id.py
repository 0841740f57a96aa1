"""InitProducerId, as a conversation with the coordinator."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult
from ottla.transactions.states import fencing_error

from .stage import A0, NONE, TV_0, Stage, done


def test_without_a_transactional_id_every_call_gives_a_fresh_id_with_epoch_0():
    stage = Stage()
    assert [stage.init(None) for _ in range(3)] == [
        ProducerResult(NONE, 1000, 0),
        ProducerResult(NONE, 1001, 0),
        ProducerResult(NONE, 1002, 0),
    ]
    assert stage.log.records == {}


def test_a_transactional_id_keeps_its_producer_id_and_gets_the_next_epoch_each_time():
    stage = Stage()
    assert stage.init() == ProducerResult(NONE, 1000, 0)
    assert stage.init() == ProducerResult(NONE, 1000, 1)
    stage.crash()
    assert stage.init() == ProducerResult(NONE, 1000, 2)
    assert stage.states() == ["Empty", "Empty", "Empty"]
    assert [record.producer_epoch for record in stage.history()] == [0, 1, 2]


def test_transactional_ids_have_producer_ids_of_their_own():
    stage = Stage()
    assert stage.init("one").producer_id != stage.init("two").producer_id


def test_an_empty_transactional_id_is_an_invalid_request():
    assert Stage().init("") == ProducerResult(ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_limits_is_refused(timeout_ms):
    assert Stage().init(timeout_ms=timeout_ms) == ProducerResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def test_the_largest_timeout_is_the_config():
    stage = Stage(transaction_max_timeout_ms=5000)
    assert stage.init(timeout_ms=5000).error is NONE
    assert stage.init(timeout_ms=5001).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_the_timeout_of_the_latest_call_counts():
    stage = Stage()
    stage.init(timeout_ms=1000)
    stage.init(timeout_ms=2000)
    assert stage.last().timeout_ms == 2000


def test_a_partition_that_this_node_does_not_lead_is_somebody_elses():
    stage = Stage()
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    assert stage.init() == ProducerResult(ErrorCode.NOT_COORDINATOR)


def test_a_partition_that_is_being_loaded_makes_clients_wait():
    stage = Stage()
    first = stage.init()
    partition = stage.coordinator.partition_for("app")
    stage.coordinator.begin_load(partition, 5)
    assert stage.init() == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    stage.coordinator.load(partition, 5, stage.log.stored(partition))
    assert stage.init() == first._replace(producer_epoch=1)


def test_a_load_for_an_epoch_that_is_over_changes_nothing():
    stage = Stage()
    partition = stage.coordinator.partition_for("app")
    stage.coordinator.begin_load(partition, 6)
    stage.coordinator.load(partition, 5, [])
    assert stage.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# Recovery: a producer that says which id and epoch it has (KIP-360)


def test_a_producer_recovers_with_its_current_epoch():
    stage = Stage()
    producer = stage.init()
    assert stage.init(expected=(1000, 0)) == producer._replace(producer_epoch=1)


def test_a_recovery_whose_answer_was_lost_is_answered_again():
    stage = Stage()
    stage.init()
    first = stage.init(expected=(1000, 0))
    assert stage.init(expected=(1000, 0)) == first == ProducerResult(NONE, 1000, 1)


def test_after_an_initialization_without_expectations_the_last_epoch_is_not_remembered():
    stage = Stage()
    stage.init()
    stage.init()
    assert stage.init(expected=(1000, 0)) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_a_producer_with_an_older_epoch_is_fenced():
    stage = Stage()
    for _ in range(4):
        stage.init()
    assert stage.init(expected=(1000, 1)).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_with_an_epoch_from_the_future_is_fenced():
    stage = Stage()
    stage.init()
    assert stage.init(expected=(1000, 7)).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_with_another_id_is_fenced():
    stage = Stage()
    stage.init()
    assert stage.init(expected=(4711, 0)).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_of_an_id_that_was_forgotten_gets_a_new_one():
    assert Stage().init(expected=(4711, 3)) == ProducerResult(NONE, 1000, 0)


# Epochs run out


def test_when_the_epochs_are_used_up_a_new_producer_id_is_given_and_the_old_one_remembered():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init() == ProducerResult(NONE, 1001, 0)
    assert stage.last().previous_producer_id == 1000


def test_a_producer_at_its_last_epoch_recovers_with_a_new_id_and_may_ask_twice():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init(expected=(1000, 32766)) == ProducerResult(NONE, 1001, 0)
    assert stage.init(expected=(1000, 32766)) == ProducerResult(NONE, 1001, 0)


def test_the_id_before_the_last_rotation_is_fenced_unless_its_epochs_were_used_up():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    stage.init()
    assert stage.init(expected=(1000, 3)).error is ErrorCode.PRODUCER_FENCED


def test_an_older_epoch_of_a_used_up_id_cannot_be_recovered():
    stage = Stage()
    stage.use_up_epochs(stage.init())
    assert stage.init(expected=(1000, 5)).error is ErrorCode.UNKNOWN_SERVER_ERROR


# An open transaction


def test_an_open_transaction_is_aborted_and_its_producer_fenced_before_the_next_one_is_initialized():
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
def test_fencing_looks_the_same_before_transaction_version_2(version):
    stage = Stage(version=version)
    old = stage.init()
    stage.add(old, A0, version=TV_0)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.marked() == [(A0, False, 1)]
    assert stage.init() == ProducerResult(NONE, 1000, 2)
    assert stage.commit(old, version=TV_0).error is ErrorCode.PRODUCER_FENCED


def test_initializing_waits_while_markers_are_written():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    stage.commit(producer)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.markers.release()
    assert stage.init() == ProducerResult(NONE, 1000, 2)


def test_initializing_waits_for_a_change_that_is_being_written():
    stage = Stage()
    producer = stage.init()
    stage.log.hold = True
    adding = stage.coordinator.add_partitions("app", *producer[1:], [A0], TV_0)
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.log.release()
    assert done(adding) is NONE


# The log and the producer ids


def test_the_answer_waits_until_its_record_is_durable():
    stage = Stage()
    stage.log.hold = True
    answer = stage.coordinator.init_producer_id("app", 1000)
    assert not answer.done
    assert stage.coordinator.describe("app").producer_epoch == -1
    stage.log.release()
    assert done(answer) == ProducerResult(NONE, 1000, 0)


@pytest.mark.parametrize(
    ("log_error", "answer"),
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
def test_a_failed_append_is_told_in_words_of_a_coordinator_and_changes_nothing(log_error, answer):
    stage = Stage()
    stage.init()
    stage.log.fail_with = log_error
    assert stage.init() == ProducerResult(answer)
    stage.log.fail_with = NONE
    assert stage.init() == ProducerResult(NONE, 1000, 1)


def test_a_write_that_ends_after_the_partition_moved_away_is_not_acknowledged():
    stage = Stage()
    stage.log.hold = True
    answer = stage.coordinator.init_producer_id("app", 1000)
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    stage.log.release()
    assert done(answer) == ProducerResult(ErrorCode.NOT_COORDINATOR)


def test_while_a_block_of_producer_ids_is_on_its_way_clients_ask_again():
    stage = Stage()
    stage.blocks.hold = True
    assert stage.init(None) == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert stage.init() == ProducerResult(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert len(stage.blocks.held) == 1
    stage.blocks.held.pop().complete(stage.blocks.next_block())
    assert stage.init() == ProducerResult(NONE, 1000, 0)


def test_the_next_block_is_asked_for_before_the_current_one_runs_out():
    stage = Stage()
    stage.init(None)
    stage.blocks.hold = True
    ids = [stage.init(None).producer_id for _ in range(9)]
    assert ids == list(range(1001, 1010))
    assert len(stage.blocks.held) == 1
    stage.blocks.held.pop().complete(stage.blocks.next_block())
    assert stage.init(None).producer_id == 1010


def test_a_refused_block_is_asked_for_again_after_a_pause():
    stage = Stage()
    stage.blocks.refuse = True
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.blocks.refuse = False
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.clock.advance(0.05)
    assert stage.init(None) == ProducerResult(NONE, 1000, 0)


def test_a_block_that_was_given_out_before_is_not_taken():
    stage = Stage()
    stage.init(None)
    stage.blocks.next_first = 1000
    ids = [stage.init(None).producer_id for _ in range(9)]
    assert ids == list(range(1001, 1010))
    assert stage.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# Two-phase commit (KIP-939), as far as Kafka 4.3 has it


def test_two_phase_commit_needs_the_config():
    coordinator = Stage().coordinator
    answer = done(coordinator.init_producer_id("app", 1000, enable_two_phase_commit=True))
    assert answer == ProducerResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def test_two_phase_commit_has_no_timeout():
    stage = Stage(two_phase_commit_enable=True)
    assert done(stage.coordinator.init_producer_id("app", 0, enable_two_phase_commit=True)).error is NONE
    assert stage.last().timeout_ms == 2**31 - 1


def test_keeping_a_prepared_transaction_is_not_supported():
    coordinator = Stage().coordinator
    answer = done(coordinator.init_producer_id("app", 1000, keep_prepared=True))
    assert answer == ProducerResult(ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize(("api_key", "first_version"), [(22, 4), (24, 2), (25, 2), (26, 2)])
def test_older_clients_are_told_invalid_producer_epoch(api_key, first_version):
    fenced = ErrorCode.PRODUCER_FENCED
    assert fencing_error(fenced, api_key, first_version - 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert fencing_error(fenced, api_key, first_version) is fenced
    assert fencing_error(ErrorCode.INVALID_TXN_STATE, api_key, 0) is ErrorCode.INVALID_TXN_STATE
