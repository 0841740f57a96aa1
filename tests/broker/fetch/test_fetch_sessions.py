"""Fetch sessions (KIP-227): the four rows of the KIP's table, incremental responses, and eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from ottla.protocol.schema import ZERO_UUID
from ottla.records.builder import build_batch
from ottla.records.iterate import Record
from tests.conversations.local_talk import LocalTalk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSIONS = [12, 18]
LEGACY, FIRST, END = -1, 0, -1


@pytest.fixture
def local() -> Iterator[LocalTalk]:
    talk = LocalTalk({"max.incremental.fetch.session.cache.slots": "2"})
    talk.create("t", 3)
    talk.create("u")
    yield talk
    talk.close()


def write(local: LocalTalk, partition: int, value: bytes = b"x", topic: str = "t") -> None:
    batch = build_batch([Record(0, local.world.clock.now_ms(), None, value)])
    local.runtime.partitions[topic, partition].append(batch)


def fetch(
    local: LocalTalk,
    version: int,
    session: int,
    epoch: int,
    offsets: Mapping[int, int] | None = None,
    *,
    forget: Mapping[str, list[int]] | None = None,
    topic: str = "t",
) -> FetchResponse:
    def named(name: str) -> dict[str, object]:
        if version < 13:
            return {"topic": name}
        response = local.runtime.image.topic(name)
        return {"topic_id": ZERO_UUID if response is None else response.id}

    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in (offsets or {}).items()
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(partitions=partitions, **named(topic))] if partitions else [],  # type: ignore[arg-type]
        forgotten_topics_data=[
            ForgottenTopic(partitions=indexes, **named(name))  # type: ignore[arg-type]
            for name, indexes in (forget or {}).items()
        ],
    )
    return local.quietly(request, FetchResponse, version=version)


def told(response: FetchResponse) -> list[int]:
    assert response.error_code == 0
    return [partition.partition_index for topic in response.responses for partition in topic.partitions]


def sessions(local: LocalTalk) -> int:
    return len(local.runtime.nodes[1].fetch_sessions)


@pytest.mark.parametrize("version", VERSIONS)
def test_sessionless_fetch_caches_nothing(local: LocalTalk, version: int) -> None:
    response = fetch(local, version, 0, LEGACY, {0: 0, 1: 0})
    assert (response.session_id, told(response)) == (0, [0, 1])
    assert sessions(local) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_epoch_0_creates_session_with_full_response(local: LocalTalk, version: int) -> None:
    first = fetch(local, version, 0, FIRST, {0: 0, 1: 0, 2: 0})
    assert first.session_id > 0
    assert told(first) == [0, 1, 2]
    # With the id of an old session it replaces that one.
    second = fetch(local, version, first.session_id, FIRST, {0: 0})
    assert second.session_id not in (0, first.session_id)
    assert sessions(local) == 1
    gone = fetch(local, version, first.session_id, 1)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_incremental_response_has_only_changes(local: LocalTalk, version: int) -> None:
    session = fetch(local, version, 0, FIRST, {0: 0, 1: 0, 2: 0}).session_id
    assert told(fetch(local, version, session, 1)) == []
    write(local, 1)
    response = fetch(local, version, session, 2)
    assert told(response) == [1]
    assert response.session_id == session
    # The position moves only with the client's next request.
    assert told(fetch(local, version, session, 3)) == [1]
    assert told(fetch(local, version, session, 4, {1: 1})) == []
    write(local, 0)
    write(local, 2)
    assert sorted(told(fetch(local, version, session, 5))) == [0, 2]


@pytest.mark.parametrize("version", VERSIONS)
def test_session_partitions_are_added_and_removed(local: LocalTalk, version: int) -> None:
    write(local, 0)
    write(local, 1)
    session = fetch(local, version, 0, FIRST, {0: 0}).session_id
    assert sorted(told(fetch(local, version, session, 1, {1: 0}))) == [0, 1]
    assert told(fetch(local, version, session, 2, forget={"t": [0]})) == [1]
    # A session without partitions is not created.
    last = fetch(local, version, session, 3, forget={"t": [1]})
    assert (last.session_id, told(last), sessions(local)) == (0, [], 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_epoch_minus_one_closes_session(local: LocalTalk, version: int) -> None:
    session = fetch(local, version, 0, FIRST, {0: 0}).session_id
    response = fetch(local, version, session, END, {0: 0})
    assert (response.session_id, told(response), sessions(local)) == (0, [0], 0)
    assert fetch(local, version, session, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", VERSIONS)
def test_unexpected_session_epoch_fails(local: LocalTalk, version: int) -> None:
    session = fetch(local, version, 0, FIRST, {0: 0}).session_id
    assert fetch(local, version, session, 2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(local, version, session, 1).error_code == 0
    assert fetch(local, version, session, 1).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_session_keeps_topic_names_or_topic_ids(local: LocalTalk) -> None:
    session = fetch(local, 12, 0, FIRST, {0: 0}).session_id
    assert fetch(local, 18, session, 1).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_full_cache_creates_no_session_until_one_is_stale(local: LocalTalk) -> None:
    one = fetch(local, 18, 0, FIRST, {0: 0}).session_id
    two = fetch(local, 18, 0, FIRST, {1: 0}).session_id
    assert fetch(local, 18, 0, FIRST, {2: 0}).session_id == 0
    local.world.clock.advance(200)
    assert fetch(local, 18, two, 1).error_code == 0
    three = fetch(local, 18, 0, FIRST, {2: 0}).session_id
    assert three > 0
    assert sessions(local) == 2
    assert fetch(local, 18, one, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(local, 18, two, 2).error_code == 0


def test_partition_with_error_is_always_included(local: LocalTalk) -> None:
    session = fetch(local, 18, 0, FIRST, {0: 0, 1: 99}).session_id
    for epoch in (1, 2):
        response = fetch(local, 18, session, epoch)
        assert [
            (partition.partition_index, partition.error_code)
            for topic in response.responses
            for partition in topic.partitions
        ] == [(1, ErrorCode.OFFSET_OUT_OF_RANGE)]
