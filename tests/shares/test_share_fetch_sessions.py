"""Share sessions: epochs, errors, partitions and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Uuid
from ottla.shares.sessions import SessionKey, ShareContext, ShareSessions, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Callable

ANN = SessionKey("group", "ann")
BOB = SessionKey("group", "bob")
ONE, TWO, THREE = (TopicIdPartition(Uuid(b"\1" * 16), index) for index in range(3))


def fetch(
    sessions: ShareSessions,
    key: SessionKey,
    epoch: int,
    *partitions: TopicIdPartition,
    forgotten: tuple[TopicIdPartition, ...] = (),
    connection: int = 1,
    acknowledges: bool = False,
) -> ShareContext:
    return sessions.context(key, epoch, partitions, forgotten, connection, acknowledges=acknowledges)


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        call()
    return raised.value.code


def test_session_keeps_partitions() -> None:
    sessions = ShareSessions(lambda: 10)
    assert fetch(sessions, ANN, 0, ONE, TWO).partitions == [ONE, TWO]
    assert fetch(sessions, ANN, 1).partitions == [ONE, TWO]
    assert fetch(sessions, ANN, 2, THREE, forgotten=(ONE,)).partitions == [TWO, THREE]


def test_session_epoch_is_accepted_once() -> None:
    sessions = ShareSessions(lambda: 10)
    assert refusal(lambda: fetch(sessions, ANN, 1)) is ErrorCode.SHARE_SESSION_NOT_FOUND
    fetch(sessions, ANN, 0, ONE)
    fetch(sessions, ANN, 1)
    assert refusal(lambda: fetch(sessions, ANN, 1)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert refusal(lambda: fetch(sessions, ANN, 3)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    sessions.acknowledge(ANN, 2)
    assert refusal(lambda: sessions.acknowledge(ANN, 2)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    fetch(sessions, ANN, 3)


def test_session_epoch_wraps_to_one() -> None:
    sessions = ShareSessions(lambda: 10)
    fetch(sessions, ANN, 0, ONE)
    session = sessions.get(ANN)
    assert session is not None
    session.epoch = 2**31 - 1
    fetch(sessions, ANN, 2**31 - 1)
    fetch(sessions, ANN, 1)


def test_initial_epoch_resets_session_and_refuses_acknowledgements() -> None:
    sessions = ShareSessions(lambda: 1)
    fetch(sessions, ANN, 0, ONE)
    fetch(sessions, ANN, 1)
    assert refusal(lambda: fetch(sessions, ANN, 0, ONE, acknowledges=True)) is ErrorCode.INVALID_REQUEST
    assert fetch(sessions, ANN, 0, TWO).partitions == [TWO]
    fetch(sessions, ANN, 1)


def test_acknowledge_with_initial_epoch_is_refused() -> None:
    sessions = ShareSessions(lambda: 10)
    assert refusal(lambda: sessions.acknowledge(ANN, 0)) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert refusal(lambda: sessions.acknowledge(ANN, 1)) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert refusal(lambda: sessions.acknowledge(ANN, -1)) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_final_epoch_requires_session_and_fetches_nothing() -> None:
    sessions = ShareSessions(lambda: 10)
    assert refusal(lambda: fetch(sessions, ANN, -1)) is ErrorCode.SHARE_SESSION_NOT_FOUND
    fetch(sessions, ANN, 0, ONE)
    assert fetch(sessions, ANN, -1, ONE, acknowledges=True).partitions == ()
    assert sessions.remove(ANN) is not None
    assert refusal(lambda: sessions.acknowledge(ANN, -1)) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_sessions_are_limited() -> None:
    sessions = ShareSessions(lambda: 1)
    fetch(sessions, ANN, 0, ONE)
    assert refusal(lambda: fetch(sessions, BOB, 0, ONE)) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.remove(ANN)
    fetch(sessions, BOB, 0, ONE)


def test_session_ends_with_connection() -> None:
    sessions = ShareSessions(lambda: 10)
    fetch(sessions, ANN, 0, ONE, connection=1)
    fetch(sessions, BOB, 0, ONE, connection=2)
    session, empty = sessions.disconnected(1)
    assert session is not None
    assert session.key == ANN
    assert empty is None
    assert sessions.disconnected(1) == (None, None)
    _, empty = sessions.disconnected(2)
    assert empty == "group"
    assert len(sessions) == 0


def test_session_moved_to_other_connection_survives_first() -> None:
    sessions = ShareSessions(lambda: 10)
    fetch(sessions, ANN, 0, ONE, connection=1)
    fetch(sessions, ANN, 0, ONE, connection=2)
    assert sessions.disconnected(1) == (None, None)
    fetch(sessions, ANN, 1)


def test_response_includes_changed_partitions() -> None:
    sessions = ShareSessions(lambda: 10)
    full = fetch(sessions, ANN, 0, ONE, TWO)
    assert list(full.included([(ONE, False, False), (TWO, False, False)])) == [ONE, TWO]
    again = fetch(sessions, ANN, 1, THREE)
    responses = [(ONE, True, False), (TWO, False, False), (THREE, False, False)]
    assert list(again.included(responses)) == [ONE, THREE]
    third = fetch(sessions, ANN, 2)
    assert third.partitions == [TWO, THREE, ONE]
    assert list(third.included([(TWO, False, True), (THREE, False, False)])) == [TWO]
    fourth = fetch(sessions, ANN, 3)
    assert list(fourth.included([(TWO, False, False), (THREE, False, False)])) == [TWO]
    assert list(fetch(sessions, ANN, 4).included([(TWO, False, False)])) == []


def test_response_to_advanced_session_is_invalid_epoch() -> None:
    sessions = ShareSessions(lambda: 10)
    fetch(sessions, ANN, 0, ONE)
    context = fetch(sessions, ANN, 1)
    fetch(sessions, ANN, 2)
    assert refusal(lambda: list(context.included([]))) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
