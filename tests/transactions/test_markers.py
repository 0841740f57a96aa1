"""Transaction markers: written to every partition, with retries, before the transaction completes."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode

from .stage import A0, A1, B0, NONE, OFFSETS_7, Stage


def decided(stage, *partitions):
    producer = stage.init()
    stage.add(producer, *partitions)
    return stage.commit(producer)


def test_marker_has_coordinator_epoch_and_client_version():
    stage = Stage()
    stage.crash()
    decided(stage, A0)
    marker, _ = stage.markers.written[0]
    assert (marker.coordinator_epoch, marker.transaction_version) == (2, 2)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_failed_marker_is_retried_alone(error):
    stage = Stage()
    stage.markers.errors[B0] = error
    decided(stage, A0, B0)
    assert stage.state() == "PrepareCommit"
    stage.clock.advance(1)
    assert stage.state() == "PrepareCommit"
    del stage.markers.errors[B0]
    stage.clock.advance(1)
    assert stage.state() == "CompleteCommit"
    assert stage.marked() == [(A0, True, 1), (B0, True, 1)]


def test_describe_shows_partitions_without_marker():
    stage = Stage()
    stage.markers.errors[A1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    decided(stage, A0, A1, OFFSETS_7)
    described = stage.coordinator.describe("app")
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [1])]


def test_deleted_partition_needs_no_marker():
    stage = Stage()
    stage.cluster.leaders[A0] = None
    decided(stage, A0)
    assert stage.state() == "CompleteCommit"
    assert stage.marked() == []


def test_partition_deleted_during_retry_needs_no_marker():
    stage = Stage()
    stage.markers.errors[B0] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    decided(stage, A0, B0)
    stage.cluster.leaders[B0] = None
    stage.clock.advance(1)
    assert stage.state() == "CompleteCommit"


def test_partition_without_leader_is_retried():
    stage = Stage()
    stage.cluster.leaders[A0] = -1
    decided(stage, A0, B0)
    assert stage.marked() == [(B0, True, 1)]
    stage.clock.advance(5)
    assert stage.state() == "PrepareCommit"
    stage.cluster.leaders[A0] = 2
    stage.clock.advance(1)
    assert stage.state() == "CompleteCommit"


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_unsupported_partition_is_skipped(error):
    stage = Stage()
    stage.markers.errors[A0] = error
    decided(stage, A0, B0)
    assert stage.state() == "CompleteCommit"


@pytest.mark.parametrize("error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_fenced_coordinator_stops_markers_until_reload(error):
    stage = Stage()
    stage.markers.errors[A0] = error
    after = decided(stage, A0, B0)
    stage.clock.advance(60)
    assert stage.markers.sent == 1
    assert stage.add(after, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    del stage.markers.errors[A0]
    stage.crash()
    assert stage.state() == "CompleteCommit"


@pytest.mark.parametrize("committed", [True, False])
def test_markers_are_resumed_after_crash(committed):
    stage = Stage()
    producer = stage.init()
    stage.add(producer, A0, B0)
    stage.markers.hold = True
    stage.end(producer, committed)
    stage.markers.hold = False
    stage.crash()
    assert stage.marked() == [(A0, committed, 1), (B0, committed, 1)]
    assert stage.state() == ("CompleteCommit" if committed else "CompleteAbort")


def test_marker_results_from_before_reload_are_ignored():
    stage = Stage()
    stage.markers.hold = True
    decided(stage, A0)
    _, _, late = stage.markers.held[0]
    stage.crash()
    assert stage.state() == "PrepareCommit"
    late.complete({A0: NONE})
    assert stage.state() == "PrepareCommit"
    stage.markers.release()
    assert stage.state() == "CompleteCommit"
    assert stage.states() == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]


def test_marker_results_after_move_are_ignored():
    stage = Stage()
    stage.markers.hold = True
    decided(stage, A0)
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    stage.markers.release()
    assert stage.states() == ["Empty", "Ongoing", "PrepareCommit"]


def test_marker_retry_stops_after_move():
    stage = Stage()
    stage.markers.errors[A0] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    decided(stage, A0)
    stage.coordinator.unload(stage.coordinator.partition_for("app"))
    stage.clock.advance(60)
    assert stage.markers.sent == 1


def test_completion_record_is_retried():
    stage = Stage()
    stage.markers.hold = True
    after = decided(stage, A0)
    stage.log.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    stage.markers.release()
    stage.clock.advance(3)
    assert stage.state() == "PrepareCommit"
    assert stage.add(after, A0) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.log.fail_with = NONE
    stage.clock.advance(1)
    assert stage.state() == "CompleteCommit"
    assert stage.marked() == [(A0, True, 1)]
