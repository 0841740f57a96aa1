"""Removal of single records keeps offsets and all other records, and the directory verifies afterwards."""

from __future__ import annotations

import random

import pytest

from ottla.records.builder import BatchBuilder
from ottla.records.compression import CompressionType
from ottla.records.iterate import iter_all_records
from ottla.storage.check.record_removal import RecordLocation, remove_record
from ottla.storage.check.repair import repair
from ottla.storage.check.verify import verify
from ottla.storage.environment import StorageEnvironment
from ottla.storage.names import TopicPartition
from ottla.world.world import World

PLACE = TopicPartition("__consumer_offsets", 3)
LOG = f"/data/{PLACE}/{0:020}.log"
BATCHES = [(0, 1), (1, 4), (5, 1), (6, 3)]  # base offset and number of records


@pytest.fixture
def env() -> StorageEnvironment:
    world = World.simulated(1)
    world.disk.make_dirs(f"/data/{PLACE}")
    return StorageEnvironment(world.disk, world.clock, world.random)


def write(env: StorageEnvironment, data: bytes | bytearray) -> None:
    file = env.disk.open(LOG, create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.close()


def make_log(compression: int = CompressionType.NONE) -> list[bytes]:
    batches = []
    for base, size in BATCHES:
        builder = BatchBuilder(base, partition_leader_epoch=2, compression=compression)
        for offset in range(base, base + size):
            builder.append(b"key %d" % offset, b"value %d" % offset, timestamp=1_000 + offset)
        batches.append(bytes(builder.build()))
    return batches


def offsets(env: StorageEnvironment) -> list[int]:
    return [record.offset for _, record in iter_all_records(env.disk.read(LOG))]


def drop(env: StorageEnvironment, offset: int, *, dry_run: bool = False) -> str:
    path, action = remove_record(env, "/data", RecordLocation(PLACE, offset), dry_run=dry_run)
    assert path == LOG
    return action


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("offset", range(9))
def test_any_record_is_dropped_alone(env: StorageEnvironment, offset: int, compression: int) -> None:
    write(env, b"".join(make_log(compression)))
    assert drop(env, offset, dry_run=True) == f"drop the record at offset {offset}"
    assert offsets(env) == list(range(9))
    assert drop(env, offset) == f"drop the record at offset {offset}"
    assert offsets(env) == [other for other in range(9) if other != offset]
    repair(env, "/data")
    report = verify(env.disk, "/data")
    assert not report.wrong
    assert report.ends[PLACE] == 9


@pytest.mark.parametrize("seed", range(40))
def test_damaged_batch_is_replaced_and_all_others_stay(env: StorageEnvironment, seed: int) -> None:
    chance = random.Random(seed)
    batches = make_log()
    number = chance.randrange(len(batches))
    damaged = bytearray(batches[number])
    for _ in range(chance.choice((1, 3))):
        damaged[chance.choice([*range(8, 12), *range(16, len(damaged))])] ^= 1 << chance.randrange(8)
    write(env, b"".join([*batches[:number], damaged, *batches[number + 1 :]]))
    base, size = BATCHES[number]
    assert "damaged bytes" in drop(env, base)
    assert offsets(env) == [offset for offset in range(9) if not base <= offset < base + size]
    repair(env, "/data")
    report = verify(env.disk, "/data")
    assert not report.wrong
    assert report.ends[PLACE] == 9 or number == len(batches) - 1  # a damaged last batch may claim another end


def test_batch_with_a_wrong_base_offset_is_replaced(env: StorageEnvironment) -> None:
    batches = make_log()
    write(env, batches[0] + (7).to_bytes(8) + batches[1][8:] + batches[2] + batches[3])
    assert "damaged bytes" in drop(env, 1)
    assert offsets(env) == [0, 5, 6, 7, 8]


def test_dropped_record_can_be_dropped_again(env: StorageEnvironment) -> None:
    write(env, b"".join(make_log()))
    drop(env, 2)
    assert drop(env, 2) == "no record at offset 2: nothing to drop"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (RecordLocation(PLACE, 1 << 40), "no offset"),
        (RecordLocation(TopicPartition("other", 0), 0), "no partition other-0"),
    ],
)
def test_unknown_record_is_an_error(env: StorageEnvironment, record: RecordLocation, message: str) -> None:
    write(env, b"".join(make_log()))
    with pytest.raises(LookupError, match=message):
        remove_record(env, "/data", record)


@pytest.mark.parametrize("text", ["", "t-0", "t@5", "t-0@", "t-0@-1", "t-0@x", "t-0.1234-delete@5"])
def test_malformed_topic_partition_offset_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="TOPIC-PARTITION@OFFSET"):
        RecordLocation.parse(text)
