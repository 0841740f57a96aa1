"""Histories of clients of a simulated log, correct or with one planted anomaly."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ottla.history import FAIL, INFO, OK, AnomalyKind, Assign, Operation, Poll, Send

if TYPE_CHECKING:
    from collections.abc import Callable


class Histories:
    """Producers write to partitions, in transactions or not; consumers read what is committed, from many places."""

    def __init__(self, seed: int, operations: int, partitions: int = 4) -> None:
        self.chance = random.Random(seed)
        self.names = [f"orders-{number}" for number in range(partitions)]
        self.logs: dict[str, list[tuple[int, Any]]] = {name: [] for name in self.names}
        self.ends: dict[str, int] = defaultdict(int)
        self.history: list[Operation] = []
        self.value = 0
        self.positions: dict[tuple[str, str], int] = {}
        self.assigned: dict[str, list[str]] = {}
        while len(self.history) < operations:
            if self.chance.randrange(3):
                self.send(f"p{self.chance.randrange(4)}")
            else:
                self.poll(f"c{self.chance.randrange(3)}")
        for name, log in self.logs.items():  # one last consumer reads everything
            self.history += [
                Operation("reader", OK, [Poll({name: log[start : start + 50]})]) for start in range(0, len(log), 50)
            ]

    def send(self, process: str) -> None:
        """Append a transaction of a few records: committed, aborted or of unknown outcome."""
        fate = self.chance.choice([OK, OK, OK, OK, FAIL, INFO])
        happens = fate == OK or (fate == INFO and self.chance.randrange(2) == 0)
        steps: list[Send] = []
        for _ in range(1 + self.chance.randrange(4)):
            name = self.chance.choice(self.names)
            self.value += 1
            offset = self.ends[name]
            self.ends[name] += 1
            if happens:
                self.logs[name].append((offset, self.value))
            steps.append(Send(name, self.value, offset if fate == OK else None))
        for name in {step.partition for step in steps}:
            self.ends[name] += 1  # the marker
        self.history.append(Operation(process, fate, steps))

    def poll(self, process: str) -> None:
        if process not in self.assigned or self.chance.randrange(20) == 0:
            taken = self.chance.sample(self.names, 1 + self.chance.randrange(len(self.names)))
            self.assigned[process] = taken
            for name in taken:
                log = self.logs[name]
                self.positions[process, name] = log[self.chance.randrange(len(log))][0] if log else 0
            self.history.append(Operation(process, OK, [Assign(tuple(taken))]))
        seen = {}
        for name in self.assigned[process]:
            at = self.positions[process, name]
            records = [pair for pair in self.logs[name] if pair[0] >= at][:10]
            if records:
                seen[name] = records
                self.positions[process, name] = records[-1][0] + 1
        if seen:
            self.history.append(Operation(process, OK, [Poll(seen)]))

    # Faults

    def polls(self) -> list[tuple[int, str]]:
        """Return operations in the second half that read at least four records of a partition."""
        half = len(self.history) // 2
        return [
            (index, name)
            for index in range(half, len(self.history) - 20)
            for step in self.history[index].steps
            if isinstance(step, Poll)
            for name, records in step.records.items()
            if len(records) >= 4
        ]

    def plant(self, kind: AnomalyKind) -> str:
        """Plant one anomaly; return its partition."""
        index, name = self.chance.choice(self.polls())
        return PLANTS[kind](self, index, name)

    def change(self, index: int, name: str, change: Callable[[list[tuple[int, Any]]], list[tuple[int, Any]]]) -> str:
        """Replace the records that one poll returned of a partition."""
        operation = self.history[index]
        (step,) = operation.steps
        assert isinstance(step, Poll)
        seen = {**step.records, name: change(list(step.records[name]))}
        self.history[index] = replace(operation, steps=[Poll(seen)])
        return name

    def remove_from_polls(self, name: str, value: Any) -> None:
        for index, operation in enumerate(self.history):
            if any(isinstance(step, Poll) and name in step.records for step in operation.steps):
                self.change(index, name, lambda seen: [pair for pair in seen if pair[1] != value])


def _inconsistent(world: Histories, index: int, name: str) -> str:
    return world.change(index, name, lambda seen: [*seen[:1], (seen[1][0], -1), *seen[2:]])


def _duplicate(world: Histories, index: int, name: str) -> str:
    def again(seen: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        last = seen[-1]
        world.ends[name] += 10_000
        return [*seen, (world.ends[name], last[1])]

    world.history.append(replace(world.history[index], process="late"))
    return world.change(len(world.history) - 1, name, again)


def _lost(world: Histories, index: int, name: str) -> str:
    known = {
        step.value
        for operation in world.history
        if operation.status == OK
        for step in operation.sends()
        if step.partition == name
    }
    (step,) = world.history[index].steps
    assert isinstance(step, Poll)
    value = next(value for _, value in step.records[name][1:-1] if value in known)
    world.remove_from_polls(name, value)
    return name


def _aborted(world: Histories, index: int, name: str) -> str:
    """Mark the transaction of a record that a poll returned as failed."""
    (step,) = world.history[index].steps
    assert isinstance(step, Poll)
    value = step.records[name][1][1]
    for position, operation in enumerate(world.history):
        if any(send.value == value for send in operation.sends()):
            mine = [replace_offset(send) for send in operation.sends() if send.value == value]
            others = [send for send in operation.sends() if send.value != value]
            world.history[position] = Operation(operation.process, FAIL, mine)
            if others:
                world.history.insert(position + 1, Operation(operation.process, operation.status, others))
            break
    return name


def replace_offset(send: Send) -> Send:
    return send._replace(offset=None)


def _unwritten(world: Histories, index: int, name: str) -> str:
    def more(seen: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        world.ends[name] += 10_000
        return [*seen, (world.ends[name], -7)]

    world.history.append(replace(world.history[index], process="late"))
    return world.change(len(world.history) - 1, name, more)


def _precommitted(world: Histories, index: int, name: str) -> str:
    """Make a transaction read its own first value before the commit."""
    for position in range(len(world.history) // 2, len(world.history)):
        operation = world.history[position]
        sends = list(operation.sends())
        if sends and operation.status == OK and sends[0].offset is not None:
            seen = Poll({sends[0].partition: [(sends[0].offset, sends[0].value)]})
            world.history[position] = replace(operation, steps=[*sends, seen])
            return sends[0].partition
    raise AssertionError("no operation sends")


def _skip(world: Histories, index: int, name: str) -> str:
    """Remove the first two records from the second of two consecutive polls."""
    operation = world.history[index]
    (step,) = operation.steps
    assert isinstance(step, Poll)
    first, rest = step.records[name][:1], step.records[name][3:]
    one = replace(operation, process="other", steps=[Poll({name: first})])
    two = replace(operation, process="other", steps=[Poll({name: rest})])
    world.history += [one, two]
    return name


def _back(world: Histories, index: int, name: str) -> str:
    operation = world.history[index]
    (step,) = operation.steps
    assert isinstance(step, Poll)
    world.history += [replace(operation, process="other", steps=[Poll({name: step.records[name]})]) for _ in range(2)]
    return name


def _sends(world: Histories, *, internal: bool) -> str:
    """Append records of a producer whose offsets decrease."""
    name = "sent-0"
    sends = [Send(name, "late", 8), Send(name, "early", 3)]
    if internal:
        world.history.append(Operation("other", OK, sends))
    else:
        world.history += [Operation("other", OK, [send]) for send in sends]
    world.history.append(Operation("reader", OK, [Poll({name: [(3, "early"), (8, "late")]})]))
    return name


PLANTS: dict[AnomalyKind, Callable[[Histories, int, str], str]] = {
    AnomalyKind.INCONSISTENT_OFFSETS: _inconsistent,
    AnomalyKind.DUPLICATE: _duplicate,
    AnomalyKind.LOST_WRITE: _lost,
    AnomalyKind.ABORTED_READ: _aborted,
    AnomalyKind.UNWRITTEN_READ: _unwritten,
    AnomalyKind.PRECOMMITTED_READ: _precommitted,
    AnomalyKind.POLL_SKIP: _skip,
    AnomalyKind.NONMONOTONIC_POLL: _back,
    AnomalyKind.NONMONOTONIC_SEND: lambda world, index, name: _sends(world, internal=False),
    AnomalyKind.INTERNAL_POLL_SKIP: lambda world, index, name: world.change(
        index, name, lambda seen: seen[:1] + seen[3:]
    ),
    AnomalyKind.INTERNAL_NONMONOTONIC_POLL: lambda world, index, name: world.change(
        index, name, lambda seen: [seen[0], seen[1], seen[0], *seen[1:]]
    ),
    AnomalyKind.INTERNAL_NONMONOTONIC_SEND: lambda world, index, name: _sends(world, internal=True),
}
