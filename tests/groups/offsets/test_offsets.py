"""Offsets: commit, fetch, delete, expiry, and pending offsets of transactions."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.groups.environment import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.record_schemas.group import OffsetCommitKey, OffsetCommitValue
from ottla.records.builder import build_end_transaction_marker
from ottla.records.control import ControlType
from tests.groups.world import GROUP, World, answered, code, subscription, waits

T0, T1 = ("t", 0), ("t", 1)
WEEK_MS = 7 * 24 * 3_600_000


@pytest.fixture
def world() -> World:
    made = World()
    made.create_topic("t", 2)
    return made


def commit_in_transaction(
    world: World, offsets: dict[tuple[str, int], int], producer: int = 7, **fields: Any
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id="x", group_id=GROUP, producer_id=producer, producer_epoch=0, **fields
    )
    for (topic, partition), offset in offsets.items():
        request.topics.append(
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)],
            )
        )
    response = answered(world.coordinator.commit_transactional_offsets(RequestContext(5), request))
    return ErrorCode(response.topics[0].partitions[0].error_code)


def end_transaction(world: World, committed: bool, producer: int = 7) -> None:
    """Append a transaction marker and apply it, as the transaction coordinator does."""
    marker = build_end_transaction_marker(
        ControlType.COMMIT if committed else ControlType.ABORT,
        producer_id=producer,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=world.clock.now_ms(),
    )
    world.log.append(0, marker)
    world.coordinator.complete_transaction(0, producer, committed=committed)


def delete(world: World, *partitions: tuple[str, int], group: str = GROUP) -> Any:
    request = OffsetDeleteRequest(group_id=group)
    for topic, partition in partitions:
        request.topics.append(
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)])
        )
    return answered(world.coordinator.delete_offsets(RequestContext(0), request))


def test_client_without_membership_commits_and_fetches(world: World) -> None:
    assert world.commit_code({T0: 5, T1: 6}, metadata="m") == ErrorCode.NONE
    offsets = world.fetch(T0, ("t", 7), ("other", 0))
    partitions = [partition for topic in offsets.topics for partition in topic.partitions]
    assert [(partition.committed_offset, partition.metadata, partition.error_code) for partition in partitions] == [
        (5, "m", 0),
        (-1, "", 0),
        (-1, "", 0),
    ]
    assert world.offsets(everything=True) == [5, 6]
    assert world.group().is_simple


def test_reload_keeps_offsets(world: World) -> None:
    world.commit({T0: 5, T1: 6}, metadata="m")
    world.commit({T0: 8})
    world.restart()
    assert world.offsets(T0, T1) == [8, 6]


def test_record_has_topic_id_and_version_1_for_an_expiry(world: World) -> None:
    world.commit({T0: 5}, ids=True)
    world.commit({T1: 6}, version=4, retention_ms=1_000)
    first, second = world.records
    assert first.key == OffsetCommitKey(group=GROUP, topic="t", partition=0)
    assert first.version == 4
    assert isinstance(first.value, OffsetCommitValue)
    assert first.value.topic_id == world.topics.topics["t"].id
    assert first.value.commit_timestamp == world.clock.now_ms()
    assert second.version == 1
    assert isinstance(second.value, OffsetCommitValue)
    assert second.value.expire_timestamp == world.clock.now_ms() + 1_000


def test_member_commits_in_its_generation(world: World) -> None:
    (member,) = world.stable_group("a")
    assert world.commit_code({T0: 1}, member=member.id, generation=1) == ErrorCode.NONE
    assert world.commit_code({T0: 1}, member=member.id, generation=0) == ErrorCode.ILLEGAL_GENERATION
    assert world.commit_code({T0: 1}, member=member.id, generation=2) == ErrorCode.ILLEGAL_GENERATION
    assert world.commit_code({T0: 1}, member="nobody", generation=1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.commit_code({T0: 1}) == ErrorCode.UNKNOWN_MEMBER_ID
    instance = world.commit_code({T0: 1}, member=member.id, generation=1, instance="i")
    assert instance == ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_of_a_fenced_static_member_fails(world: World) -> None:
    join = world.join(instance="i")
    world.advance(0)
    assert code(join) == ErrorCode.NONE
    refused = world.commit_code({T0: 1}, member="old", generation=1, instance="i")
    assert refused == ErrorCode.FENCED_INSTANCE_ID


def test_commit_is_accepted_while_preparing_not_while_completing(world: World) -> None:
    (member,) = world.stable_group("a")
    other = world.enter(client="b")
    assert world.commit_code({T0: 1}, member=member.id, generation=1) == ErrorCode.NONE
    assert answered(world.join(member.id)).generation_id == 2
    assert waits(other.answer) is False
    assert world.commit_code({T0: 1}, member=member.id, generation=2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_resets_the_session_timer(world: World) -> None:
    (member,) = world.stable_group("a", session_ms=10_000)
    world.advance(9_000)
    world.commit({T0: 1}, member=member.id, generation=1)
    world.advance(9_000)
    assert code(world.heartbeat(member.id, 1)) == ErrorCode.NONE


def test_generation_of_unknown_group_fails(world: World) -> None:
    assert world.commit_code({T0: 1}, member="m", generation=1, version=8) == ErrorCode.ILLEGAL_GENERATION
    assert world.commit_code({T0: 1}, member="m", generation=1, version=9) == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.group() is None


def test_oversized_metadata_fails_alone(world: World) -> None:
    world.configure(offset_metadata_max_bytes=4)
    assert world.commit_code({T0: 1}, metadata="12345") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.commit_code({T0: 1}, metadata="1234") == ErrorCode.NONE
    assert world.commit_code({T0: 1}, metadata="\U0001f600\U0001f600") == ErrorCode.NONE
    assert world.commit_code({T0: 1}, metadata="\U0001f600\U0001f600x") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.commit_code({T0: 1}, metadata=None) == ErrorCode.NONE


def test_commit_is_visible_and_answered_when_durable(world: World) -> None:
    world.commit({T0: 1})
    world.log.slow = True
    commit = world.commit({T0: 2})
    fetch = world.fetch(T0)
    assert waits(commit)
    assert waits(fetch)
    world.log.sync()
    assert code(answered(commit).topics[0].partitions[0]) == ErrorCode.NONE
    assert answered(fetch).topics[0].partitions[0].committed_offset == 2


def test_commit_that_cannot_be_made_durable_fails(world: World) -> None:
    world.log.slow = True
    commit = world.commit({T0: 2})
    world.log.sync(ErrorCode.KAFKA_STORAGE_ERROR)
    assert code(answered(commit).topics[0].partitions[0]) == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("trouble", "error_code"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_commit_that_cannot_be_appended_changes_nothing(
    world: World, trouble: ErrorCode, error_code: ErrorCode
) -> None:
    world.commit({T0: 1})
    world.log.broken = trouble
    assert world.commit_code({T0: 2}) == error_code
    assert world.commit_code({T0: 2}, group="new") == error_code
    assert world.group("new") is None
    world.log.broken = None
    assert world.offsets(T0) == [1]


def test_offset_of_a_deleted_topic_is_not_found_by_id(world: World) -> None:
    world.commit({T0: 5}, ids=True)
    old = world.topics.topics["t"]
    world.create_topic("t", 2)
    assert world.offsets(T0, ids=True) == [-1]
    assert world.offsets(T0) == [5]
    world.topics.topics["t"] = old
    assert world.offsets(T0, ids=True) == [5]


def test_deleted_topic_deletes_its_offsets(world: World) -> None:
    world.create_topic("u", 1)
    world.commit({T0: 5, ("u", 0): 6}, ids=True)
    world.commit({T1: 5})
    world.delete_topic("t")
    assert world.offsets(everything=True) == [6]
    world.restart()
    assert world.offsets(everything=True) == [6]


# Deleting


def test_offsets_of_unsubscribed_topics_can_be_deleted(world: World) -> None:
    (member,) = world.stable_group("a", protocols=[("range", subscription("u"))])
    world.commit({T0: 1, ("u", 0): 2}, member=member.id, generation=1)
    response = delete(world, T0, ("t", 9), ("u", 0))
    codes = [partition.error_code for topic in response.topics for partition in topic.partitions]
    assert codes == [0, 0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert world.offsets(T0, ("u", 0)) == [-1, 2]


def test_offsets_of_non_consumer_group_with_members_are_kept(world: World) -> None:
    join = world.join(version=3, protocol_type="connect")
    world.advance(0)
    assert code(join) == ErrorCode.NONE
    assert delete(world, T0).error_code == ErrorCode.NON_EMPTY_GROUP


def test_delete_of_unknown_group_fails(world: World) -> None:
    assert delete(world, T0, group="nobody").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert delete(world, T0, group="").error_code == ErrorCode.INVALID_GROUP_ID


# Expiry (KIP-211)


def test_simple_groups_offset_expires_after_its_commit(world: World) -> None:
    world.commit({T0: 1})
    world.advance(WEEK_MS - 600_000)
    world.commit({T1: 1})
    world.advance(600_000)
    assert world.offsets(T0, T1) == [-1, 1]
    world.advance(WEEK_MS)
    assert world.group() is None
    world.restart()
    assert world.group() is None


def test_clock_set_back_keeps_offsets_longer(world: World) -> None:
    world.commit({T0: 1})
    world.set_back(WEEK_MS)
    world.commit({T1: 1})
    world.advance(WEEK_MS + 600_000)
    assert world.offsets(T0, T1) == [1, -1]
    world.advance(WEEK_MS)
    assert world.offsets(T0) == [-1]
    assert world.group() is None


def test_offset_expires_after_the_group_became_empty(world: World) -> None:
    (member,) = world.stable_group("a", session_ms=1_800_000)
    world.commit({T0: 1}, member=member.id, generation=1)
    for _ in range(2 * WEEK_MS // 1_200_000):
        world.advance(1_200_000)
        world.heartbeat(member.id, 1)
    assert world.offsets(T0) == [1]
    world.leave((member.id, None))
    world.advance(WEEK_MS - 1_200_000)
    assert world.offsets(T0) == [1]
    world.advance(1_800_000)
    assert world.offsets(T0) == [-1]
    assert world.group() is None


def test_offset_of_an_unsubscribed_topic_expires(world: World) -> None:
    (member,) = world.stable_group("a", session_ms=1_800_000, protocols=[("range", subscription("u"))])
    world.commit({T0: 1, ("u", 0): 1}, member=member.id, generation=1)
    for _ in range(WEEK_MS // 1_200_000 + 1):
        world.advance(1_200_000)
        world.heartbeat(member.id, 1)
    assert world.offsets(T0, ("u", 0)) == [-1, 1]


def test_offset_with_an_expiry_timestamp_expires_at_it(world: World) -> None:
    world.commit({T0: 1}, version=4, retention_ms=600_000)
    world.advance(599_999)
    assert world.offsets(T0) == [1]
    world.advance(1_200_000)
    assert world.offsets(T0) == [-1]


def test_largest_retention_time_keeps_the_offset(world: World) -> None:
    world.commit({T0: 1}, version=4, retention_ms=2**63 - 1)
    world.advance(2 * WEEK_MS)
    assert world.offsets(T0) == [1]


def test_pending_offset_prevents_expiry(world: World) -> None:
    world.commit({T0: 1})
    commit_in_transaction(world, {T0: 2})
    world.advance(2 * WEEK_MS)
    assert world.offsets(T0) == [1]
    assert world.group() is not None


# Transactions


def test_pending_offset_is_committed_with_its_transaction(world: World) -> None:
    world.commit({T0: 1})
    assert commit_in_transaction(world, {T0: 5, T1: 6}) == ErrorCode.NONE
    assert world.offsets(T0, T1) == [1, -1]
    unstable = world.fetch(T0, T1, require_stable=True)
    assert [topic.partitions[0].error_code for topic in unstable.topics] == [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 2
    everything = world.fetch(everything=True, require_stable=True)
    assert everything.topics[0].partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, committed=True)
    assert world.offsets(T0, T1, require_stable=True) == [5, 6]


def test_pending_offset_is_dropped_on_abort(world: World) -> None:
    world.commit({T0: 1})
    commit_in_transaction(world, {T0: 5})
    end_transaction(world, committed=False)
    assert world.offsets(T0, require_stable=True) == [1]


def test_later_plain_commit_wins_over_a_transaction(world: World) -> None:
    commit_in_transaction(world, {T0: 5})
    world.commit({T0: 9})
    end_transaction(world, committed=True)
    assert world.offsets(T0) == [9]


def test_later_pending_offset_of_two_transactions_wins(world: World) -> None:
    commit_in_transaction(world, {T0: 5}, producer=1)
    commit_in_transaction(world, {T0: 6}, producer=2)
    end_transaction(world, committed=True, producer=2)
    assert code(world.fetch(T0, require_stable=True).topics[0].partitions[0]) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    end_transaction(world, committed=True, producer=1)
    assert world.offsets(T0, require_stable=True) == [6]


def test_reload_keeps_open_and_ended_transactions(world: World) -> None:
    commit_in_transaction(world, {T0: 5}, producer=1)
    commit_in_transaction(world, {T1: 6}, producer=2)
    end_transaction(world, committed=True, producer=1)
    world.restart()
    assert world.offsets(T0, T1) == [5, -1]
    end_transaction(world, committed=True, producer=2)
    world.restart()
    assert world.offsets(T0, T1, require_stable=True) == [5, 6]


def test_deleted_offset_is_removed_from_open_transactions(world: World) -> None:
    commit_in_transaction(world, {T0: 5, T1: 6})
    delete(world, T0)
    end_transaction(world, committed=True)
    assert world.offsets(T0, T1, require_stable=True) == [-1, 6]


def test_transactional_commit_validates_its_member(world: World) -> None:
    (member,) = world.stable_group("a")
    assert commit_in_transaction(world, {T0: 1}) == ErrorCode.NONE  # without any member, as old producers do
    known = {"member_id": member.id, "generation_id": 1}
    assert commit_in_transaction(world, {T0: 1}, **known) == ErrorCode.NONE
    wrong = commit_in_transaction(world, {T0: 1}, member_id=member.id, generation_id=2)
    assert wrong == ErrorCode.ILLEGAL_GENERATION
    assert commit_in_transaction(world, {T0: 1}, member_id="x", generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
    fenced = commit_in_transaction(world, {T0: 1}, **known, group_instance_id="i")
    assert fenced == ErrorCode.UNKNOWN_MEMBER_ID


def test_transactional_commit_in_unknown_group_fails(world: World) -> None:
    refused = commit_in_transaction(world, {T0: 1}, member_id="m", generation_id=1)
    assert refused == ErrorCode.ILLEGAL_GENERATION


def test_transactional_batch_has_producer_id_and_epoch(world: World) -> None:
    from ottla.records.batch import read_header

    commit_in_transaction(world, {T0: 1}, producer=42)
    header = read_header(world.log.batches[0][-1])
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 0, -1)
