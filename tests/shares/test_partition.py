"""A share partition: acquisition, acknowledgement, acquisition locks and the start offset."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.shares.acquire import RECORD_LIMIT, Acquired, LogBatch
from ottla.shares.environment import StateBatch
from ottla.shares.partition import ACCEPT, GAP, REJECT, RELEASE, RENEW, Acknowledgement, SharePartitionState
from tests.shares.sharing import KEY, AbortedTransaction, Sharing, log_of

ANN, BOB = "ann", "bob"


def acknowledge(sharing: Sharing, member: str, first: int, last: int, *types: int) -> ErrorCode | None:
    """Return the error of an acknowledgement, or None while it is pending."""
    response = sharing.partition.acknowledge(member, [Acknowledgement(first, last, types)])
    if not response.done:
        return None
    return ErrorCode.NONE if response.response is None else response.response.code


def test_records_are_acquired_by_one_member_in_log_batches() -> None:
    sharing = Sharing(log_of(10, 10, 10))
    assert sharing.fetch(ANN, 5) == [Acquired(0, 9, 1)]
    assert sharing.fetch(BOB, 11) == [Acquired(10, 29, 1)]
    assert sharing.fetch(ANN) == []


def test_portions_end_at_batch_borders() -> None:
    sharing = Sharing(log_of(10, 10, 10, 10))
    assert sharing.fetch(ANN, 500, batch_size=15) == [Acquired(0, 19, 1), Acquired(20, 39, 1)]


def test_strict_limit_splits_batch() -> None:
    sharing = Sharing(log_of(10))
    assert sharing.fetch(ANN, 4, mode=RECORD_LIMIT) == [Acquired(0, 3, 1)]
    assert sharing.fetch(BOB, 4, mode=RECORD_LIMIT) == [Acquired(4, 7, 1)]
    assert sharing.fetch(BOB, 4, mode=RECORD_LIMIT) == [Acquired(8, 9, 1)]


def test_accepted_records_advance_start_offset() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 0, 19, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 20
    assert sharing.partition.delivery_complete_count == 0
    assert not sharing.partition.in_flight
    assert sharing.store.writes == [(0, 20, [StateBatch(0, 19, 2, 1)])]


def test_partial_acknowledgement_advances_start_offset_into_batch() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 0, 3, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 4
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.NONE  # what lies below the start is over anyhow
    assert sharing.partition.start_offset == 10


def test_unacknowledged_record_keeps_start_offset() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 5, 9, ACCEPT) is ErrorCode.NONE
    assert (sharing.partition.start_offset, sharing.partition.delivery_complete_count) == (0, 5)
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(sharing, ANN, 0, 4, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 10


def test_acknowledge_types_may_differ_per_record() -> None:
    sharing = Sharing(log_of(4))
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 0, 3, ACCEPT, RELEASE, REJECT, GAP) is ErrorCode.NONE
    assert sharing.partition.start_offset == 1
    assert sharing.fetch(BOB) == [Acquired(1, 1, 2)]


def test_released_records_are_acquired_first_with_higher_count() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN, 1)
    assert acknowledge(sharing, ANN, 0, 9, RELEASE) is ErrorCode.NONE
    assert sharing.fetch(BOB) == [Acquired(0, 9, 2), Acquired(10, 19, 1)]


@pytest.mark.parametrize("limit", [2, 5])
def test_record_at_delivery_count_limit_is_archived(limit: int) -> None:
    sharing = Sharing(log_of(1, 1), delivery_count_limit=limit)
    for count in range(1, limit + 1):
        assert sharing.fetch(ANN, 1, mode=RECORD_LIMIT) == [Acquired(0, 0, count)]
        assert acknowledge(sharing, ANN, 0, 0, RELEASE) is ErrorCode.NONE
    assert sharing.partition.start_offset == 1
    assert sharing.fetch(ANN, 1) == [Acquired(1, 1, 1)]


def test_high_delivery_counts_shrink_portions_to_one_record() -> None:
    sharing = Sharing(log_of(16))
    sizes = []
    for _ in range(5):
        acquired = sharing.fetch(ANN)
        sizes.append(sum(entry.last - entry.first + 1 for entry in acquired))
        sharing.partition.release(ANN)
    # Three whole deliveries, then what has three is halved, and the one before its last chance comes alone.
    assert sizes == [16, 16, 16, 8, 1]


def test_acknowledgement_requires_acquisition_lock() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN, 1)
    assert acknowledge(sharing, BOB, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(sharing, BOB, 3, 4, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(sharing, ANN, 0, 12, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert acknowledge(sharing, ANN, 15, 16, ACCEPT) is ErrorCode.INVALID_REQUEST
    sharing.clock.advance(30)
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert sharing.fetch(BOB, 1) == [Acquired(0, 9, 2)]
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert acknowledge(sharing, BOB, 0, 9, ACCEPT) is ErrorCode.NONE


def test_acknowledgement_before_fetch_is_invalid_record_state() -> None:
    sharing = Sharing(log_of(10))
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgement_with_one_error_is_rolled_back() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN, 1)
    sharing.fetch(BOB, 1)
    response = sharing.partition.acknowledge(ANN, [Acknowledgement(0, 9, [ACCEPT]), Acknowledgement(10, 19, [ACCEPT])])
    assert response.response is not None
    assert response.response.code is ErrorCode.INVALID_RECORD_STATE
    assert sharing.store.writes == []
    assert sharing.partition.delivery_complete_count == 0
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.NONE


def test_acknowledgement_takes_effect_when_persisted() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.store.holding = True
    assert acknowledge(sharing, ANN, 0, 9, RELEASE) is None
    assert sharing.fetch(BOB) == []
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    woken = sharing.wakes
    sharing.store.let_go()
    assert sharing.wakes > woken
    assert sharing.fetch(BOB) == [Acquired(0, 9, 2)]


def test_failed_acknowledgement_is_rolled_back() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.store.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    assert acknowledge(sharing, ANN, 0, 4, ACCEPT) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert sharing.partition.delivery_complete_count == 0
    assert sharing.fetch(BOB) == []
    sharing.store.refusal = ErrorCode.NONE
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 10


def test_lock_expiry_during_failed_write_releases_records() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.store.holding = True
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is None
    sharing.clock.advance(31)
    sharing.store.refusal = ErrorCode.KAFKA_STORAGE_ERROR
    sharing.store.let_go()
    sharing.store.holding, sharing.store.refusal = False, ErrorCode.NONE
    assert sharing.fetch(BOB) == [Acquired(0, 9, 2)]


def test_unavailable_share_coordinator_is_retried() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN)
    sharing.store.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    late = sharing.partition.acknowledge(ANN, [Acknowledgement(0, 4, [ACCEPT])])
    sharing.clock.advance(2)
    assert not late.done
    sharing.store.refusal = ErrorCode.NONE
    sharing.clock.advance(2)
    assert late.response is None
    assert sharing.partition.start_offset == 5
    sharing.store.refusal = ErrorCode.NOT_COORDINATOR
    never = sharing.partition.acknowledge(ANN, [Acknowledgement(5, 9, [ACCEPT])])
    sharing.clock.advance(16)
    assert never.response is not None
    assert never.response.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    sharing.store.refusal = ErrorCode.NONE
    assert acknowledge(sharing, ANN, 5, 9, ACCEPT) is ErrorCode.NONE


def test_expired_acquisition_lock_releases_and_persists() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.clock.advance(29.9)
    assert sharing.fetch(BOB) == []
    sharing.clock.advance(0.2)
    assert sharing.store.writes == [(0, 0, [StateBatch(0, 9, 0, 1)])]
    assert sharing.fetch(BOB) == [Acquired(0, 9, 2)]


def test_acquisition_lock_is_renewed_for_part_of_records() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.clock.advance(20)
    assert acknowledge(sharing, ANN, 2, 3, RENEW) is ErrorCode.NONE
    sharing.clock.advance(20)
    assert sharing.fetch(BOB) == [Acquired(0, 1, 2), Acquired(4, 9, 2)]
    assert acknowledge(sharing, ANN, 2, 3, ACCEPT) is ErrorCode.NONE


def test_renewal_can_be_disabled() -> None:
    sharing = Sharing(log_of(10), renew_enabled=False)
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 0, 9, RENEW) is ErrorCode.INVALID_RECORD_STATE


def test_in_flight_records_are_limited() -> None:
    sharing = Sharing(log_of(*[10] * 20), max_record_locks=100)
    assert sharing.fetch(ANN, 500)[-1].last == 99
    assert sharing.fetch(BOB) == []
    assert acknowledge(sharing, ANN, 50, 59, RELEASE) is ErrorCode.NONE
    assert sharing.fetch(BOB) == [Acquired(50, 59, 2)]
    assert acknowledge(sharing, ANN, 0, 9, ACCEPT) is ErrorCode.NONE
    assert sharing.fetch(BOB) == [Acquired(100, 109, 1)]


def test_ended_session_releases_records() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN, 1)
    sharing.fetch(BOB, 1)
    assert sharing.partition.release(ANN).response is None
    assert sharing.fetch(BOB) == [Acquired(0, 9, 2)]


def test_deleted_records_are_archived() -> None:
    sharing = Sharing(log_of(10, 10, 10))
    sharing.fetch(ANN, 1)
    sharing.fetch(BOB, 1)
    assert acknowledge(sharing, ANN, 0, 9, RELEASE) is ErrorCode.NONE
    sharing.batches = sharing.batches[1:]
    sharing.partition.log_start_offset_changed(15)
    assert sharing.partition.start_offset == 15
    assert acknowledge(sharing, BOB, 10, 19, ACCEPT) is ErrorCode.NONE
    assert sharing.fetch(ANN) == [Acquired(20, 29, 1)]
    assert acknowledge(sharing, ANN, 20, 29, ACCEPT) is ErrorCode.NONE
    sharing.clock.advance(31)  # as in Kafka, 10 to 14 stay Bob's until his lock ends
    assert sharing.partition.start_offset == 30


def test_compacted_records_are_archived() -> None:
    sharing = Sharing(log_of(10, 10))
    sharing.fetch(ANN, 1)
    assert acknowledge(sharing, ANN, 0, 9, RELEASE) is ErrorCode.NONE
    sharing.batches = [LogBatch(10, 19)]
    assert sharing.fetch(BOB) == [Acquired(10, 19, 1)]
    assert acknowledge(sharing, BOB, 10, 19, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 20


def test_read_committed_group_skips_aborted_records() -> None:
    batches = [
        LogBatch(0, 4, 7, is_transactional=True),
        LogBatch(5, 9, 8, is_transactional=True),
        LogBatch(10, 10, 7, is_transactional=True, is_control=True),
        LogBatch(11, 14),
        LogBatch(15, 15, 8, is_transactional=True, is_control=True),
    ]
    sharing = Sharing(batches, read_committed=True)
    sharing.aborted = [AbortedTransaction(8, 5, 15)]
    assert sharing.fetch(ANN) == [Acquired(0, 4, 1), Acquired(10, 15, 1)]
    response = sharing.partition.acknowledge(
        ANN, [Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(10, 15, [GAP, ACCEPT, ACCEPT, ACCEPT, ACCEPT, GAP])]
    )
    assert response.response is None
    assert sharing.partition.start_offset == 16


def test_new_leader_resumes_from_persisted_state() -> None:
    sharing = Sharing(log_of(10, 10, 10))
    sharing.fetch(ANN)
    assert acknowledge(sharing, ANN, 0, 4, ACCEPT) is ErrorCode.NONE
    assert acknowledge(sharing, ANN, 12, 13, ACCEPT) is ErrorCode.NONE
    old = sharing.partition
    sharing.lead()
    refused = old.acknowledge(ANN, [Acknowledgement(5, 9, [ACCEPT])]).response
    assert refused is not None
    assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert sharing.partition.start_offset == 5
    assert sharing.partition.next_fetch_offset == 5
    assert sharing.fetch(BOB) == [Acquired(5, 11, 1), Acquired(14, 29, 1)]
    assert acknowledge(sharing, BOB, 5, 11, ACCEPT) is ErrorCode.NONE
    assert acknowledge(sharing, BOB, 14, 29, ACCEPT) is ErrorCode.NONE
    assert sharing.partition.start_offset == 30


def test_new_group_starts_at_auto_offset_reset() -> None:
    sharing = Sharing(log_of(10, 10), start=-1)
    sharing.reset = 10
    sharing.lead()
    assert sharing.fetch(ANN) == [Acquired(10, 19, 1)]


def test_unreadable_state_fails_share_partition() -> None:
    sharing = Sharing(log_of(10))
    sharing.store.delete(KEY)
    partition = sharing.lead()
    assert partition.partition_state is SharePartitionState.FAILED
    assert partition.failure is not None
    assert partition.failure.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_fenced_share_partition_cancels_timers() -> None:
    sharing = Sharing(log_of(10))
    sharing.fetch(ANN)
    sharing.partition.fence()
    sharing.clock.advance(100)
    assert sharing.store.writes == []
    assert sharing.fetch(BOB) == []


def test_long_aborted_transaction_does_not_block_group() -> None:
    batches = [
        LogBatch(0, 149, 7, is_transactional=True),
        LogBatch(150, 299, 7, is_transactional=True),
        LogBatch(300, 300, 7, is_transactional=True, is_control=True),
        LogBatch(301, 302),
    ]
    sharing = Sharing(batches, read_committed=True, max_record_locks=100)
    sharing.aborted = [AbortedTransaction(7, 0, 300)]
    acquired = [entry for _ in range(4) for entry in sharing.fetch(ANN)]
    assert acquired == [Acquired(300, 302, 1)]
