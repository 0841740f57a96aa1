"""Descriptions and filtered lists of transactions."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest

from .stage import A0, A1, B0, NONE, Stage


@pytest.fixture
def stage() -> Stage:
    """Return a stage: app-1 is ongoing for a minute, app-2 has committed, other is initialized."""
    stage = Stage()
    one, two = stage.init("app-1", timeout_ms=900_000), stage.init("app-2")
    stage.init("other")
    stage.add(one, A0, B0, A1, transactional_id="app-1")
    stage.clock.advance(50)
    stage.add(two, A0, transactional_id="app-2")
    stage.commit(two, transactional_id="app-2")
    stage.clock.advance(10)
    return stage


def listed(stage: Stage, **filters: object) -> list[str]:
    response = stage.coordinator.list_transactions(ListTransactionsRequest(**filters))
    assert response.error_code == NONE
    return sorted(state.transactional_id for state in response.transaction_states)


def test_describe_returns_transaction(stage):
    described = stage.coordinator.describe("app-1")
    assert described.error_code == NONE
    assert described.transaction_state == "Ongoing"
    assert described.transaction_timeout_ms == 900_000
    assert described.transaction_start_time_ms == stage.clock.now_ms() - 60_000
    assert (described.producer_id, described.producer_epoch) == (1000, 0)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [0, 1]), ("b", [0])]


def test_describe_of_unknown_id_returns_error(stage):
    describe = stage.coordinator.describe
    assert describe("nobody").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe("").error_code == ErrorCode.INVALID_REQUEST
    stage.coordinator.unload(stage.coordinator.partition_for("app-1"))
    assert describe("app-1").error_code == ErrorCode.NOT_COORDINATOR
    stage.coordinator.stop()
    assert describe("app-2").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_list_without_filters_returns_all(stage):
    assert listed(stage) == ["app-1", "app-2", "other"]


def test_listed_transaction_has_producer_and_state(stage):
    response = stage.coordinator.list_transactions(ListTransactionsRequest(state_filters=["CompleteCommit"]))
    (result,) = response.transaction_states
    assert (result.transactional_id, result.producer_id, result.transaction_state) == ("app-2", 1001, "CompleteCommit")


def test_list_filters_by_state(stage):
    assert listed(stage, state_filters=["Ongoing", "Empty"]) == ["app-1", "other"]
    assert listed(stage, state_filters=["PrepareAbort"]) == []


def test_unknown_state_filters_are_returned(stage):
    response = stage.coordinator.list_transactions(ListTransactionsRequest(state_filters=["ongoing", "Ongoing"]))
    assert [state.transactional_id for state in response.transaction_states] == ["app-1"]
    assert response.unknown_state_filters == ["ongoing"]
    assert listed(stage, state_filters=["Nonsense"]) == []


def test_list_filters_by_producer_id(stage):
    assert listed(stage, producer_id_filters=[1002, 4711]) == ["other"]


def test_list_filters_by_duration(stage):
    assert listed(stage, duration_filter=59_999, state_filters=["Ongoing"]) == ["app-1"]
    assert listed(stage, duration_filter=60_000, state_filters=["Ongoing"]) == []


def test_list_pattern_matches_whole_id(stage):
    assert listed(stage, transactional_id_pattern="app-.*") == ["app-1", "app-2"]
    assert listed(stage, transactional_id_pattern="app") == []
    assert listed(stage, transactional_id_pattern="") == ["app-1", "app-2", "other"]


def test_list_requires_all_filters(stage):
    assert listed(stage, transactional_id_pattern="app-.*", producer_id_filters=[1001], state_filters=["Ongoing"]) == []


def test_invalid_pattern_is_refused(stage):
    with pytest.raises(KafkaError) as refused:
        listed(stage, transactional_id_pattern="(")
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_list_while_loading_is_load_in_progress(stage):
    stage.coordinator.begin_load(0, 9)
    response = stage.coordinator.list_transactions(ListTransactionsRequest())
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_list_on_stopped_coordinator_is_not_available(stage):
    stage.coordinator.stop()
    response = stage.coordinator.list_transactions(ListTransactionsRequest())
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
