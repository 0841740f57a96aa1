"""Ending transactions: commit, abort, retries, and states in which they are refused."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult

from .stage import A0, A1, NONE, OFFSETS_7, TV_0, TV_2, Stage, done

OLD = {"version": TV_0}


# Since KIP-890's second part (EndTxn v5): each end bumps the epoch


def test_commit_returns_bumped_epoch_and_writes_markers_with_it():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, OFFSETS_7)
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)
    assert stage.marked() == [(A0, True, 1), (OFFSETS_7, True, 1)]
    assert stage.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_abort_returns_bumped_epoch_and_writes_markers_with_it():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)
    assert stage.marked() == [(A0, False, 1)]
    assert stage.states() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]


def test_consecutive_transactions_commit_and_abort():
    stage = Stage()
    producer = stage.init()
    for epoch in range(1, 4):
        stage.add(producer, A0)
        producer = stage.end(producer, committed=epoch % 2 == 0)
        assert producer == ProducerResult(NONE, 1000, epoch)
    assert stage.marked() == [(A0, False, 1), (A0, True, 2), (A0, False, 3)]


@pytest.mark.parametrize("committed", [True, False])
def test_repeated_end_returns_same_result(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    first = stage.end(producer, committed)
    assert stage.end(producer, committed) == first
    assert len(stage.marked()) == 1


@pytest.mark.parametrize("committed", [True, False])
def test_opposite_end_after_completion_is_invalid_txn_state(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.end(producer, committed)
    assert stage.end(producer, not committed) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("committed", [True, False])
def test_end_while_markers_are_written_is_concurrent_transactions(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    first = stage.end(producer, committed)
    assert first.error is NONE
    assert stage.end(producer, committed) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert stage.end(producer, not committed) == ProducerResult(ErrorCode.CONCURRENT_TRANSACTIONS)
    stage.markers.release()
    assert stage.end(producer, committed) == first


def test_retried_end_is_recognized_after_crash():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    first = stage.commit(producer)
    stage.crash()
    assert stage.commit(producer) == first


def test_abort_without_transaction_bumps_epoch():
    stage = Stage()
    producer = stage.init()
    bumped = stage.abort(producer)
    assert bumped == ProducerResult(NONE, 1000, 1)
    assert stage.abort(bumped) == ProducerResult(NONE, 1000, 2)
    assert stage.marked() == []
    assert stage.states() == ["Empty", "PrepareAbort", "CompleteAbort", "PrepareAbort", "CompleteAbort"]


def test_abort_without_transaction_after_commit_bumps_epoch():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    committed = stage.commit(producer)
    assert stage.abort(committed) == ProducerResult(NONE, 1000, 2)


@pytest.mark.parametrize("before", ["nothing", "commit", "abort"])
def test_commit_without_transaction_is_invalid_txn_state(before):
    stage = Stage()
    producer = stage.init()
    if before != "nothing":
        stage.add(producer, A0)
        producer = stage.end(producer, before == "commit")
    assert stage.commit(producer) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("epoch_change", [-1, 1, 5])
def test_end_with_other_epoch_is_fenced(epoch_change):
    stage = Stage()
    stage.init()
    producer = stage.init()
    stage.add(producer, A0)
    stale = producer._replace(producer_epoch=producer.producer_epoch + epoch_change)
    assert stage.commit(stale) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert stage.state() == "Ongoing"


def test_end_two_epochs_behind_is_fenced():
    stage = Stage()
    producer = first = stage.init()
    for _ in range(2):
        stage.add(producer, A0)
        producer = stage.commit(producer)
    assert stage.commit(first) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_end_with_other_producer_id_is_invalid_mapping():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    assert stage.commit(producer._replace(producer_id=4711)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_end_with_empty_or_unknown_id_is_refused(version):
    stage = Stage()
    producer = stage.init()
    assert stage.commit(producer, transactional_id="", version=version).error is ErrorCode.INVALID_REQUEST
    unknown = stage.commit(producer, transactional_id="other", version=version)
    assert unknown == ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_end_while_record_is_written_is_concurrent_transactions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.log.hold = True
    stage.coordinator.add_partitions("app", *producer[1:], [A1], TV_2)
    assert stage.commit(producer).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_end_of_last_epoch_rotates_producer_id_and_accepts_retry():
    stage = Stage()
    producer = stage.use_up_epochs(stage.init())
    stage.add(producer, A0)
    ended = stage.commit(producer)
    assert ended == ProducerResult(NONE, 1001, 0)
    assert stage.marked() == [(A0, True, 32767)]
    prepared = stage.history()[-2]
    assert (prepared.producer_id, prepared.next_producer_id, prepared.producer_epoch) == (1000, 1001, 32767)
    assert stage.commit(producer) == ended
    assert stage.add(ended, A0) is NONE


def test_end_of_last_epoch_waits_for_producer_id_block():
    stage = Stage()
    stage.blocks.size = 1
    producer = stage.use_up_epochs(stage.init())
    stage.add(producer, A0)
    stage.blocks.refuse = True
    stage.init(None)  # takes what was fetched ahead
    assert stage.commit(producer).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.state() == "Ongoing"
    stage.blocks.refuse = False
    stage.clock.advance(1)
    assert stage.commit(producer).error is NONE


# Before it


def test_older_client_keeps_epoch_at_end():
    stage = Stage()
    producer = stage.init()
    for _ in range(3):
        stage.add(producer, A0, **OLD)
        assert stage.commit(producer, **OLD) == ProducerResult(NONE)
    assert stage.marked() == [(A0, True, 0)] * 3
    assert stage.last().producer_epoch == 0


@pytest.mark.parametrize("committed", [True, False])
def test_older_client_repeated_end_succeeds(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.end(producer, committed, **OLD)
    assert stage.end(producer, committed, **OLD) == ProducerResult(NONE)
    assert stage.end(producer, not committed, **OLD) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("committed", [True, False])
def test_older_client_end_without_transaction_is_invalid_txn_state(committed):
    stage = Stage()
    assert stage.end(stage.init(), committed, **OLD) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("epoch", [0, 2])
def test_older_client_with_other_epoch_is_fenced(epoch):
    stage = Stage()
    stage.init()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    assert stage.commit(producer._replace(producer_epoch=epoch), **OLD).error is ErrorCode.PRODUCER_FENCED


def test_older_client_end_waits_for_markers():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.markers.hold = True
    assert stage.commit(producer, **OLD).error is NONE
    assert stage.commit(producer, **OLD).error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.markers.release()
    assert stage.commit(producer, **OLD).error is NONE


def test_client_may_upgrade_between_transactions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.commit(producer, **OLD)
    stage.add(producer, A0)
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)


# The log


def test_end_completes_when_decision_is_durable_before_markers():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    stage.log.hold = True
    response = stage.coordinator.end_transaction("app", *producer[1:], True, TV_2)
    assert not response.done
    assert stage.markers.sent == 0
    stage.log.release()
    assert stage.markers.sent == 0
    assert stage.done(response) == ProducerResult(NONE, 1000, 1)
    assert stage.markers.sent == 1
    assert stage.state() == "PrepareCommit"


def test_failed_decision_leaves_transaction_ongoing():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.commit(producer).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.log.fail_with = NONE
    assert stage.markers.sent == 0
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)


def test_decision_written_during_move_is_completed_by_next_coordinator():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    partition = stage.coordinator.partition_for("app")
    stage.log.hold = True
    response = stage.coordinator.end_transaction("app", *producer[1:], True, TV_2)
    stage.coordinator.unload(partition)
    stage.log.release()
    assert done(response) == ProducerResult(ErrorCode.NOT_COORDINATOR)
    assert stage.marked() == []
    stage.log.hold = False
    stage.coordinator.load(partition, 9, stage.log.stored(partition))
    stage.clock.advance(0)
    assert stage.marked() == [(A0, True, 1)]
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_failed_fence_does_not_consume_epochs(version):
    stage = Stage(version=version)
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    for _ in range(5):
        assert stage.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.log.fail_with = NONE
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.marked() == [(A0, False, 1)]
    assert stage.init() == ProducerResult(NONE, 1000, 2)


def test_failed_fence_before_tv2_still_fences_producer():
    stage = Stage(version=0)
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    stage.init()
    assert stage.commit(producer, **OLD).error is ErrorCode.PRODUCER_FENCED
