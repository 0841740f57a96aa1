"""The share coordinator: snapshots, updates, fencing epochs and restarts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode
from ottla.protocol.record_schemas.share import ShareSnapshotValue, ShareUpdateValue
from ottla.protocol.uuids import Uuid
from ottla.records.builder import BatchBuilder
from ottla.shares.coordinator import ShareConfig
from ottla.shares.environment import SharePartitionKey, ShareState, StateBatch
from ottla.shares.records import ShareRecord, decode_record
from ottla.shares.state import combine
from tests.shares.world import KEY, TOPIC, ShareWorld, answered

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

_batches = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 30),
        st.integers(0, 10),
        st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
        st.integers(1, 3),
    ),
    max_size=8,
)


def spread(batches: list[StateBatch]) -> dict[int, tuple[int, int]]:
    """Return the winning delivery count and state of each offset."""
    acquired: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(batch.first_offset, batch.last_offset + 1):
            info = (batch.delivery_count, batch.delivery_state)
            acquired[offset] = max(acquired.get(offset, info), info)
    return acquired


@given(_batches, st.integers(-1, 35))
def test_combined_batches_keep_furthest_state_of_each_offset(batches: list[StateBatch], start: int) -> None:
    combined = combine(batches, start)
    assert spread(combined) == {offset: info for offset, info in spread(batches).items() if offset >= start}
    for before, after in itertools.pairwise(combined):
        assert before.last_offset < after.first_offset
        joined = before.last_offset + 1 == after.first_offset
        assert not joined or (before.delivery_state, before.delivery_count) != (
            after.delivery_state,
            after.delivery_count,
        )


def test_initialize_writes_empty_snapshot() -> None:
    world = ShareWorld()
    assert answered(world.coordinator.initialize(KEY, 3, -1)).error is ErrorCode.NONE
    assert world.state() == ShareState(ErrorCode.NONE, 3, 0, -1, -1, ())
    (record,) = world.written()
    assert record.key == KEY
    assert record.value == ShareSnapshotValue(
        state_epoch=3,
        leader_epoch=0,
        start_offset=-1,
        delivery_complete_count=-1,
        create_timestamp=world.clock.now_ms(),
        write_timestamp=world.clock.now_ms(),
    )


def test_initialize_with_start_offset_sets_complete_count() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 1, 25)
    assert world.state().start_offset == 25
    assert world.state().delivery_complete_count == 0


def test_writes_become_snapshot_after_update_limit() -> None:
    world = ShareWorld(config=ShareConfig(updates_per_snapshot=2))
    world.coordinator.initialize(KEY, 0, 0)
    for offset in range(5):
        batch = StateBatch(offset, offset, ACKNOWLEDGED, 1)
        assert answered(world.coordinator.write(KEY, 0, 0, 0, offset + 1, [batch])).error is ErrorCode.NONE
    kinds = [type(record.value) for record in world.written()]
    assert kinds == [
        ShareSnapshotValue,
        ShareUpdateValue,
        ShareUpdateValue,
        ShareSnapshotValue,
        ShareUpdateValue,
        ShareUpdateValue,
    ]
    snapshot = world.written()[3].value
    assert isinstance(snapshot, ShareSnapshotValue)
    assert snapshot.snapshot_epoch == 1
    assert [(state_batch.first_offset, state_batch.last_offset) for state_batch in snapshot.state_batches] == [(0, 2)]
    before = world.state()
    world.restart()
    assert world.state() == before
    assert before.batches == (StateBatch(0, 4, ACKNOWLEDGED, 1),)
    assert before.delivery_complete_count == 5


def test_later_start_offset_drops_earlier_batches() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 0, 0)
    world.coordinator.write(KEY, 0, 0, 0, 0, [StateBatch(0, 9, AVAILABLE, 1)])
    world.coordinator.write(KEY, 0, 0, 5, 0, [])
    assert world.state().batches == (StateBatch(5, 9, AVAILABLE, 1),)
    world.coordinator.write(KEY, 0, 0, -1, 0, [])
    assert world.state().start_offset == 5


def test_read_fences_earlier_leader_epochs_across_restart() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 0, 0)
    assert answered(world.coordinator.read(KEY, 5)).state.leader_epoch == 0
    assert len(world.written()) == 2
    answered(world.coordinator.read(KEY, 5))
    assert len(world.written()) == 2, "a leader that is known already changes nothing"
    world.restart()
    assert answered(world.coordinator.read(KEY, 4)).error is ErrorCode.FENCED_LEADER_EPOCH
    assert answered(world.coordinator.write(KEY, 0, 4, 0, 0, [])).error is ErrorCode.FENCED_LEADER_EPOCH
    assert answered(world.coordinator.write(KEY, 0, 5, 0, 0, [])).error is ErrorCode.NONE


def test_later_state_epoch_resets_and_fences() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 1, 0)
    world.coordinator.write(KEY, 1, 0, 0, 0, [StateBatch(0, 3, ACKNOWLEDGED, 1)])
    world.coordinator.initialize(KEY, 2, 100)
    assert world.state() == ShareState(ErrorCode.NONE, 2, 0, 100, 0, ())
    assert answered(world.coordinator.write(KEY, 1, 0, 0, 0, [])).error is ErrorCode.FENCED_STATE_EPOCH
    assert answered(world.coordinator.initialize(KEY, 1, 0)).error is ErrorCode.FENCED_STATE_EPOCH


def test_uninitialized_state_is_neither_read_nor_written() -> None:
    world = ShareWorld()
    read = answered(world.coordinator.read(KEY, 0))
    assert (read.error, read.message) == (
        ErrorCode.INVALID_REQUEST,
        "Read operation on uninitialized share partition not allowed.",
    )
    written = answered(world.coordinator.write(KEY, 0, 0, 0, 0, []))
    assert written.error is ErrorCode.INVALID_REQUEST
    assert answered(world.coordinator.summary(KEY)).state == ShareState(ErrorCode.NONE, 0, 0, -1, -1, ())
    assert answered(world.coordinator.delete(KEY)).error is ErrorCode.NONE
    assert world.written() == []


def test_unknown_partitions_are_refused() -> None:
    world = ShareWorld()
    unknown = SharePartitionKey("g", Uuid(bytes(16)), 0)
    beyond = SharePartitionKey("g", TOPIC, 4)
    negative = SharePartitionKey("g", TOPIC, -1)
    assert answered(world.coordinator.initialize(unknown, 0, 0)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answered(world.coordinator.summary(beyond)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answered(world.coordinator.delete(negative)).error is ErrorCode.INVALID_REQUEST


def test_delete_writes_tombstone() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 5, 0)
    world.coordinator.delete(KEY)
    assert world.written()[-1] == ShareRecord(KEY, None)
    world.restart()
    assert answered(world.coordinator.initialize(KEY, 0, 0)).error is ErrorCode.NONE


def test_deleted_topic_deletes_state() -> None:
    world = ShareWorld()
    for partition in range(3):
        world.coordinator.initialize(SharePartitionKey("g", TOPIC, partition), 0, 0)
    del world.topics[TOPIC]
    world.coordinator.topics_deleted({TOPIC})
    shard = world.coordinator.shard(0)
    assert shard is not None
    assert shard.states == {}
    assert [record.value for record in world.written()[3:]] == [None, None, None]


def test_pruning_keeps_state() -> None:
    world = ShareWorld(config=ShareConfig(updates_per_snapshot=1))
    other = KEY._replace(partition=1)
    world.coordinator.initialize(KEY, 0, 0)
    world.coordinator.initialize(other, 0, 0)
    world.coordinator.start()
    for offset in range(4):
        world.coordinator.write(KEY, 0, 0, offset, offset, [])
    before = world.state()
    world.clock.advance(299)
    assert world.log.start == {}
    world.clock.advance(2)
    assert world.log.start == {0: 1}, "the other partition's only snapshot is still needed"
    world.clock.advance(600)
    assert world.log.start[0] > 5, "a snapshot of the cold partition lets the rest go"
    world.restart()
    assert world.state() == before
    assert world.state(other).start_offset == 0
    world.coordinator.stop()


def test_response_waits_for_durability() -> None:
    world = ShareWorld()
    world.log.slow = True
    response = world.coordinator.initialize(KEY, 0, 0)
    assert not response.done
    world.log.waiting.pop().complete(ErrorCode.NONE)
    assert answered(response).error is ErrorCode.NONE
    failing = world.coordinator.write(KEY, 0, 0, 0, 0, [])
    world.log.waiting.pop().complete(ErrorCode.KAFKA_STORAGE_ERROR)
    assert answered(failing).error is ErrorCode.NOT_COORDINATOR


def test_failed_append_changes_nothing() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 0, 0)
    world.log.broken = ErrorCode.NOT_ENOUGH_REPLICAS
    assert answered(world.coordinator.write(KEY, 0, 0, 7, 0, [])).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.state().start_offset == 0


def test_partition_led_elsewhere_is_not_coordinator() -> None:
    world = ShareWorld(partitions=3)
    world.coordinator.initialize(KEY, 0, 0)
    world.coordinator.unload(world.coordinator.partition_for(KEY))
    assert answered(world.coordinator.read(KEY, 0)).error is ErrorCode.NOT_COORDINATOR


def test_partition_with_unreadable_record_is_not_loaded() -> None:
    world = ShareWorld()
    world.coordinator.initialize(KEY, 0, 0)
    builder = BatchBuilder()
    builder.append(b"\x00\x00broken", b"\x00\x00")
    world.log.append(0, builder.build())
    world.restart()
    assert answered(world.coordinator.read(KEY, 0)).error is ErrorCode.NOT_COORDINATOR


def test_unknown_record_types_are_ignored() -> None:
    assert decode_record(b"\x00\x09rest", b"\x00\x00") is None
