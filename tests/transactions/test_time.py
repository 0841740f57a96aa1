"""Transaction timeouts and the expiry of transactional ids."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.transactions.coordinator import ProducerResult

from .stage import A0, NONE, TV_0, TV_2, Stage, done

WEEK = 7 * 24 * 3600


@pytest.mark.parametrize(("cluster_version", "client_version"), [(0, TV_0), (1, TV_0), (2, TV_0), (2, TV_2)])
def test_timed_out_transaction_is_aborted_and_producer_fenced(cluster_version, client_version):
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


def test_producer_cannot_commit_after_timeout():
    stage = Stage()
    producer = stage.init(timeout_ms=1000)
    stage.add(producer, A0)
    stage.clock.advance(20)
    # The abort bumped the epoch by one, so that this looks like the repetition of an end; but it was no commit.
    assert stage.commit(producer) == ProducerResult(ErrorCode.INVALID_TXN_STATE)
    assert stage.abort(producer) == ProducerResult(NONE, 1000, 1)


def test_timeout_starts_at_first_partition():
    stage = Stage()
    producer = stage.init(timeout_ms=25_000)
    stage.add(producer, A0)
    stage.clock.advance(20)
    stage.add(producer, A0._replace(partition=5))
    stage.clock.advance(10)
    assert stage.state() == "CompleteAbort"


def test_timeout_survives_crash():
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


def test_pending_transaction_is_aborted_in_next_round():
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


def test_timeout_at_last_epoch_rotates_producer_id():
    stage = Stage()
    producer = stage.use_up_epochs(stage.init(timeout_ms=1000))
    stage.add(producer, A0)
    stage.clock.advance(20)
    assert stage.marked() == [(A0, False, 32767)]
    assert stage.last()[:4] == (1001, 1000, -1, 0)


def test_stopped_coordinator_has_no_timers():
    stage = Stage()
    producer = stage.init(timeout_ms=1000)
    stage.add(producer, A0)
    stage.coordinator.stop()
    stage.clock.advance(60)
    assert stage.states() == ["Empty", "Ongoing"]
    assert stage.init().error is ErrorCode.NOT_COORDINATOR


# Expiry


@pytest.mark.parametrize("ending", ["initialized", "commit", "abort"])
def test_unused_id_expires_after_a_week(ending):
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


def test_used_id_does_not_expire():
    stage = Stage()
    producer = stage.init()
    for _ in range(9):
        stage.clock.advance(WEEK / 3)
        stage.add(producer, A0)
        producer = stage.commit(producer)
        assert producer.error is NONE


def test_id_with_ongoing_transaction_does_not_expire():
    stage = Stage(two_phase_commit_enable=True)
    producer = done(stage.coordinator.init_producer_id("app", 0, enable_two_phase_commit=True))
    stage.add(producer, A0)
    stage.clock.advance(3 * WEEK)
    assert stage.state() == "Ongoing"


def test_failed_tombstone_keeps_id():
    stage = Stage()
    producer = stage.init()
    stage.clock.advance(WEEK - 1)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    stage.clock.advance(3601)
    stage.log.fail_with = NONE
    assert stage.add(producer, A0) is NONE


def test_expiring_id_refuses_changes():
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


def test_expired_ids_are_written_in_bounded_batches():
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
