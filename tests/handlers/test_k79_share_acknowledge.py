"""ShareAcknowledge (API 79): accept, release, reject and renew, and the errors of acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.shares.environment import SharePartitionKey
from ottla.shares.partition import ACCEPT, REJECT, RELEASE, RENEW
from tests.shares.sharing import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Iterator


from tests.shares.share_broker import ANN, BOB, GROUP, ShareBroker, acquired, parts, values


@pytest.fixture
def talk() -> Iterator[ShareBroker]:
    made = ShareBroker()
    yield made
    made.close()


def test_member_acquires_and_accepts_records(talk: ShareBroker) -> None:
    talk.write(b"a", b"b")
    talk.write(b"c")
    talk.write(b"d", partition=1)
    response = talk.fetch(ANN, 0, (0, 1))
    assert acquired(response) == {0: [(0, 2, 1)], 1: [(0, 0, 1)]}
    assert response.acquisition_lock_timeout_ms == 30_000
    assert values(parts(response)[0]) == [b"a", b"b", b"c"]
    assert talk.fetch(BOB, 0, (0, 1), wait_ms=0).error_code == 0
    assert acquired(talk.fetch(BOB, 1)) == {}
    assert talk.acknowledge(ANN, 1, {0: [(0, 2, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE] * 2
    assert talk.acknowledge(ANN, 2, {0: [(0, 2, [ACCEPT])]}) == [ErrorCode.NONE]  # below the start, as in Kafka


def test_final_acknowledge_releases_records(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, -1, {0: [(0, 0, [REJECT])]}) == [ErrorCode.NONE]
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 2)]}


@pytest.mark.parametrize(
    ("batches", "renew", "version"),
    [
        ([(3, 2, [ACCEPT])], False, 2),
        ([(2, 3, [ACCEPT]), (1, 1, [ACCEPT])], False, 2),
        ([(0, 0, [])], False, 2),
        ([(0, 2, [ACCEPT, ACCEPT])], False, 2),
        ([(0, 0, [5])], False, 2),
        ([(0, 0, [-1])], False, 2),
        ([(0, 0, [RENEW])], False, 2),
        ([(0, 0, [RENEW])], False, 1),
    ],
)
def test_malformed_acknowledgements_are_invalid_request(
    talk: ShareBroker, batches: list[tuple[int, int, list[int]]], renew: bool, version: int
) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, 1, {0: batches}, renew=renew, version=version) == [ErrorCode.INVALID_REQUEST]
    assert talk.acknowledge(ANN, 2, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE]


def test_acquisition_locks_are_renewed_by_both_apis(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    talk.world.clock.advance(20)
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [RENEW])]}, renew=True) == [ErrorCode.NONE]
    talk.world.clock.advance(20)
    assert talk.fetch(ANN, 2, acks={0: [(0, 0, [RENEW])]}, renew=True).error_code == ErrorCode.INVALID_REQUEST
    renewed = talk.fetch(
        ANN, 2, acks={0: [(0, 0, [RENEW])]}, renew=True, max_bytes=0, min_bytes=0, max_records=0, wait_ms=0
    )
    assert renewed.error_code == 0
    assert [part.acknowledge_error_code for part in parts(renewed)] == [0]
    talk.world.clock.advance(20)
    assert talk.acknowledge(ANN, 3, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NONE]


def test_acknowledge_response_waits_for_persistence(talk: ShareBroker) -> None:
    store = DictionaryStore()
    key = SharePartitionKey(GROUP, talk.topic_id, 0)
    store.initialize(key, 0, 0)
    talk.node.share_partitions.store = store
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    store.holding = True
    begun = talk.acknowledging(ANN, 1, {0: [(0, 0, [ACCEPT])]})
    riding = talk.fetching(ANN, 2, acks={0: [(0, 0, [ACCEPT])]})
    response = riding()  # another one may be answered at once: its records are in nobody's hands
    assert [part.acknowledge_error_code for part in parts(response)] == [ErrorCode.INVALID_RECORD_STATE]
    assert store.states[key].records == {}
    store.let_go()
    assert begun().responses[0].partitions[0].error_code == 0
    assert store.states[key].records == {0: (2, 1)}


def test_fenced_state_epoch_drops_share_partition(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.write(b"b")
    talk.fetch(ANN, 0, (0,))
    talk.share(0, start=1, epoch=1)  # the offsets of the group are altered
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert acquired(talk.fetch(ANN, 2)) == {0: [(1, 1, 1)]}


def test_acknowledged_records_survive_restart(talk: ShareBroker) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        talk.write(value)
    talk.fetch(ANN, 0, (0,))
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT]), (2, 2, [ACCEPT]), (3, 3, [RELEASE])]}) == [ErrorCode.NONE]
    talk.restart()
    assert acquired(talk.fetch(BOB, 0, (0,))) == {0: [(1, 1, 1), (3, 3, 2)]}


def test_deleted_state_drops_share_partitions(talk: ShareBroker) -> None:
    talk.write(b"a")
    talk.fetch(ANN, 0, (0,))
    deleted = talk.node.share_states.delete(SharePartitionKey(GROUP, talk.topic_id, 0))
    talk.wait_until(lambda: deleted.done, "not deleted")
    assert talk.acknowledge(ANN, 1, {0: [(0, 0, [ACCEPT])]}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    talk.share(0)
    assert acquired(talk.fetch(ANN, 2)) == {0: [(0, 0, 1)]}
