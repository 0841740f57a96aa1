"""ShareFetch (API 78): acquisition, waiting, sessions, isolation and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
    RequestEntryData,
)
from ottla.protocol.schema import Uuid
from ottla.shares.partition import ACCEPT, RELEASE
from ottla.shares.sessions import TopicIdPartition
from tests.conversations.broker import assert_as_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conversations.side_by_side import Talk


from tests.shares.share_broker import ANN, BOB, GROUP, ShareBroker, acquired, parts, values


@pytest.fixture
def talk() -> Iterator[ShareBroker]:
    made = ShareBroker()
    yield made
    made.close()


def test_batches_without_acquired_records_are_not_sent(talk: ShareBroker) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        talk.write(value)
    first = talk.fetch(ANN, 0, (0,), max_records=1)
    assert values(parts(first)[0]) == [b"a"]
    second = talk.fetch(BOB, 0, (0,), max_records=2)
    assert acquired(second) == {0: [(1, 2, 1)]}
    assert values(parts(second)[0]) == [b"b", b"c"]


def test_fetch_carries_acknowledgements(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,), max_records=1)
    response = talk.fetch(ANN, 1, acks={0: [(0, 0, [RELEASE])]}, max_records=1)
    assert acquired(response) == {0: [(0, 0, 2)]}
    assert parts(response)[0].acknowledge_error_code == 0
    wrong = talk.fetch(ANN, 2, acks={0: [(1, 1, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}, max_records=1)
    assert [(part.partition_index, ErrorCode(part.acknowledge_error_code)) for part in parts(wrong)] == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # nobody has fetched from it
    ]


def test_final_fetch_acknowledges_and_releases(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    response = talk.fetch(ANN, -1, acks={0: [(0, 0, [ACCEPT])]})
    assert acquired(response) == {}
    assert [part.acknowledge_error_code for part in parts(response)] == [0]
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 2)]}
    assert talk.fetch(ANN, 1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_session_errors_equal_kafkas(talk: ShareBroker) -> None:
    acks = {0: [(0, 0, [ACCEPT])]}
    assert talk.fetch(ANN, 5).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert talk.fetch(ANN, -1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert talk.fetch(ANN, 0, (0,), acks=acks).error_code == ErrorCode.INVALID_REQUEST
    assert talk.acknowledge(ANN, 0, acks) == [ErrorCode.INVALID_SHARE_SESSION_EPOCH]
    assert talk.acknowledge(ANN, 1, acks) == [ErrorCode.SHARE_SESSION_NOT_FOUND]
    assert talk.fetch(ANN, 0, (0,)).error_code == 0
    assert talk.fetch(ANN, 3).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert talk.acknowledge(ANN, 3, acks) == [ErrorCode.INVALID_SHARE_SESSION_EPOCH]
    assert talk.fetch("", 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch(None, 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch("m" * 37, 0, (0,)).error_code == ErrorCode.INVALID_REQUEST
    assert talk.fetch(ANN, 0, (0,), group=None).error_code == ErrorCode.INVALID_REQUEST
    assert talk.acknowledge(ANN, 1, acks, group=None) == [ErrorCode.INVALID_REQUEST]


def test_session_limit_error_is_delayed() -> None:
    talk = ShareBroker({"group.share.max.share.sessions": "1"})
    talk.fetch(ANN, 0, (0,))
    begun = talk.world.clock.monotonic()
    assert talk.fetch(BOB, 0, (0,), wait_ms=500).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert talk.world.clock.monotonic() - begun >= 0.5
    talk.close()


def test_unknown_partitions_are_errors(talk: ShareBroker) -> None:
    nowhere = Uuid(b"\7" * 16)
    response = talk.fetch(ANN, 0, (0,), topic_id=nowhere)
    assert [part.error_code for part in parts(response)] == [ErrorCode.UNKNOWN_TOPIC_ID]
    response = talk.fetch(ANN, 0, (9,))
    assert [part.error_code for part in parts(response)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}, topic_id=nowhere) == [ErrorCode.UNKNOWN_TOPIC_ID]
    # Nobody has fetched from these.
    assert talk.acknowledge(ANN, 2, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert talk.acknowledge(ANN, 3, {9: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_uninitialized_share_partition_is_refused(talk: ShareBroker) -> None:
    response = talk.fetch(ANN, 0, (0,), group="other")
    assert [part.error_code for part in parts(response)] == [ErrorCode.UNKNOWN_SERVER_ERROR]  # Kafka's words for it


def test_fetch_waits_for_records(talk: ShareBroker) -> None:
    waiting = talk.fetching(ANN, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.write(b"a")
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 1)]}
    assert talk.world.clock.monotonic() - begun < 1
    assert not talk.runtime.partitions["t", 0].delayed
    assert not talk.node.share_partitions.waiting_fetches


def test_fetch_waits_for_min_bytes_up_to_max_wait(talk: ShareBroker) -> None:
    size = talk.write(b"a")
    waiting = talk.fetching(ANN, 0, (0, 1), wait_ms=1_000, min_bytes=2 * size)
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 1)]}
    assert talk.world.clock.monotonic() - begun >= 1
    waiting = talk.fetching(BOB, 0, (0, 1), wait_ms=60_000, min_bytes=2 * size)
    talk.write(b"b", partition=0)
    talk.pause()
    talk.write(b"c", partition=1)
    assert acquired(waiting()) == {0: [(1, 1, 1)], 1: [(0, 0, 1)]}


def test_waiting_fetch_acquires_released_records(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    talk.pause()
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [RELEASE])]}) == [ErrorCode.NONE]
    assert acquired(waiting()) == {0: [(0, 0, 2)]}


def test_waiting_fetch_acquires_records_of_expired_lock(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    begun = talk.world.clock.monotonic()
    assert acquired(waiting()) == {0: [(0, 0, 2)]}
    assert 29 < talk.world.clock.monotonic() - begun < 31
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.INVALID_RECORD_STATE]


def test_closed_connection_releases_records(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.connect_as(2)
    waiting = talk.fetching(BOB, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.node.share_partitions.disconnected(1)
    assert acquired(waiting()) == {0: [(0, 0, 2)]}
    talk.node.share_partitions.disconnected(2)
    assert len(talk.node.share_partitions) == 0


def test_read_committed_fetch_ignores_ongoing_and_aborted(talk: ShareBroker) -> None:
    talk.configure(share_isolation_level="read_committed")
    talk.write(b"lost", b"lost too", producer=7, sequence=0)
    waiting = talk.fetching(ANN, 0, (0,), wait_ms=60_000)
    talk.pause()
    talk.write(b"after")
    assert talk.node.share_partitions.waiting_fetches
    talk.end(7, commit=False)
    response = waiting()
    # The marker is in the range; a client acknowledges it as a gap.
    assert acquired(response) == {0: [(2, 3, 1)]}
    assert talk.acknowledge(ANN, 1, {0: [(2, 3, [ACCEPT, 0])]}) == [ErrorCode.NONE]
    shared = talk.node.share_partitions.get(GROUP, TopicIdPartition(talk.topic_id, 0))
    assert shared is not None
    assert shared.start_offset == 4


def test_read_uncommitted_fetch_returns_ongoing_records(talk: ShareBroker) -> None:
    talk.write(b"open", producer=7, sequence=0)
    assert acquired(talk.fetch(ANN, 0, (0,))) == {0: [(0, 0, 1)]}


def test_strict_record_limit_is_exact(talk: ShareBroker) -> None:
    talk.write(*[b"x"] * 10)
    assert acquired(talk.fetch(ANN, 0, (0,), max_records=3, mode=1)) == {0: [(0, 2, 1)]}
    assert acquired(talk.fetch(BOB, 0, (0,), max_records=30, mode=1)) == {0: [(3, 9, 1)]}


def test_record_limit_covers_all_partitions(talk: ShareBroker) -> None:
    for partition in (0, 1):
        talk.write(b"x", partition=partition)
    assert acquired(talk.fetch(ANN, 0, (0, 1), max_records=1)) == {0: [(0, 0, 1)]}
    assert acquired(talk.fetch(ANN, 1, max_records=1)) == {1: [(0, 0, 1)]}


def test_deleted_topic_drops_share_partitions(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    waiting = talk.fetching(ANN, 1, wait_ms=60_000)
    talk.pause()
    topic = talk.runtime.image.topic("t")
    assert topic is not None
    talk.quietly(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1_000), DeleteTopicsResponse)
    assert waiting().error_code == 0
    assert len(talk.node.share_partitions) == 0
    response = talk.fetch(ANN, 2)
    assert [part.error_code for part in parts(response)] == [ErrorCode.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", (0, 2, 1)), ("latest", None), ("by_duration:PT1M", (1, 2, 1))]
)
def test_auto_offset_reset_sets_start_offset(
    talk: ShareBroker, reset: str, expected: tuple[int, int, int] | None
) -> None:
    talk.configure(share_auto_offset_reset=reset)
    talk.share(0, start=-1, epoch=1)
    talk.write(b"old")
    talk.world.clock.advance(600)
    talk.write(b"new")
    talk.write(b"newer")
    assert acquired(talk.fetch(ANN, 0, (0,))).get(0) == (None if expected is None else [expected])
    talk.write(b"newest")
    assert (0 in acquired(talk.fetch(ANN, 1))) is True


def test_fetch_resumes_at_new_log_start_offset(talk: ShareBroker) -> None:
    for value in (b"a", b"b", b"c"):
        talk.write(value)
    talk.fetch(ANN, 0, (0,), max_records=1)
    talk.acknowledge(ANN, 1, {0: [(0, 0, [RELEASE])]})
    talk.runtime.partitions["t", 0].log.advance_log_start(2)
    response = talk.fetch(ANN, 2, wait_ms=60_000)
    assert acquired(response) == {}
    assert acquired(talk.fetch(ANN, 3)) == {0: [(2, 2, 1)]}


def test_incremental_response_includes_only_changes(talk: ShareBroker) -> None:
    talk.write(b"a")
    assert [part.partition_index for part in parts(talk.fetch(ANN, 0, (0, 1)))] == [0, 1]
    assert parts(talk.fetch(ANN, 1)) == []
    talk.write(b"b", partition=1)
    assert [part.partition_index for part in parts(talk.fetch(ANN, 2, forgotten=(0,)))] == [1]
    talk.write(b"c", partition=0)
    assert parts(talk.fetch(ANN, 3)) == []


def test_throttled_member_gets_only_acknowledge_results(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.write(b"x" * 5_000)
    quota = AlterClientQuotasRequest(
        entries=[
            RequestEntryData(
                entity=[EntityData(entity_type="client-id", entity_name=None)],
                ops=[OpData(key="consumer_byte_rate", value=10.0)],
            )
        ]
    )
    assert talk.quietly(quota, AlterClientQuotasResponse).entries[0].error_code == 0
    response = talk.fetch(ANN, 1, acks={0: [(0, 0, [ACCEPT])]})
    assert response.throttle_time_ms > 0
    assert acquired(response) == {}
    assert [(bytes(part.records or b""), part.acknowledge_error_code) for part in parts(response)] == [(b"", 0)]


@pytest.mark.parametrize(
    "name",
    [
        "share_acknowledgements_refused",
        "share_deliveries",
        "share_partitions_unknown",
        "share_sessions",
        "share_starts",
        "share_state_fenced",
        "share_transactions",
        "share_until_given_up",
    ],
)
def test_responses_are_those_of_kafka(name: str, broker_talk: Talk) -> None:
    assert_as_kafka(name, broker_talk)
