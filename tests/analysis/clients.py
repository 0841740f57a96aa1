"""Simulated franz-go clients of a group, which log as `kgo.BasicLogger` does, without a fault or with one.

Healthy clients fetch in order, commit, hand over partitions and take over those of crashed clients; topics are idle now
and then, and some offsets hold markers.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from ottla.analysis.event import Event
from ottla.analysis.parse import kgo as parse_kgo
from tests.analysis.worlds import with_summary

FAULTS = {
    "skipped": "offsets were skipped",
    "again": "offsets were read again",
    "silence": "silence",
    "error": "error",
    "commit": "commit went back",
}
"""What can be planted, and the words in which it is to be found."""
MORNING_MS = 1_794_736_800_000  # 2026-11-15 10:00:00
FILE = "client.log"


class Planted(NamedTuple):
    """The planted fault, with its client and partition."""

    fault: str
    client: str
    partition: int


class Clients:
    """One simulated run."""

    def __init__(self, seed: int, fault: str | None = None) -> None:
        self.chance = random.Random(seed)
        self.fault = fault
        self.planted: Planted | None = None
        self.now = MORNING_MS
        self.lines: list[str] = []
        self.partitions = 2 + self.chance.randrange(4)
        self.ends = [self.chance.randrange(50) for _ in range(self.partitions)]
        self.committed = [0] * self.partitions
        self.position = [0] * self.partitions
        self.living = list(range(1, 2 + self.chance.randrange(3)))
        self.made = len(self.living)
        self.owner = [self.chance.choice(self.living) for _ in range(self.partitions)]

    def say(self, client: int, level: str, text: str) -> None:
        seconds, part = divmod(self.now - MORNING_MS, 1000)
        clock = f"{10 + seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{part:03d}"
        self.lines.append(f"[{clock} {client}][{level}] {text}")

    def run(self) -> list[Event]:
        for client in self.living:
            self.say(client, "INFO", "beginning to manage the next-gen group lifecycle; group: g")
        for partition in range(self.partitions):
            self.take(self.owner[partition], partition)
        when = 25 + self.chance.randrange(40)
        for moment in range(80):
            self.now += 200 + self.chance.randrange(4_000)
            busy = moment // 20 % 3 != 2  # the topic is idle now and then
            for partition in range(self.partitions):
                if busy and self.chance.randrange(2):
                    self.ends[partition] += self.chance.randrange(30)
            if self.fault is not None and self.planted is None and moment >= when:
                self.break_a_rule()
            self.something()
        return with_summary(
            [
                event
                for number, line in enumerate(self.lines)
                for event in parse_kgo.parse(line, Event(MORNING_MS + 3_600_000, "log", file=FILE, position=number))
                or []
            ],
            FILE,
        )

    def something(self) -> None:
        roll = self.chance.randrange(40)
        if roll == 0 and len(self.living) > 1:
            self.crash(self.chance.choice(self.living))
        elif roll == 1:
            self.made += 1
            self.living.append(self.made)
            self.move(self.chance.randrange(self.partitions), self.living[-1])
        elif roll < 5:
            self.move(self.chance.randrange(self.partitions), self.chance.choice(self.living))
        for client in self.living:
            self.say(client, "DEBUG", "heartbeating; group: g")
            self.say(client, "DEBUG", "heartbeat complete; group: g, err: <nil>")
            self.say(client, "DEBUG", "read Fetch v17; broker: 1, bytes_read: 53, read_wait: 1ms, err: <nil>")
        for partition in range(self.partitions):
            self.fetch(partition)
            if self.chance.randrange(4) == 0:
                self.commit(partition)

    def fetch(self, partition: int, at: int | None = None) -> None:
        start = self.position[partition] if at is None else at
        end = min(self.ends[partition], start + 25)
        if end <= start:
            return
        markers = self.chance.randrange(2) if end - start > 3 else 0
        moved = f"{partition}{{{start}=>{start}=>{end} r{end - start - markers} e0}}"
        self.say(self.owner[partition], "DEBUG", f"updated uncommitted; group: g, to: orders[{moved}]")
        self.position[partition] = end

    def commit(self, partition: int, to: int | None = None) -> None:
        before, after = self.committed[partition], self.position[partition] if to is None else to
        if before == after:
            return
        moved = f"{partition}{{{before}=>{after}}}"
        self.say(self.owner[partition], "DEBUG", f"updated committed; group: g, to: orders[{moved}]")
        self.committed[partition] = after

    def take(self, client: int, partition: int) -> None:
        self.owner[partition] = client
        self.position[partition] = self.committed[partition]
        self.say(client, "INFO", f"new group session begun; group: g, added: orders[{partition}], lost: ")
        at = f"orders[{partition}{{{self.position[partition]} e0 ce0}}]"
        why = "newly fetched offsets for group g, how: assigning everything new, keeping current assignment"
        self.say(client, "INFO", f"assigning partitions; why: {why}, input: {at}")

    def move(self, partition: int, client: int) -> None:
        if self.owner[partition] != client:
            self.commit(partition)
            self.say(self.owner[partition], "DEBUG", f"entering OnPartitionsRevoked; with: orders[{partition}]")
            self.take(client, partition)

    def crash(self, client: int) -> None:
        """End a client's log; others continue from its committed offsets after the session timeout."""
        self.living.remove(client)
        self.now += 10_000
        for partition in range(self.partitions):
            if self.owner[partition] == client:
                self.take(self.chance.choice(self.living), partition)

    def break_a_rule(self) -> None:
        """Plant the fault once, in a partition with fetches and commits."""
        ready = [
            partition
            for partition in range(self.partitions)
            if self.position[partition] > 5 and self.committed[partition] > 5
        ]
        if not ready:
            return
        partition = self.chance.choice(ready)
        client, at = self.owner[partition], self.position[partition]
        self.fetch(partition)
        at = self.position[partition]
        if self.fault == "skipped":
            self.ends[partition] += 40
            self.fetch(partition, at + 1 + self.chance.randrange(10))
        elif self.fault == "again":
            self.ends[partition] += 10
            self.fetch(partition, at - 1 - self.chance.randrange(5))
        elif self.fault == "silence":
            self.ends[partition] += 10
            self.fetch(partition)
            self.now += 40_000 + self.chance.randrange(60_000)
            self.ends[partition] += 10
            self.fetch(partition)
        elif self.fault == "error":
            words = (
                "received OFFSET_OUT_OF_RANGE, resetting to the nearest offset; either you were consuming too slowly"
            )
            where = f"broker: 1, topic: orders, partition: {partition}, prior_offset: {at}"
            self.say(client, "WARN", f"{words} and the broker has deleted the segment; {where}")
            self.take(client, partition)
        else:
            self.commit(partition)
            self.commit(partition, self.committed[partition] - 1 - self.chance.randrange(4))
        self.planted = Planted(self.fault or "", f"{FILE}#{client}", partition)
