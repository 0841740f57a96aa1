"""Log directories of simulated applications, written with ottla's storage and without a broker.

Each simulation follows a seed; it is correct, or has one planted fault.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, NamedTuple

from ottla.analysis.parse.log_directory import folder_events
from ottla.groups.offsets.records import offset_commit
from ottla.groups.offsets.store import OffsetAndMetadata
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType
from ottla.storage.config import LogConfig
from ottla.storage.environment import StorageEnvironment
from ottla.storage.log.log import Log
from ottla.storage.log.producer_state import AppendOrigin
from ottla.storage.names import TopicPartition
from ottla.world.clock import VirtualClock
from ottla.world.disk_memory import MemoryDisk
from ottla.world.disk_real import RealDisk
from ottla.world.random import SeededRandom
from tests.analysis.worlds import with_summary

if TYPE_CHECKING:
    from pathlib import Path

    from ottla.analysis.event import Event
    from ottla.world.disk import Disk

OFFSETS = "__consumer_offsets"


class Writer:
    """Write partitions of a log directory, on disk or in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.clock = VirtualClock()
        self._disk: Disk = MemoryDisk() if path is None else RealDisk()
        self._environment = StorageEnvironment(self._disk, self.clock, SeededRandom(1))
        self._logs: dict[TopicPartition, Log] = {}
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
            (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")

    def _log(self, topic: str, partition: int) -> Log:
        topic_partition = TopicPartition(topic, partition)
        if topic_partition not in self._logs:
            folder = os.path.join(self.path or "/logs", str(topic_partition))
            self._disk.make_dirs(folder)
            self._logs[topic_partition] = Log.open(self._environment, folder, topic_partition, LogConfig(), clean=True)
        return self._logs[topic_partition]

    def write(
        self,
        topic: str,
        partition: int,
        keys: list[str],
        *,
        producer: int = -1,
        epoch: int = 0,
        first: int = 0,
        value: str = "value of",
    ) -> None:
        """Write one batch, transactional if it has a producer."""
        transactional = producer >= 0
        builder = BatchBuilder(
            producer_id=producer,
            producer_epoch=epoch if transactional else -1,
            base_sequence=first if transactional else -1,
            transactional=transactional,
        )
        for key in keys:
            builder.append(key.encode(), f"{value} {key}".encode(), (("id", f"h{key}".encode()),), self.clock.now_ms())
        self._log(topic, partition).append_as_leader(builder.build(), 0, verified=True)

    def end(self, topic: str, partition: int, producer: int, *, committed: bool, epoch: int = 0) -> None:
        """Write the marker of a transaction to a partition."""
        self._log(topic, partition).append_marker(
            ControlType.COMMIT if committed else ControlType.ABORT,
            0,
            producer_id=producer,
            producer_epoch=epoch,
            coordinator_epoch=0,
            transaction_version=0,
        )

    def commit(
        self, group: str, topic: str, partition: int, offset: int, *, producer: int = -1, epoch: int = 0
    ) -> None:
        """Commit an offset for a group, in a transaction if there is a producer."""
        transactional = producer >= 0
        builder = BatchBuilder(
            producer_id=producer, producer_epoch=epoch if transactional else -1, transactional=transactional
        )
        now = self.clock.now_ms()
        key, value = offset_commit(group, topic, partition, OffsetAndMetadata(offset, -1, "", now)).encode()
        builder.append(key, value, (), now)
        self._log(OFFSETS, 0).append_as_leader(builder.build(), 0, origin=AppendOrigin.COORDINATOR)

    def events(self) -> list[Event]:
        """Return the whole directory as events."""
        folders = [log.folder for log in self._logs.values()]
        directory_events = [
            event for folder in folders for event in folder_events(folder, {}, self._disk, appends=True)
        ]
        return with_summary(directory_events, "directory")

    def close(self) -> None:
        """Close all logs."""
        for log in self._logs.values():
            log.close()


class Stuck(NamedTuple):
    """A group that stopped committing in a partition."""

    group: str
    partition: int


def readers(seed: int, *, stuck: bool = False) -> tuple[list[Event], Stuck | None]:
    """Return the events of groups that follow a topic for an hour; one may stop in one partition."""
    chance = random.Random(seed)
    writer = Writer()
    groups = [f"group-{number}" for number in range(1 + chance.randrange(3))]
    partitions = 2 + chance.randrange(4)
    every = [chance.choice([1, 2, 9, 25]) for _ in range(partitions)]
    every[0] = 1
    planted = Stuck(chance.choice(groups), 0) if stuck else None
    stops = 10 + chance.randrange(30)
    ends = [0] * partitions
    for minute in range(60):
        for partition in range(partitions):
            if minute % every[partition] == 0:
                count = 1 + chance.randrange(20)
                writer.write("orders", partition, [f"k{number}" for number in range(count)])
                ends[partition] += count
        writer.clock.advance(20_000 / 1000)
        for group in groups:
            for partition in range(partitions):
                stands = planted == Stuck(group, partition) and minute >= stops
                if ends[partition] and not stands and chance.randrange(4):
                    behind = chance.randrange(3) if chance.randrange(3) == 0 else 0
                    writer.commit(group, "orders", partition, max(ends[partition] - behind, 0))
        writer.clock.advance(40_000 / 1000)
    for group in groups:
        for partition in range(partitions):
            if planted != Stuck(group, partition):
                writer.commit(group, "orders", partition, ends[partition])
    return writer.events(), planted


def keyed(seed: int, *, skewed: bool = False) -> tuple[list[Event], str | None]:
    """Return the events of records partitioned by key; if skewed, one key is in every second record."""
    chance = random.Random(seed)
    writer = Writer()
    partitions = 4 + chance.randrange(5)
    hot = chance.randrange(partitions)
    for _ in range(100):
        rows: dict[int, list[str]] = {}
        for _ in range(10):
            key = chance.randrange(1_000_000)
            position = hot if skewed and chance.randrange(2) else key % partitions
            rows.setdefault(position, []).append(f"k{key}")
        for row, keys in sorted(rows.items()):
            writer.write("orders", row, keys)
        writer.clock.advance(chance.randrange(3_000) / 1000)
    return writer.events(), f"orders-{hot}" if skewed else None


EXACTLY_ONCE_FAULTS = ("duplicate", "lost", "outside")


class Broken(NamedTuple):
    """The planted fault of an application, the record ids concerned, and the culprit."""

    fault: str
    ids: list[str]
    culprit: str


def application(writer: Writer, number: int, seed: int, fault: str | None = None) -> Broken | None:
    """One run of an application that bills orders in transactions, in partitions and with a group of its own.

    Transactions are committed or aborted and done again, instances crash and are fenced. The faults: an instance that
    begins again where its predecessor had already committed (`duplicate`); offsets that are committed outside the
    transaction, which is then aborted (`lost`); the same, and nothing happens (`outside`).
    """
    chance = random.Random(seed)
    group, producer, epoch = f"billing-{number}", 1_000 + number, 0
    keys = [f"run{number}-k{key}" for key in range(20 + chance.randrange(30))]
    for start in range(0, len(keys), 10):
        writer.write("orders", number, keys[start : start + 10])
    position = sequence = 0
    broken: Broken | None = None
    moment = len(keys) // 2
    while position < len(keys):
        count = min(1 + chance.randrange(6), len(keys) - position)
        part = keys[position : position + count]
        writer.clock.advance((50 + chance.randrange(500)) / 1000)
        breaks = fault if position >= moment and broken is None else None
        writer.write("bills", number, part, producer=producer, epoch=epoch, first=sequence)
        writer.clock.advance(5 / 1000)
        inside = producer if breaks not in ("lost", "outside") else -1
        writer.commit(group, "orders", number, position + count, producer=inside, epoch=epoch)
        writer.clock.advance(5 / 1000)
        committed = breaks == "outside" or (breaks != "lost" and (breaks is not None or chance.randrange(5) > 0))
        writer.end("bills", number, producer, committed=committed, epoch=epoch)
        if inside >= 0:
            writer.end(OFFSETS, 0, producer, committed=committed, epoch=epoch)
        sequence += count
        if breaks == "duplicate":
            broken = Broken("duplicate", part, f"producer {producer}/{epoch}, producer {producer}/{epoch + 1}")
            epoch, sequence = epoch + 1, 0
            continue
        if breaks == "lost":
            broken = Broken("lost", part, f"group {group}")
        elif breaks == "outside":
            broken = Broken("outside", [], f"group {group}")
        elif not committed:
            if chance.randrange(2):  # it crashed, and the next one has a newer epoch
                epoch, sequence = epoch + 1, 0
            continue
        position += count
    return broken
