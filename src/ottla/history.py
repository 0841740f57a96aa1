"""The history checker: finds anomalies in what clients sent and polled, as Jepsen's analyses of Kafka define them.

It reads only histories and imports nothing of the broker, so it can check any Kafka cluster.

A history is a list of operations, one per call or transaction of a client, each client's in its own order. As text it
is JSON lines:

    {"process": "p1", "status": "ok", "steps": [{"send": "orders-0", "value": 7, "offset": 3}]}
    {"process": "t1", "status": "fail", "steps": [{"poll": {"orders-0": [[3, 7]]}}, {"send": "bills-0", "value": 1}]}
    {"process": "c1", "status": "ok", "steps": [{"poll": {"bills-0": [[0, 4], [2, 5]]}}]}
    {"process": "c1", "assign": ["orders-0"]}

- `status` is `ok` if the operation certainly took effect (acknowledged, committed), `fail` if it certainly did not
  (refused, aborted), and `info` if that is unknown. Polled records count as read whatever the status.
- `steps` are sends and polls in order. A value is sent at most once to a partition, so that it identifies a record. The
  offset of a send is absent if the client did not receive it.
- `assign` means that a consumer's positions in these partitions were set (by an assignment, a seek, or a reset after an
  abort), so that its next poll need not continue its last one.
- `index`, `start` and `end` are optional and appear in reports.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

OK, FAIL, INFO = "ok", "fail", "info"


class Send(NamedTuple):
    """A value sent to a partition, with its offset if the client received it."""

    partition: str
    value: Any
    offset: int | None = None


class Poll(NamedTuple):
    """The records that a poll returned: offsets and values by partition, in order."""

    records: dict[str, list[tuple[int, Any]]]


class Assign(NamedTuple):
    """An assignment or seek that set a consumer's positions in these partitions."""

    partitions: tuple[str, ...]


Step = Send | Poll | Assign


@dataclass(slots=True, eq=False)
class Operation:
    """One call or transaction of a client, with its status and steps."""

    process: str
    status: str
    steps: Sequence[Step]
    index: int = -1
    start: float | None = None
    end: float | None = None

    def sends(self) -> Iterator[Send]:
        """Return the sends of the operation, in order."""
        return (step for step in self.steps if isinstance(step, Send))

    def __str__(self) -> str:
        return json.dumps(_to_json(self), separators=(", ", ": "), default=repr)


class AnomalyKind(Enum):
    """The kinds of anomalies, which a correct log does not show."""

    INCONSISTENT_OFFSETS = "inconsistent offsets"
    """One offset of a partition has several values."""
    DUPLICATE = "duplicate"
    """A value that was sent once has several offsets."""
    LOST_WRITE = "lost write"
    """A committed value was never read, although later values of its partition were."""
    ABORTED_READ = "aborted read (G1a)"
    """A value of an aborted transaction was read."""
    UNWRITTEN_READ = "unwritten read"
    """A value was read that was never sent."""
    PRECOMMITTED_READ = "precommitted read"
    """A transaction read its own values before it committed."""
    POLL_SKIP = "poll skip"
    """Two consecutive polls of a consumer skipped values between them."""
    NONMONOTONIC_POLL = "non-monotonic poll"
    """A poll of a consumer returned a lower offset than its previous poll."""
    NONMONOTONIC_SEND = "non-monotonic send"
    """A later value of a producer has a lower offset than an earlier one."""
    INTERNAL_POLL_SKIP = "internal poll skip"
    """A poll skip within one transaction or poll."""
    INTERNAL_NONMONOTONIC_POLL = "internal non-monotonic poll"
    """A non-monotonic poll within one transaction or poll."""
    INTERNAL_NONMONOTONIC_SEND = "internal non-monotonic send"
    """A non-monotonic send within one transaction."""


class Anomaly(NamedTuple):
    """One anomaly: its partition, a description, and the operations that prove it."""

    kind: AnomalyKind
    partition: str
    detail: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        proof = "\n".join(f"    #{operation.index} {operation}" for operation in self.operations)
        return f"{self.kind.value} in {self.partition}: {self.detail}\n{proof}"


@dataclass(slots=True)
class Report:
    """The result of a check. `unread` are committed values after the last read offset: not read yet, or lost."""

    anomalies: list[Anomaly] = field(default_factory=list)
    unread: dict[str, list[Any]] = field(default_factory=dict)
    sent: int = 0
    read: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no anomalies."""
        return not self.anomalies

    def kinds(self) -> set[AnomalyKind]:
        """Return the kinds of the anomalies."""
        return {anomaly.kind for anomaly in self.anomalies}

    def __str__(self) -> str:
        head = f"{self.sent} values sent, {self.read} read, {len(self.anomalies)} anomalies"
        return "\n".join([head, *map(str, self.anomalies)])


def check_history(history: Iterable[Operation], *, everything_read: bool = False) -> Report:
    """Return all anomalies of a history.

    With `everything_read` all partitions were read to their ends at last, so that an unread value counts as lost.

        report = check_history(read_history(open("history.jsonl")))
        assert report.ok, str(report)
    """
    operations = list(history)
    for index, operation in enumerate(operations):
        if operation.index < 0:
            operation.index = index
    return _Check(operations).report(everything_read)


def read_history(lines: Iterable[str]) -> list[Operation]:
    """Return the history of JSON lines; ValueError with the line number if one is malformed."""
    history: list[Operation] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                history.append(_from_json(json.loads(line), len(history)))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"line {number} is not an operation of a history: {error!r}") from None
    return history


def write_history(history: Iterable[Operation]) -> Iterator[str]:
    """Return the JSON lines of a history."""
    for operation in history:
        yield json.dumps(_to_json(operation)) + "\n"


class _Occurrence(NamedTuple):
    """A value at an offset, sent or read by an operation."""

    operation: Operation
    offset: int | None


class _Check:
    """Indexes of a history, and one method per kind of anomaly."""

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.anomalies: list[Anomaly] = []
        self.senders: dict[str, dict[Any, list[_Occurrence]]] = defaultdict(lambda: defaultdict(list))
        self.readers: dict[str, dict[Any, list[_Occurrence]]] = defaultdict(lambda: defaultdict(list))
        for operation in operations:
            for step in operation.steps:
                if isinstance(step, Send):
                    self.senders[step.partition][step.value].append(_Occurrence(operation, step.offset))
                elif isinstance(step, Poll):
                    for partition, records in step.records.items():
                        for offset, value in records:
                            self.readers[partition][value].append(_Occurrence(operation, offset))
        self.partitions = list(dict.fromkeys([*self.senders, *self.readers]))
        # A transaction with unknown status has committed if another operation read a value of it.
        self.committed = {id(operation) for operation in operations if operation.status == OK}
        for operation in operations:
            if operation.status == INFO and any(
                occurrence.operation is not operation
                for send in operation.sends()
                for occurrence in self.readers[send.partition].get(send.value, ())
            ):
                self.committed.add(id(operation))
        self.offsets = {partition: self._index_offsets(partition) for partition in self.partitions}
        self.order = {partition: sorted(offsets) for partition, offsets in self.offsets.items()}
        self.position = {
            partition: {offset: index for index, offset in enumerate(order)} for partition, order in self.order.items()
        }

    def report(self, everything_read: bool) -> Report:
        report = Report(self.anomalies)
        for partition in self.partitions:
            report.sent += len(self.senders[partition])
            report.read += len(self.readers[partition])
            self._check_offsets(partition)
            self._check_reads(partition)
            unread = self._check_lost_writes(partition, everything_read)
            if unread:
                report.unread[partition] = unread
        self._check_precommitted_reads()
        self._check_polls()
        self._check_sends()
        return report

    def _index_offsets(self, partition: str) -> dict[int, dict[Any, list[Operation]]]:
        """Return offset -> value -> operations, of values that are committed or were read."""
        offsets: dict[int, dict[Any, list[Operation]]] = defaultdict(lambda: defaultdict(list))
        for value, sent in self.senders[partition].items():
            for operation, offset in sent:
                if offset is not None and id(operation) in self.committed:
                    offsets[offset][value].append(operation)
        for value, read in self.readers[partition].items():
            for operation, offset in read:
                assert offset is not None
                offsets[offset][value].append(operation)
        return offsets

    def _add(self, kind: AnomalyKind, partition: str, detail: str, operations: Iterable[Operation]) -> None:
        self.anomalies.append(Anomaly(kind, partition, detail, tuple(dict.fromkeys(operations))))

    def _check_offsets(self, partition: str) -> None:
        offsets_of_value: dict[Any, dict[int, list[Operation]]] = defaultdict(dict)
        for offset, values in sorted(self.offsets[partition].items()):
            for value, operations in values.items():
                offsets_of_value[value][offset] = operations
            if len(values) > 1:
                self._add(
                    AnomalyKind.INCONSISTENT_OFFSETS,
                    partition,
                    f"offset {offset} holds {_list(values)}",
                    [operations[0] for operations in values.values()],
                )
        for value, offsets in offsets_of_value.items():
            if len(offsets) > 1:
                self._add(
                    AnomalyKind.DUPLICATE,
                    partition,
                    f"{value!r} is at offsets {_list(offsets)}",
                    [operations[0] for operations in offsets.values()],
                )

    def _check_reads(self, partition: str) -> None:
        senders = self.senders[partition]
        for value, read in self.readers[partition].items():
            sent = senders.get(value)
            if not sent:
                self._add(
                    AnomalyKind.UNWRITTEN_READ, partition, f"{value!r} was read and never sent", [read[0].operation]
                )
            elif all(operation.status == FAIL for operation, _ in sent):
                # A transaction that reads its own values is a precommitted read instead.
                senders_of_value = [occurrence.operation for occurrence in sent]
                others = [occurrence for occurrence in read if occurrence.operation not in senders_of_value]
                if others:
                    self._add(
                        AnomalyKind.ABORTED_READ,
                        partition,
                        f"{value!r} was read and its transaction aborted",
                        [sent[0].operation, others[0].operation],
                    )

    def _check_lost_writes(self, partition: str, everything_read: bool) -> list[Any]:
        readers = self.readers[partition]
        read_offsets = [offset for read in readers.values() for _, offset in read if offset is not None]
        furthest = max(read_offsets, default=-1)
        unread = []
        for value, sent in self.senders[partition].items():
            if readers.get(value):
                continue
            for operation, offset in sent:
                if id(operation) not in self.committed:
                    continue
                if everything_read or (offset is not None and offset < furthest):
                    where = "" if offset is None else f" at offset {offset}"
                    beyond = [reader for read in readers.values() for reader, position in read if position == furthest]
                    self._add(
                        AnomalyKind.LOST_WRITE,
                        partition,
                        f"{value!r}{where} was committed and never read, although offset {furthest} was",
                        [operation, *beyond[:1]],
                    )
                else:
                    unread.append(value)
        return unread

    def _check_precommitted_reads(self) -> None:
        for operation in self.operations:
            sent = {(send.partition, send.value) for send in operation.sends()}
            for step in operation.steps:
                if sent and isinstance(step, Poll):
                    for partition, records in step.records.items():
                        own = [value for _, value in records if (partition, value) in sent]
                        if own:
                            self._add(
                                AnomalyKind.PRECOMMITTED_READ,
                                partition,
                                f"a transaction read {_list(own)}, which it sent itself",
                                [operation],
                            )

    def _check_polls(self) -> None:
        last: dict[tuple[str, str], tuple[Operation, int]] = {}
        for operation in self.operations:
            for step in operation.steps:
                if isinstance(step, Assign):
                    for partition in step.partitions:
                        last.pop((operation.process, partition), None)
                elif isinstance(step, Poll):
                    for partition, records in step.records.items():
                        for offset, _ in records:
                            before = last.get((operation.process, partition))
                            if before is not None:
                                self._check_consecutive_polls(partition, before, operation, offset)
                            last[operation.process, partition] = (operation, offset)

    def _check_consecutive_polls(
        self, partition: str, before: tuple[Operation, int], operation: Operation, offset: int
    ) -> None:
        earlier, last_offset = before
        internal = earlier is operation
        if offset <= last_offset:
            self._add(
                AnomalyKind.INTERNAL_NONMONOTONIC_POLL if internal else AnomalyKind.NONMONOTONIC_POLL,
                partition,
                f"{operation.process} read offset {offset} after {last_offset}",
                [earlier, operation],
            )
            return
        position = self.position[partition]
        skipped = self.order[partition][position[last_offset] + 1 : position[offset]]
        if skipped:
            values = [value for skipped_offset in skipped for value in self.offsets[partition][skipped_offset]]
            witnesses = [next(iter(self.offsets[partition][skipped[0]].values()))[0]]
            self._add(
                AnomalyKind.INTERNAL_POLL_SKIP if internal else AnomalyKind.POLL_SKIP,
                partition,
                f"{operation.process} read offset {offset} after {last_offset} and not {_list(values)} at "
                f"{_list(skipped)}",
                [earlier, operation, *witnesses],
            )

    def _check_sends(self) -> None:
        last: dict[tuple[str, str], tuple[Operation, int]] = {}
        for operation in self.operations:
            if id(operation) not in self.committed:
                continue
            for send in operation.sends():
                if send.offset is None:
                    continue
                before = last.get((operation.process, send.partition))
                if before is not None and send.offset <= before[1]:
                    internal = before[0] is operation
                    self._add(
                        AnomalyKind.INTERNAL_NONMONOTONIC_SEND if internal else AnomalyKind.NONMONOTONIC_SEND,
                        send.partition,
                        f"{operation.process} sent {send.value!r} to offset {send.offset} after offset {before[1]}",
                        [before[0], operation],
                    )
                last[operation.process, send.partition] = (operation, send.offset)


def _list(values: Iterable[Any]) -> str:
    shown = [repr(value) for value in values]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _to_json(operation: Operation) -> dict[str, Any]:
    fields: dict[str, Any] = {"process": operation.process}
    for name in ("start", "end"):
        if getattr(operation, name) is not None:
            fields[name] = getattr(operation, name)
    if len(operation.steps) == 1 and isinstance(operation.steps[0], Assign):
        return {**fields, "assign": list(operation.steps[0].partitions)}
    steps: list[dict[str, Any]] = []
    for step in operation.steps:
        if isinstance(step, Send):
            steps.append({"send": step.partition, "value": step.value})
            if step.offset is not None:
                steps[-1]["offset"] = step.offset
        elif isinstance(step, Poll):
            records = {key: [list(pair) for pair in pairs] for key, pairs in step.records.items()}
            steps.append({"poll": records})
        else:
            steps.append({"assign": list(step.partitions)})
    return {**fields, "status": operation.status, "steps": steps}


def _from_json(fields: dict[str, Any], index: int) -> Operation:
    if "assign" in fields:
        steps: list[Step] = [_step(fields)]
        status = OK
    else:
        steps = [_step(step) for step in fields["steps"]]
        status = fields["status"]
    if status not in (OK, FAIL, INFO):
        raise ValueError(f"status {status!r}")
    return Operation(
        str(fields["process"]), status, steps, fields.get("index", index), fields.get("start"), fields.get("end")
    )


def _step(fields: dict[str, Any]) -> Step:
    if "send" in fields:
        return Send(str(fields["send"]), fields["value"], fields.get("offset"))
    if "poll" in fields:
        return Poll(
            {
                str(partition): [(int(offset), value) for offset, value in records]
                for partition, records in fields["poll"].items()
            }
        )
    return Assign(tuple(str(partition) for partition in fields["assign"]))
