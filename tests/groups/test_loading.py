"""Reading a partition of `__consumer_offsets`: what was overtaken is passed over, and nothing else is different."""

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


def batch(record: GroupRecord, at: int, producer: int | None) -> bytes:
    key, value = record.encode()
    stored = [Record(0, 1000 + at, key, value)]
    if producer is None:
        return bytes(build_batch(stored, at))
    return bytes(build_batch(stored, at, producer_id=producer, producer_epoch=0, base_sequence=at, transactional=True))


def marker(producer: int, at: int, *, committed: bool) -> bytes:
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    made = build_end_transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1000 + at, base_offset=at
    )
    return bytes(made)


def a_log(seed: int, length: int = 60) -> list[bytes]:
    """Commits, their ends and transactions of two groups and three partitions, in any order."""
    chance = random.Random(seed)
    found = []
    for at in range(length):
        producer = chance.choice((None, None, None, *PRODUCERS))
        place = chance.choice(("g", "h")), "t", chance.randrange(3)
        what = chance.random()
        if what < 0.15:
            found.append(marker(chance.choice(PRODUCERS), at, committed=chance.random() < 0.5))
        elif what < 0.25:
            found.append(batch(records.offset_tombstone(*place), at, None))
        else:
            found.append(
                batch(records.offset_commit(*place, OffsetAndMetadata(at, 0, str(at), 1000 + at)), at, producer)
            )
    return found


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
    """The same, with nothing passed over: behind each batch comes one of a producer that is nowhere else."""
    nobody = marker(99, 0, committed=True)
    return state([piece for each in pieces for piece in (each, nobody)])


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
    commits = [records.offset_commit("g", "t", 0, OffsetAndMetadata(at, 0, "", 1000)) for at in range(100)]
    found = state([batch(each, at, None) for at, each in enumerate(commits)])
    assert found["committed"]["g"]["t"][0].offset == 99
    assert len(decoded) == 1
