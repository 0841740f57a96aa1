"""EndTxn: commit and abort, their repetition, and every state in which they make no sense."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult

from .stage import A0, A1, NONE, OFFSETS_7, TV_0, TV_2, Stage, done

OLD = {"version": TV_0}


# Since KIP-890's second part (EndTxn v5): each end bumps the epoch


def test_a_commit_answers_with_the_next_epoch_and_writes_markers_with_it():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, OFFSETS_7)
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)
    assert stage.marked() == [(A0, True, 1), (OFFSETS_7, True, 1)]
    assert stage.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_an_abort_answers_with_the_next_epoch_and_writes_markers_with_it():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)
    assert stage.marked() == [(A0, False, 1)]
    assert stage.states() == ["Empty", "Ongoing", "PrepareAbort", "CompleteAbort"]


def test_one_transaction_after_the_other():
    stage = Stage()
    producer = stage.init()
    for epoch in range(1, 4):
        stage.add(producer, A0)
        producer = stage.end(producer, committed=epoch % 2 == 0)
        assert producer == ProducerResult(NONE, 1000, epoch)
    assert stage.marked() == [(A0, False, 1), (A0, True, 2), (A0, False, 3)]


@pytest.mark.parametrize("committed", [True, False])
def test_the_same_end_again_is_answered_the_same(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    first = stage.end(producer, committed)
    assert stage.end(producer, committed) == first
    assert len(stage.marked()) == 1


@pytest.mark.parametrize("committed", [True, False])
def test_the_other_end_afterwards_is_an_invalid_state(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.end(producer, committed)
    assert stage.end(producer, not committed) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("committed", [True, False])
def test_while_the_markers_are_written_either_end_has_to_wait(committed):
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


def test_the_retry_is_known_after_a_crash():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    first = stage.commit(producer)
    stage.crash()
    assert stage.commit(producer) == first


def test_an_abort_of_nothing_bumps_the_epoch_all_the_same():
    stage = Stage()
    producer = stage.init()
    bumped = stage.abort(producer)
    assert bumped == ProducerResult(NONE, 1000, 1)
    assert stage.abort(bumped) == ProducerResult(NONE, 1000, 2)
    assert stage.marked() == []
    assert stage.states() == ["Empty", "PrepareAbort", "CompleteAbort", "PrepareAbort", "CompleteAbort"]


def test_an_abort_of_nothing_after_a_commit_bumps_too():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    committed = stage.commit(producer)
    assert stage.abort(committed) == ProducerResult(NONE, 1000, 2)


@pytest.mark.parametrize("before", ["nothing", "commit", "abort"])
def test_there_is_nothing_to_commit(before):
    stage = Stage()
    producer = stage.init()
    if before != "nothing":
        stage.add(producer, A0)
        producer = stage.end(producer, before == "commit")
    assert stage.commit(producer) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("epoch_change", [-1, 1, 5])
def test_another_epoch_is_fenced(epoch_change):
    stage = Stage()
    stage.init()
    producer = stage.init()
    stage.add(producer, A0)
    stale = producer._replace(producer_epoch=producer.producer_epoch + epoch_change)
    assert stage.commit(stale) == ProducerResult(ErrorCode.PRODUCER_FENCED)
    assert stage.state() == "Ongoing"


def test_an_epoch_two_behind_is_not_a_retry():
    stage = Stage()
    producer = first = stage.init()
    for _ in range(2):
        stage.add(producer, A0)
        producer = stage.commit(producer)
    assert stage.commit(first) == ProducerResult(ErrorCode.PRODUCER_FENCED)


def test_another_producer_id():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    assert stage.commit(producer._replace(producer_id=4711)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_no_transactional_id_and_an_unknown_one(version):
    stage = Stage()
    producer = stage.init()
    assert stage.commit(producer, transactional_id="", version=version).error is ErrorCode.INVALID_REQUEST
    unknown = stage.commit(producer, transactional_id="other", version=version)
    assert unknown == ProducerResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


def test_while_a_change_is_being_written_the_end_has_to_wait():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.log.hold = True
    stage.coordinator.add_partitions("app", *producer[1:], [A1], TV_2)
    assert stage.commit(producer).error is ErrorCode.CONCURRENT_TRANSACTIONS


def test_the_last_epoch_ends_with_a_new_producer_id_and_the_retry_is_known():
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


def test_when_no_producer_id_is_to_be_had_the_last_epoch_cannot_end_yet():
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


def test_an_older_client_keeps_its_epoch():
    stage = Stage()
    producer = stage.init()
    for _ in range(3):
        stage.add(producer, A0, **OLD)
        assert stage.commit(producer, **OLD) == ProducerResult(NONE)
    assert stage.marked() == [(A0, True, 0)] * 3
    assert stage.last().producer_epoch == 0


@pytest.mark.parametrize("committed", [True, False])
def test_an_older_client_may_end_again_what_it_ended(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.end(producer, committed, **OLD)
    assert stage.end(producer, committed, **OLD) == ProducerResult(NONE)
    assert stage.end(producer, not committed, **OLD) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("committed", [True, False])
def test_an_older_client_has_nothing_to_end_before_it_began(committed):
    stage = Stage()
    assert stage.end(stage.init(), committed, **OLD) == ProducerResult(ErrorCode.INVALID_TXN_STATE)


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_older_client_with_another_epoch_is_fenced(epoch):
    stage = Stage()
    stage.init()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    assert stage.commit(producer._replace(producer_epoch=epoch), **OLD).error is ErrorCode.PRODUCER_FENCED


def test_an_older_client_waits_for_its_markers():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.markers.hold = True
    assert stage.commit(producer, **OLD).error is NONE
    assert stage.commit(producer, **OLD).error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.markers.release()
    assert stage.commit(producer, **OLD).error is NONE


def test_a_client_may_become_a_newer_one_between_transactions():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.commit(producer, **OLD)
    stage.add(producer, A0)
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)


# The log


def test_the_answer_waits_for_the_decision_to_be_durable_and_not_for_the_markers():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.markers.hold = True
    stage.log.hold = True
    answer = stage.coordinator.end_transaction("app", *producer[1:], True, TV_2)
    assert not answer.done
    assert stage.markers.sent == 0
    stage.log.release()
    assert stage.markers.sent == 0
    assert stage.done(answer) == ProducerResult(NONE, 1000, 1)
    assert stage.markers.sent == 1
    assert stage.state() == "PrepareCommit"


def test_a_decision_that_was_not_written_was_not_made():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.commit(producer).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.log.fail_with = NONE
    assert stage.markers.sent == 0
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)


def test_a_decision_written_while_the_partition_moved_is_carried_out_by_the_next_coordinator():
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0)
    partition = stage.coordinator.partition_for("app")
    stage.log.hold = True
    answer = stage.coordinator.end_transaction("app", *producer[1:], True, TV_2)
    stage.coordinator.unload(partition)
    stage.log.release()
    assert done(answer) == ProducerResult(ErrorCode.NOT_COORDINATOR)
    assert stage.marked() == []
    stage.log.hold = False
    stage.coordinator.load(partition, 9, stage.log.stored(partition))
    stage.clock.advance(0)
    assert stage.marked() == [(A0, True, 1)]
    assert stage.commit(producer) == ProducerResult(NONE, 1000, 1)


@pytest.mark.parametrize("version", [0, 2])
def test_a_fence_that_could_not_be_written_does_not_eat_epochs(version):
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


def test_before_version_2_a_failed_fence_still_shuts_the_producer_out():
    stage = Stage(version=0)
    producer = stage.init()
    stage.add(producer, A0, **OLD)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    stage.init()
    assert stage.commit(producer, **OLD).error is ErrorCode.PRODUCER_FENCED
