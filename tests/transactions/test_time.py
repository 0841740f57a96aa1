"""What time does: transactions time out, ids expire."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult

from .stage import A0, NONE, TV_0, TV_2, Stage, done

WEEK = 7 * 24 * 3600


@pytest.mark.parametrize(("cluster_version", "client_version"), [(0, TV_0), (1, TV_0), (2, TV_0), (2, TV_2)])
def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(cluster_version, client_version):
    stage = Stage(version=cluster_version)
    producer = stage.init(timeout_ms=30_000)
    stage.add(producer, A0, version=client_version)
    stage.clock.advance(30)
    assert stage.state() == "Ongoing"
    stage.clock.advance(10)
    assert stage.state() == "CompleteAbort"
    assert stage.marked() == [(A0, False, 1)]
    assert stage.add(producer, A0, version=client_version) is ErrorCode.PRODUCER_FENCED
    assert stage.init() == ProducerResult(NONE, 1000, 2)


def test_a_producer_that_comes_back_after_its_timeout_cannot_commit():
    stage = Stage()
    producer = stage.init(timeout_ms=1000)
    stage.add(producer, A0)
    stage.clock.advance(20)
    # The abort bumped the epoch by one, so that this looks like the repetition of an end; but it was no commit.
    assert stage.commit(producer) == ProducerResult(ErrorCode.INVALID_TXN_STATE)
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)


def test_the_timeout_runs_from_the_first_partition_and_not_from_the_last():
    stage = Stage()
    producer = stage.init(timeout_ms=25_000)
    stage.add(producer, A0)
    stage.clock.advance(20)
    stage.add(producer, A0._replace(partition=5))
    stage.clock.advance(10)
    assert stage.state() == "CompleteAbort"


def test_a_transaction_times_out_after_a_crash_as_it_would_have_before():
    stage = Stage()
    producer = stage.init(timeout_ms=25_000)
    stage.add(producer, A0)
    stage.clock.advance(20)
    stage.crash()
    stage.clock.advance(10)
    assert stage.state() == "CompleteAbort"


def test_two_phase_commit_never_times_out():
    stage = Stage(two_phase_commit_enable=True)
    producer = done(stage.coordinator.init_producer_id("app", 0, enable_two_phase_commit=True))
    stage.add(producer, A0)
    stage.clock.advance(30 * 24 * 3600)
    assert stage.state() == "Ongoing"


def test_a_transaction_with_a_change_on_its_way_is_aborted_in_the_next_round():
    stage = Stage()
    producer = stage.init(timeout_ms=1000)
    stage.add(producer, A0)
    stage.clock.advance(9)
    stage.log.hold = True
    stage.coordinator.add_partitions("app", *producer[1:], [A0._replace(partition=9)], TV_2)
    stage.clock.advance(2)
    stage.log.hold = False
    stage.log.release()
    assert stage.state() == "Ongoing"
    stage.clock.advance(10)
    assert stage.state() == "CompleteAbort"


def test_the_last_epoch_times_out_into_a_new_producer_id():
    stage = Stage()
    producer = stage.use_up_epochs(stage.init(timeout_ms=1000))
    stage.add(producer, A0)
    stage.clock.advance(20)
    assert stage.marked() == [(A0, False, 32767)]
    assert stage.last()[:4] == (1001, 1000, -1, 0)


def test_a_stopped_coordinator_does_nothing_more():
    stage = Stage()
    producer = stage.init(timeout_ms=1000)
    stage.add(producer, A0)
    stage.coordinator.stop()
    stage.clock.advance(60)
    assert stage.states() == ["Empty", "Ongoing"]
    assert stage.init().error is ErrorCode.NOT_COORDINATOR


# Expiry


@pytest.mark.parametrize("ending", ["initialized", "commit", "abort"])
def test_an_id_that_is_not_used_for_a_week_is_forgotten(ending):
    stage = Stage()
    producer = stage.init()
    if ending != "initialized":
        stage.add(producer, A0)
        stage.end(producer, ending == "commit")
    stage.clock.advance(WEEK - 1)
    assert stage.coordinator.describe("app").error_code == NONE
    stage.clock.advance(3601)
    assert stage.coordinator.describe("app").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert stage.states()[-1] == "tombstone"
    assert stage.add(producer, A0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    stage.crash()
    assert stage.coordinator.describe("app").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_id_in_use_is_not_forgotten():
    stage = Stage()
    producer = stage.init()
    for _ in range(9):
        stage.clock.advance(WEEK / 3)
        stage.add(producer, A0)
        producer = stage.commit(producer)
        assert producer.error is NONE


def test_an_id_with_an_open_transaction_is_not_forgotten():
    stage = Stage(two_phase_commit_enable=True)
    producer = done(stage.coordinator.init_producer_id("app", 0, enable_two_phase_commit=True))
    stage.add(producer, A0)
    stage.clock.advance(3 * WEEK)
    assert stage.state() == "Ongoing"


def test_a_tombstone_that_was_not_written_leaves_the_id_in_use():
    stage = Stage()
    producer = stage.init()
    stage.clock.advance(WEEK - 1)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    stage.clock.advance(3601)
    stage.log.fail_with = NONE
    assert stage.add(producer, A0) is NONE


def test_an_id_that_is_being_forgotten_takes_no_changes():
    stage = Stage()
    producer = stage.init()
    stage.clock.advance(WEEK - 1)
    stage.log.hold = True
    stage.clock.advance(3601)
    assert stage.add(producer, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.log.release()
    stage.log.hold = False
    assert stage.init() == ProducerResult(NONE, 1001, 0)


def test_many_ids_are_forgotten_in_batches_that_a_log_takes():
    stage = Stage(remove_expired_transaction_cleanup_interval_ms=1000, transactional_id_expiration_ms=1000)
    stage.blocks.size = 1000
    for number in range(200):
        stage.init(f"{'x' * 10_000}{number}")
    batches = []
    write = stage.log.write

    def counting(partition, records):
        batches.append(sum(len(record.key) for record in records))
        return write(partition, records)

    stage.log.write = counting
    stage.clock.advance(3)
    assert sum(batches) > 2_000_000
    assert max(batches) < 1_000_000
