"""Transactions of one producer id, as the coordinator records them and as requests show them.

`CoordinatorView` follows the states of the transaction coordinator, `RequestView` what clients requested and which
errors they got; `txn_timeout` decides what is wrong.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.report.model import Step, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.analysis.engine import Row

BEFORE: Final = 60
"""How many events before the end of a transaction are kept as evidence."""
LATE_STEPS: Final = 10
MOST_ABORTED: Final = 100
"""How many aborted transactions of a producer id are kept to see whether its client comes back late."""
SLOW_MS: Final = 10_000
"""Markers that take longer than this to be written are reported."""
WIRE: Final = "tap"
OVER: Final = frozenset({"CompleteCommit", "CompleteAbort", "Empty", "Dead"})
ACTIVE: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
FENCING: Final = frozenset(
    {
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
        "UNKNOWN_PRODUCER_ID",
        "InvalidPidMappingException",
        "InvalidProducerEpochException",
        "InvalidTxnStateException",
        "ProducerFencedException",
        "TransactionAbortableException",
        "UnknownProducerIdException",
    }
)
"""Errors that end a producer's transaction: it timed out, or another instance took over its transactional id."""
_DATA_REQUESTS: Final = frozenset({"Produce", "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn"})


@dataclass(slots=True)
class Transaction:
    """One transaction from its first state or request to its last."""

    transactional_id: str | None
    producer_id: int
    producer_epoch: int | None
    start_ms: int
    timeout_ms: int | None = None
    state: str = "Ongoing"
    partitions: list[str] = field(default_factory=list)
    prepared_ms: int | None = None
    prepared_as: str | None = None
    ended_ms: int | None = None
    end_requested_ms: int | None = None
    end_requested: str | None = None
    end_error: str | None = None
    timed_out_ms: int | None = None
    fenced_by: str | None = None
    fenced_ms: int | None = None
    last_request: str | None = None
    last_request_ms: int | None = None
    last_client: str | None = None
    last_error: str | None = None
    late_request: str | None = None
    late_request_ms: int | None = None
    late_error: str | None = None
    marked: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def add_partitions(self, event: Event) -> None:
        """Add the partitions that an event names."""
        names = list(event.partitions or [])
        if event.topic is not None and event.partition is not None:
            names.append(partition_name(event.topic, event.partition))
        self.partitions += [name for name in dict.fromkeys(names) if name not in self.partitions]

    def note_request(self, event: Event, now: int) -> None:
        """Record a request of the transaction's own client."""
        self.last_request, self.last_request_ms = event.api or event.event, now
        self.last_client = event.client or self.last_client
        if event.event == "txn.end" and self.end_requested_ms is None:
            self.end_requested_ms, self.end_requested = now, event.state


@dataclass(slots=True)
class _Aborted:
    """A transaction that was aborted although its client had not requested its end, and what came from it later."""

    transaction: Transaction
    steps: list[Step]

    def note_late(self, event: Event, now: int) -> None:
        """Record a request of the old epoch, or its error, after the abort."""
        transaction = self.transaction
        if event.event == "response":
            if event.error is None or event.api == "InitProducerId":
                return
            transaction.late_error = event.error
        elif event.event in ("txn.end", "txn.add", "request"):
            if transaction.late_request is None or event.event == "txn.end":
                transaction.late_request, transaction.late_request_ms = event.api or event.event, now
                transaction.last_client = event.client or transaction.last_client
        else:
            return
        if len(self.steps) < BEFORE + LATE_STEPS:
            self.steps.append(step(event))


class CoordinatorView:
    """Follow the transaction states that the coordinator wrote, with the requests and markers around them."""

    def __init__(self) -> None:
        self.states_seen = False
        self._current: Transaction | None = None
        self._aborted: list[_Aborted] = []
        self._open_in: dict[str, Row] = {}
        self._recent: deque[Event] = deque(maxlen=BEFORE)
        self._client: str | None = None

    def see(self, event: Event, now: int) -> Iterator[Row]:
        """Take the next event; yield a row for each transaction that ended and may be at fault."""
        self._recent.append(event)
        if event.event == "txn.open":
            self._open_in[partition_name(event.topic or "?", event.partition or 0)] = {
                "offset": event.offset,
                "since_ms": now,
                "epoch": event.producer_epoch,
                "first": event.text is None or event.text.startswith("holds"),
            }
            return
        if event.event == "txn.state" and event.side != CLIENT:
            yield from self._state(event, now)
            return
        if event.client and event.event != "response":
            self._client = event.client
        for aborted in self._aborted:
            if event.producer_epoch is not None and event.producer_epoch == aborted.transaction.producer_epoch:
                aborted.note_late(event, now)
        if self._current is not None:
            _happened(self._current, event, now)
        if event.event == "txn.marker" and event.error is None and event.topic is not None:
            self._open_in.pop(partition_name(event.topic, event.partition or 0), None)

    def _state(self, event: Event, now: int) -> Iterator[Row]:
        self.states_seen = True
        if self._current is None and event.state in ACTIVE:
            self._current = Transaction(
                event.transactional_id, event.producer_id or 0, event.producer_epoch, _start_ms(event)
            )
            self._current.last_client = self._client
        current = self._current
        if current is None:
            return
        _change_state(current, event, now)
        if event.state in OVER:
            self._current = None
            if current.prepared_as == "PrepareAbort" and current.end_requested_ms is None:
                self._aborted.append(_Aborted(current, self._steps(current)))
                if len(self._aborted) > MOST_ABORTED:
                    oldest = self._aborted.pop(0)
                    yield from _ended_row(oldest.transaction, oldest.steps)
            else:
                yield from _ended_row(current, self._steps(current))

    def _steps(self, transaction: Transaction) -> list[Step]:
        return [step(event) for event in self._recent if (event.time_ms or 0) >= transaction.start_ms]

    def finish(self) -> Iterator[Row]:
        """Yield what is known at the end of the input, open and hanging transactions included."""
        for aborted in self._aborted:
            yield from _ended_row(aborted.transaction, aborted.steps)
        if self._current is not None:
            yield _row(self._current, self._steps(self._current), over=False, open_in=self._open_in)
        elif self._open_in:
            ids = (event.transactional_id for event in self._recent if event.transactional_id)
            yield {
                "kind": "hanging",
                "producer_id": self._recent[-1].producer_id,
                "transactional_id": next(ids, None),
                "open_in": self._open_in,
                "states_seen": self.states_seen,
                "steps": [asdict(step(event)) for event in self._recent],
            }


def _start_ms(event: Event) -> int:
    """Return when a transaction began: a record of `__transaction_state` holds it, else it is the event's time."""
    text = event.text or ""
    if text.startswith("began at ") and text[9:].isdigit():
        return int(text[9:])
    return event.time_ms or 0


def _change_state(transaction: Transaction, event: Event, now: int) -> None:
    state = event.state or ""
    transaction.state = state
    if event.duration_ms is not None:
        transaction.timeout_ms = event.duration_ms
    transaction.add_partitions(event)
    if state == "PrepareEpochFence" and transaction.fenced_ms is None:
        transaction.fenced_ms = now
    if state in ("PrepareCommit", "PrepareAbort"):
        transaction.prepared_ms, transaction.prepared_as = now, state
    elif state in OVER:
        transaction.ended_ms = now


def _happened(transaction: Transaction, event: Event, now: int) -> None:
    name = event.event
    if name == "txn.timeout":
        transaction.timed_out_ms = now
    elif name == "txn.marker" and event.topic is not None:
        partition = partition_name(event.topic, event.partition or 0)
        if event.error:
            transaction.refused[partition] = event.error
        else:
            transaction.marked[partition] = now
            transaction.refused.pop(partition, None)
    elif name == "response":
        if event.error and event.api != "InitProducerId":
            transaction.last_error = event.error
    elif name == "txn.init":
        if event.api == "InitProducerId" or event.side == CLIENT:
            transaction.fenced_by = event.client or event.host
            transaction.fenced_ms = now
    else:
        transaction.note_request(event, now)


def _ended_row(transaction: Transaction, steps: list[Step]) -> Iterator[Row]:
    """Yield a transaction that ended late, slowly or by fencing; those that ended well and in time are left out."""
    lasted = (transaction.ended_ms or 0) - transaction.start_ms
    late = transaction.timeout_ms is not None and lasted >= transaction.timeout_ms
    aborted = transaction.prepared_as == "PrepareAbort" and transaction.end_requested_ms is None
    by_time = transaction.timed_out_ms is not None or (aborted and late)
    slow = transaction.prepared_ms is not None and (transaction.ended_ms or 0) - transaction.prepared_ms > SLOW_MS
    fenced = aborted and transaction.fenced_ms is not None and transaction.late_request is not None
    if not slow and (transaction.prepared_as == "PrepareCommit" or not (by_time or fenced)):
        return
    yield _row(transaction, steps, over=True, by_time=by_time, slow=slow, fenced=fenced)


def _row(
    transaction: Transaction,
    steps: list[Step],
    *,
    over: bool,
    by_time: bool = False,
    slow: bool = False,
    fenced: bool = False,
    open_in: dict[str, Row] | None = None,
) -> Row:
    return {
        "kind": "transaction",
        "over": over,
        "by_time": by_time,
        "slow": slow,
        "fenced": fenced,
        "open_in": open_in or {},
        **asdict(transaction),
        "steps": [asdict(line) for line in steps],
    }


class RequestView:
    """Follow the transactions of one producer id by requests alone: in captures and in clients' logs.

    A transaction begins with its first request and ends with the response to EndTxn. Instances of a producer differ
    in their epoch.
    """

    def __init__(self) -> None:
        self._open: dict[int, Transaction] = {}
        self._refused: list[Transaction] = []
        self._timeout_ms: int | None = None
        self._steps: deque[Event] = deque(maxlen=BEFORE)

    def see(self, event: Event, now: int) -> None:
        """Take the next event of a capture or a client's log; others are ignored."""
        if event.side != CLIENT and event.format != WIRE:
            return
        self._steps.append(event)
        epoch = -1 if event.producer_epoch is None else event.producer_epoch
        response = event.event == "response"
        if event.event == "txn.init" or (response and event.api == "InitProducerId"):
            self._initialized(event, epoch, now)
        elif response:
            self._answered(event, epoch)
        elif event.event == "txn.end":
            self._transaction(event, epoch, now).note_request(event, now)
        elif event.event in ("txn.begin", "txn.add") or (
            event.transactional_id is not None and (event.event == "produce" or event.api in _DATA_REQUESTS)
        ):
            transaction = self._transaction(event, epoch, now)
            transaction.add_partitions(event)
            transaction.note_request(event, now)

    def _transaction(self, event: Event, epoch: int, now: int) -> Transaction:
        if epoch not in self._open:
            made = Transaction(event.transactional_id, event.producer_id or 0, event.producer_epoch, now)
            made.timeout_ms = self._timeout_ms
            self._open[epoch] = made
        return self._open[epoch]

    def _initialized(self, event: Event, epoch: int, now: int) -> None:
        """Take an InitProducerId response: it fences the instances with an older epoch."""
        if event.duration_ms is not None:
            self._timeout_ms = event.duration_ms
        if event.producer_epoch is None or event.error is not None:
            return
        for older, transaction in list(self._open.items()):
            if older < epoch and transaction.end_requested_ms is not None and transaction.last_client == event.client:
                del self._open[older]  # the response to EndTxn bumped the epoch (KIP-890)
            elif older < epoch and transaction.fenced_ms is None:
                transaction.fenced_by, transaction.fenced_ms = event.client or event.host, now

    def _answered(self, event: Event, epoch: int) -> None:
        transaction = self._open.get(epoch)
        if transaction is None:
            return
        if event.error is None:
            if event.api == "EndTxn":
                del self._open[epoch]
        elif event.api == "EndTxn" or event.error in FENCING:
            transaction.end_error = event.error
            self._refused.append(self._open.pop(epoch))
        else:
            transaction.last_error = event.error

    def finish(self) -> Iterator[Row]:
        """Yield the transactions whose end was refused, and those that are open at the end of the input."""
        for transaction in [*self._refused, *self._open.values()]:
            steps = [step(event) for event in self._steps if (event.time_ms or 0) >= transaction.start_ms]
            yield {**_row(transaction, steps, over=transaction.end_error is not None), "kind": "requests"}
