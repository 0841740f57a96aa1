"""Loading of a partition of `__consumer_offsets`: replaced commits are skipped, which changes nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.groups.offsets import records
from ottla.groups.offsets.store import OffsetAndMetadata
from ottla.groups.records import GroupRecord, decode_record
from ottla.records.builder import build_batch, build_end_transaction_marker
from ottla.records.control import ControlType
from ottla.records.iterate import Record

from .world import World

PRODUCERS = (7, 8)


def batch(record: GroupRecord, offset: int, producer: int | None) -> bytes:
    key, value = record.encode()
    stored = [Record(0, 1000 + offset, key, value)]
    if producer is None:
        return bytes(build_batch(stored, offset))
    return bytes(
        build_batch(stored, offset, producer_id=producer, producer_epoch=0, base_sequence=offset, transactional=True)
    )


def marker(producer: int, offset: int, *, committed: bool) -> bytes:
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    built = build_end_transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1000 + offset, base_offset=offset
    )
    return bytes(built)


def a_log(seed: int, length: int = 60) -> list[bytes]:
    """Return commits, tombstones, transactions and markers of two groups and three partitions in random order."""
    chance = random.Random(seed)
    batches = []
    for offset in range(length):
        producer = chance.choice((None, None, None, *PRODUCERS))
        group_topic_partition = chance.choice(("g", "h")), "t", chance.randrange(3)
        draw = chance.random()
        if draw < 0.15:
            batches.append(marker(chance.choice(PRODUCERS), offset, committed=chance.random() < 0.5))
        elif draw < 0.25:
            batches.append(batch(records.offset_tombstone(*group_topic_partition), offset, None))
        else:
            batches.append(
                batch(
                    records.offset_commit(
                        *group_topic_partition, OffsetAndMetadata(offset, 0, str(offset), 1000 + offset)
                    ),
                    offset,
                    producer,
                )
            )
    return batches


def state(pieces: list[bytes]) -> dict[str, Any]:
    world = World()
    world.coordinator.load(0, pieces)
    shard = world.coordinator.shard(0)
    assert shard is not None
    return {
        "groups": sorted(shard.groups),
        "committed": {group: shard.offsets.of_group(group) for group in ("g", "h") if shard.offsets.of_group(group)},
        "pending": {producer: shard.offsets.pending(producer) for producer in PRODUCERS},
    }


def step_by_step(pieces: list[bytes]) -> dict[str, Any]:
    """Return the state with nothing skipped: a batch of another producer follows each batch."""
    nobody = marker(99, 0, committed=True)
    return state([piece for entry in pieces for piece in (entry, nobody)])


@pytest.mark.parametrize("seed", range(60))
def test_skipping_replaced_commits_changes_nothing(seed: int) -> None:
    log = a_log(seed)
    assert state([b"".join(log)]) == step_by_step(log)


def test_replaced_commit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def counting(key: bytes | None, value: bytes | None) -> GroupRecord | None:
        decoded.append(key)
        return decode_record(key, value)

    monkeypatch.setattr("ottla.groups.loading.decode_record", counting)
    commits = [records.offset_commit("g", "t", 0, OffsetAndMetadata(offset, 0, "", 1000)) for offset in range(100)]
    batches = state([batch(commit, offset, None) for offset, commit in enumerate(commits)])
    assert batches["committed"]["g"]["t"][0].offset == 99
    assert len(decoded) == 1
