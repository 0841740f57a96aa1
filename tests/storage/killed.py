"""Kill a process (SIGKILL) during appends, rolls, compaction and metadata snapshots, and check its directory.

    python -m tests.storage.killed [--kills N] [--seed S]

A child works on a real directory and reports on a pipe each step begun and done; a report is the acknowledgement.
The parent picks a kind of work, kills the child when it begins that for the nth time, opens the directory as the next
start would, and checks everything that was acknowledged.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cluster.metadata.log import MetadataLog, MetadataLogConfig
from ottla.protocol.record_schemas.metadata import TopicRecord
from ottla.protocol.uuids import Uuid
from ottla.records.batch import iter_batches
from ottla.records.iterate import iter_records
from ottla.storage.check.verify import verify
from ottla.storage.checkpoints import decode_offsets, decode_partition_metadata
from ottla.storage.config import LogConfig
from ottla.storage.directory import LogDirectory
from ottla.storage.names import CHECKPOINTS, PARTITION_METADATA, TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom

from .batches import batch, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.storage.log.log import Log

KEPT = TopicPartition("kept", 0)
COMPACTED = TopicPartition("compacted", 0)
KEYS = 20
CONFIGS = {
    "kept": LogConfig(segment_bytes=30_000, index_interval_bytes=500),
    "compacted": LogConfig(
        segment_bytes=30_000, index_interval_bytes=500, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01
    ),
}
TOPIC_IDS = {"kept": Uuid(bytes([1] * 16)), "compacted": Uuid(bytes([2] * 16))}
METADATA = MetadataLogConfig(bytes_between_snapshots=1500, segment_bytes=6000, retention_bytes=20_000)
# The kinds of work to interrupt, with the largest start count at which to kill.
KINDS = {"append": 300, "roll": 6, "clean": 4, "snapshot": 4, "checkpoint": 4, "start": 1}


class Opened:
    """The directory as a broker opens it at start."""

    def __init__(self, path: str, life: int) -> None:
        self.directory = LogDirectory(RealDisk(), VirtualClock(1_700_000_000_000 + life), SeededRandom(life), path)
        self.directory.open()
        self.metadata = MetadataLog.open(self.directory, 1, METADATA)
        self.directory.load(CONFIGS.__getitem__)

    def log(self, partition: TopicPartition) -> Log:
        return self.directory.create_log(partition, CONFIGS[partition.topic], TOPIC_IDS[partition.topic])


def live(path: str, life: int, seed: int, say: Callable[[str], None]) -> None:
    """Run the child's work until it is killed."""
    say("begin start")
    opened = Opened(path, life)
    directory, metadata = opened.directory, opened.metadata
    metadata.start_epoch()
    kept, compacted = opened.log(KEPT), opened.log(COMPACTED)
    chance = random.Random(seed)
    number = 0
    while True:
        number += 1
        key = chance.randrange(KEYS)
        value = b"%d.%d " % (life, number) + chance.randbytes(chance.randrange(700))
        say("begin append")
        offset = kept.append_as_leader(batch(value), 0).first_offset
        say(f"kept {offset} {digest(value)}")
        offset = compacted.append_as_leader(batch(value, keys=[b"%d" % key]), 0).first_offset
        say(f"compacted {key} {offset}")
        if number % 40 == 0:
            say("begin roll")
            kept.roll()
            compacted.roll()
        if number % 60 == 0:
            say("begin clean")
            directory.clean_all()
        if number % 70 == 0:
            say("begin checkpoint")
            directory.checkpoint()
        if number % 15 == 0:
            topic = TopicRecord(name=f"topic-{life}-{number}", topic_id=Uuid(chance.randbytes(16)))
            metadata.append([topic])
            say(f"topic {topic.name}")
            if metadata.snapshot_due():
                say("begin snapshot")
                metadata.write_snapshot()
                metadata.clean()


def digest(value: bytes | None) -> str:
    return blake2b(value or b"", digest_size=8).hexdigest()


class Ledger:
    """Everything acknowledged so far."""

    def __init__(self) -> None:
        self.kept: dict[int, str] = {}
        self.newest: dict[int, int] = {}
        self.topics: set[str] = set()
        self.checked = 0

    def hear(self, words: list[str]) -> None:
        if words[0] == "kept":
            self.kept[int(words[1])] = words[2]
        elif words[0] == "compacted":
            self.newest[int(words[1])] = int(words[2])
        elif words[0] == "topic":
            self.topics.add(words[1])

    def check(self, path: str, life: int) -> None:
        """Check that small files are complete and that every acknowledged record is at its offset."""
        for file in Path(path).glob("*/" + PARTITION_METADATA):
            decode_partition_metadata(file.read_bytes())  # Kafka dies at an empty one
        for name in CHECKPOINTS:
            if (file := Path(path, name)).exists():
                decode_offsets(file.read_bytes())
        opened = Opened(path, life)
        try:
            digests = {offset: digest(value) for offset, _, value in contents(opened.log(KEPT), self.checked)}
            assert sorted(digests) == list(range(self.checked, self.checked + len(digests))), "offsets have a gap"
            lost = [
                offset for offset in self.kept if offset >= self.checked and digests.get(offset) != self.kept[offset]
            ]
            assert lost == [], f"lost or changed: {lost[:5]}"
            self.checked += len(digests)
            log = opened.log(COMPACTED)
            newest = {int(key or b"-1"): offset for offset, key, _ in contents(log, log.log_start_offset)}
            old = {key: offset for key, offset in self.newest.items() if newest.get(key, -1) < offset}
            assert old == {}, f"keys went back: {old}"
            there = {topic.name for topic in opened.metadata.image.topics.values()}
            assert self.topics <= there, f"lost topics: {sorted(self.topics - there)[:5]}"
        finally:
            opened.directory.abandon()


def contents(log: Log, offset: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of all records from an offset on; check the CRCs."""
    contents_read: list[tuple[int, bytes | None, bytes | None]] = []
    while offset < log.high_watermark:
        result = log.read(offset, 1 << 20)
        assert result.records is not None
        with result.records as records:
            data = bytes(records.read_all())
        for header in checked(data):
            contents_read += [(r.offset, r.key, r.value) for r in iter_records(data, header) if r.offset >= offset]
        offset = list(iter_batches(data))[-1].next_offset
    return contents_read


def run_child(path: str, life: int, seed: int, kind: str, count: int, ledger: Ledger) -> None:
    """Run a child, kill it when it begins `kind` for the `count`th time, and return its reports."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            live(path, life, seed, lambda line: os.write(writing, line.encode() + b"\n") and None)
        finally:
            os._exit(3)
    os.close(writing)
    killed = False
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            words = line.decode().split()
            ledger.hear(words)
            count -= words == ["begin", kind]
            if count == 0 and not killed:
                os.kill(child, signal.SIGKILL)
                killed = True
    _, status = os.waitpid(child, 0)
    assert killed, f"the child ended by itself with {status}"


def run(kills: int, seed: int, path: str) -> Counter[str]:
    """Kill so many children; return the number of kills by kind of work."""
    chance = random.Random(seed)
    ledger = Ledger()
    killed: Counter[str] = Counter()
    for life in range(kills):
        kind = chance.choice(list(KINDS))
        run_child(path, life, chance.randrange(1 << 32), kind, 1 + chance.randrange(KINDS[kind]), ledger)
        killed[kind] += 1
        ledger.check(path, life)
    ledger.checked = 0
    ledger.check(path, kills)
    opened = Opened(path, kills)
    opened.metadata.close()
    opened.directory.close()
    wrong = verify(RealDisk(), path).wrong
    assert wrong == [], wrong[:3]
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as path:
        killed = run(options.kills, options.seed, path)
    summary = ", ".join(f"{count} during {kind}" for kind, count in sorted(killed.items()))
    print(f"{options.kills} kills in {time.monotonic() - began:.0f} s, nothing lost: {summary}")


if __name__ == "__main__":
    main()
