"""Finds transactions that timed out or hang: what each waited for, what it held back, and the probable cause.

The coordinator's states tell the story; requests, markers and the partitions' own logs tell why, as far as they are in
the input. Without them it says less, not something else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import SHARED, Analysis, Overview, Row
from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.report.model import Finding, Report, Span, Step, Table, clock, length, step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STATE_TOPIC: Final = "__transaction_state"
WANTS: Final = frozenset(
    {
        "txn.init",
        "txn.begin",
        "txn.add",
        "txn.state",
        "txn.end",
        "txn.marker",
        "txn.timeout",
        "txn.open",
        "txn.fenced",
        "coordinator",
        "request",
        "response",
        "produce",
    }
)
BEFORE: Final = 60
GRACE_MS: Final = 15_000
"""A coordinator looks for transactions that have timed out every 10 s: what is late by less is not late."""
SLOW_MS: Final = 10_000
"""Markers that take longer than this to be written are worth a word."""


@dataclass(slots=True)
class _Open:
    """One transaction from its first state to its last."""

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
    asked_ms: int | None = None
    asked_for: str | None = None
    timed_out_ms: int | None = None
    fenced_by: str | None = None
    fenced_ms: int | None = None
    last_request: str | None = None
    last_request_ms: int | None = None
    last_client: str | None = None
    last_error: str | None = None
    marked: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def rule(key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Walk through the events of one producer id, or of the coordinators."""
    if key == SHARED:
        for event in events:
            if event.topic == STATE_TOPIC:
                yield {
                    "kind": "coordinator",
                    "time_ms": event.time_ms or 0,
                    "what": f"{event.host} {event.state} {event.topic}-{event.partition}",
                }
        return
    current: _Open | None = None
    told = False
    held: dict[str, Row] = {}
    recent: deque[Event] = deque(maxlen=BEFORE)
    client: str | None = None
    for event in events:
        recent.append(event)
        now = event.time_ms or 0
        if event.event == "txn.open":
            held[partition_name(event.topic or "?", event.partition or 0)] = {
                "offset": event.offset,
                "since_ms": now,
                "epoch": event.producer_epoch,
                "first": event.text is None or event.text.startswith("holds"),
            }
            continue
        if event.event == "txn.state" and event.side != CLIENT:
            told = True
            if current is None and event.state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"):
                current = _Open(event.transactional_id, event.producer_id or 0, event.producer_epoch, _began(event))
                current.last_client = client
            if current is not None:
                _move(current, event, now)
                if event.state in ("CompleteCommit", "CompleteAbort", "Empty", "Dead"):
                    yield from _row(current, recent, over=True)
                    current = None
            continue
        if event.client and event.event != "response":
            client = event.client
        if current is not None:
            _happened(current, event, now)
        if event.event == "txn.marker" and event.error is None and event.topic is not None:
            held.pop(partition_name(event.topic, event.partition or 0), None)
    if current is not None:
        yield from _row(current, recent, over=False, held=held)
    elif held:
        last = recent[-1]
        yield {
            "kind": "hanging",
            "producer_id": last.producer_id,
            "transactional_id": next((each.transactional_id for each in recent if each.transactional_id), None),
            "held": held,
            "told": told,
            "steps": [asdict(step(each)) for each in recent],
        }


def _began(event: Event) -> int:
    """When a transaction began: a record says so itself, else it is now."""
    text = event.text or ""
    if text.startswith("began at ") and text[9:].isdigit():
        return int(text[9:])
    return event.time_ms or 0


def _move(current: _Open, event: Event, now: int) -> None:
    state = event.state or ""
    current.state = state
    if event.duration_ms is not None:
        current.timeout_ms = event.duration_ms
    for name in event.partitions or []:
        if name not in current.partitions:
            current.partitions.append(name)
    if state == "PrepareEpochFence" and current.fenced_ms is None:
        current.fenced_ms = now
    if state in ("PrepareCommit", "PrepareAbort"):
        current.prepared_ms, current.prepared_as = now, state
    elif state in ("CompleteCommit", "CompleteAbort", "Empty", "Dead"):
        current.ended_ms = now


def _happened(current: _Open, event: Event, now: int) -> None:
    name = event.event
    if name == "txn.timeout":
        current.timed_out_ms = now
    elif name == "txn.marker" and event.topic is not None:
        partition = partition_name(event.topic, event.partition or 0)
        if event.error:
            current.refused[partition] = event.error
        else:
            current.marked[partition] = now
            current.refused.pop(partition, None)
    elif name == "response":
        if event.error and event.api != "InitProducerId":
            current.last_error = event.error
    elif name == "txn.init":
        if event.api == "InitProducerId" or event.side == CLIENT:
            current.fenced_by = event.client or event.host
            current.fenced_ms = now
    else:
        current.last_request, current.last_request_ms = event.api or name, now
        current.last_client = event.client or current.last_client
        if name == "txn.end" and current.asked_ms is None:
            current.asked_ms, current.asked_for = now, event.state


def _row(current: _Open, recent: deque[Event], *, over: bool, held: dict[str, Row] | None = None) -> Iterator[Row]:
    """What conclude has to know: transactions that ended well and fast are left out here."""
    lasted = (current.ended_ms or 0) - current.start_ms
    late = current.timeout_ms is not None and lasted >= current.timeout_ms
    by_time = current.prepared_as == "PrepareAbort" and current.asked_ms is None and late
    slow = current.prepared_ms is not None and (current.ended_ms or 0) - current.prepared_ms > SLOW_MS
    if over and current.timed_out_ms is None and not by_time and not slow:
        return
    if over and current.prepared_as == "PrepareCommit" and not slow:
        return  # it was committed in time, whatever a clock said on the way
    yield {
        "kind": "transaction",
        "over": over,
        "by_time": by_time or current.timed_out_ms is not None,
        "slow": slow,
        "held": held or {},
        **asdict(current),
        "steps": [asdict(step(each)) for each in recent if (each.time_ms or 0) >= current.start_ms],
    }


# What it means


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """The findings, in the order in which the transactions began, and what was open when the logs end."""
    now = int(options.get("now_ms") or overview.last_ms or 0)
    grace = int(options.get("grace_ms", GRACE_MS))
    moves = sorted((row["time_ms"], row["what"]) for row in rows if row["kind"] == "coordinator")
    findings: list[Finding] = []
    still_open: list[list[Any]] = []
    for row in sorted(
        (row for row in rows if row["kind"] == "transaction"), key=lambda row: (row["start_ms"], row["producer_id"])
    ):
        verdict = _verdict(row, now, grace)
        if verdict is None:
            still_open.append(
                [row["transactional_id"], f"{row['producer_id']}/{row['producer_epoch']}", row["state"],
                 clock(row["start_ms"]), length(now - row["start_ms"]), " ".join(row["partitions"])]
            )  # fmt: skip
        else:
            findings.append(_finding(row, verdict, now, moves))
    for row in sorted((row for row in rows if row["kind"] == "hanging"), key=lambda row: row["producer_id"] or 0):
        finding = _hanging(row, now, grace)
        if finding is not None:
            findings.append(finding)
    count = len(findings)
    if count:
        said = f"{count} transaction{'s' if count > 1 else ''} timed out or hung: {findings[0].title}"
    else:
        said = "no transaction timed out or hung"
        if still_open:
            said += f"; {len(still_open)} {'was' if len(still_open) == 1 else 'were'} open when the logs end"
    report = Report("txn-timeout", said, bool(findings), findings)
    if still_open:
        columns = ["transactional id", "producer", "state", "began", "open for", "partitions"]
        report.tables.append(Table("Open when the logs end", columns, still_open))
    if findings and not moves:
        report.notes.append("no coordinator is seen to move in these inputs: that cause could not be checked further")
    return report


def _verdict(row: Row, now: int, grace: int) -> str | None:
    """In a word what became of it; None if it is only open, or was in time."""
    if row["over"]:
        return "timed out" if row["by_time"] else "slow"
    if row["prepared_ms"] is not None:
        return "hangs" if now - row["prepared_ms"] > grace else None
    timeout = row["timeout_ms"]
    if timeout is not None and now - row["start_ms"] > timeout + grace:
        return "hangs"
    return None


def _missing(row: Row) -> list[str]:
    return [name for name in row["partitions"] if name not in row["marked"]]


def _finding(row: Row, verdict: str, now: int, moves: list[tuple[int, str]]) -> Finding:
    end = row["ended_ms"] if row["over"] else now
    name = row["transactional_id"] or f"producer {row['producer_id']}"
    culprit, cause = _cause(row, verdict, moves, end)
    waiting = _waiting(row, verdict)
    title = {
        "timed out": f"{name} timed out after {length((row['prepared_ms'] or end) - row['start_ms'])}",
        "slow": f"{name} took {length(end - (row['prepared_ms'] or end))} to write its markers",
        "hangs": f"{name} hangs in {row['state']} for {length(end - (row['prepared_ms'] or row['start_ms']))}",
    }[verdict]
    last = "none in the input"
    if row["last_request"]:
        last = f"{row['last_request']} at {clock(row['last_request_ms'])}"
    held_until = max([*row["marked"].values(), row["start_ms"]]) if row["over"] and row["marked"] else end
    blocked = length(held_until - row["start_ms"])
    first_held = [name for name, each in row["held"].items() if each["first"]]
    facts: dict[str, Any] = {
        "transactional id": row["transactional_id"],
        "producer id": row["producer_id"],
        "producer epoch": row["producer_epoch"],
        "partitions": row["partitions"],
        "state": row["state"],
        "waited for": waiting,
        "last request": last,
        "client": row["last_client"],
        "timeout": length(row["timeout_ms"]) if row["timeout_ms"] is not None else None,
        "LSO held back": f"{blocked} in {' '.join(first_held or row['partitions']) or 'no partition that is known'}",
        "culprit": culprit,
    }
    if verdict == "hangs" and row["prepared_ms"] is not None:
        facts["markers missing in"] = _missing(row)
    finding = Finding(title, facts, cause, [Step(**each) for each in row["steps"]])
    finding.spans = [Span(name, "Ongoing", row["start_ms"], row["prepared_ms"] or end, "waits")]
    if row["prepared_ms"] is not None:
        finding.spans.append(Span(name, row["prepared_as"], row["prepared_ms"], end, "fault"))
    finding.spans += [
        Span(partition, "LSO held back", row["start_ms"], row["marked"].get(partition, end), "fault")
        for partition in row["partitions"][:12]
    ]
    return finding


def _waiting(row: Row, verdict: str) -> str:
    if verdict in ("hangs", "slow") and row["prepared_ms"] is not None:
        missing = _missing(row)
        return f"markers in {' '.join(missing)}" if missing else "its completion by the coordinator"
    if row["asked_ms"] is not None:
        return f"the coordinator to {row['asked_for']} it, which the client asked for at {clock(row['asked_ms'])}"
    return "the client to end it" if verdict == "timed out" else "the coordinator to end it"


def _cause(row: Row, verdict: str, moves: list[tuple[int, str]], end: int) -> tuple[str, str]:
    """Who is to blame, and why that is probable."""
    begin = row["prepared_ms"] if verdict != "timed out" and row["prepared_ms"] is not None else row["start_ms"]
    moved = [what for time_ms, what in moves if begin <= time_ms <= end]
    if verdict in ("hangs", "slow") and row["prepared_ms"] is not None:
        missing = _missing(row)
        refused = [f"{name} ({why})" for name, why in row["refused"].items()]
        if refused:
            return "the partitions' leaders", f"markers were refused: {', '.join(refused)}"
        if moved:
            return "the coordinator", f"the coordinator moved while markers were to be written: {'; '.join(moved[:3])}"
        if missing and verdict == "hangs":
            return "the coordinator", f"markers are missing in {' '.join(missing)}: the coordinator never wrote them"
        return "the coordinator", "all markers are there, and the coordinator did not complete it in time"
    if verdict == "hangs":
        if row["asked_ms"] is not None:
            return "the coordinator", f"the coordinator stalled: {row['asked_for']} was asked for and nothing followed"
        if moved:
            return "the coordinator", f"the coordinator moved and did not go on with it: {'; '.join(moved[:3])}"
        return "the coordinator", "the coordinator stalled: the timeout passed and it did not abort the transaction"
    if row["fenced_by"] and row["fenced_ms"] is not None:
        return row["fenced_by"], f"fenced by {row['fenced_by']}, which took over the transactional id"
    if row["asked_ms"] is not None:
        if moved:
            return (
                "the coordinator",
                f"the client asked for its end while the coordinator moved: {'; '.join(moved[:3])}",
            )
        return "the coordinator", "the coordinator stalled: the client asked for its end before the timeout"
    who = row["last_client"] or f"the client of {row['transactional_id'] or row['producer_id']}"
    if row["last_request_ms"] is None:
        return who, "the client stopped: no request of it is in the input after the transaction began"
    silent = (row["timed_out_ms"] or row["prepared_ms"] or end) - row["last_request_ms"]
    error = f" (its last error was {row['last_error']})" if row["last_error"] else ""
    if row["timeout_ms"] is not None and silent < row["timeout_ms"] / 4:
        return who, f"the work took longer than the timeout: the client was busy {length(silent)} before it{error}"
    return who, f"the client stopped: nothing came from it in the last {length(silent)}{error}"


def _hanging(row: Row, now: int, grace: int) -> Finding | None:
    """A transaction that is open in partitions and not to the coordinator."""
    oldest = min(each["since_ms"] for each in row["held"].values())
    if not row["told"] and now - oldest <= max(grace, 60_000):
        return None
    name = row["transactional_id"] or f"producer {row['producer_id']}"
    places = ", ".join(f"{place} offset {each['offset']}" for place, each in row["held"].items())
    facts = {
        "transactional id": row["transactional_id"],
        "producer id": row["producer_id"],
        "producer epoch": next(iter(row["held"].values()))["epoch"],
        "partitions": list(row["held"]),
        "state": "complete or unknown to the coordinator",
        "waited for": "markers that nobody will write",
        "LSO held back": f"at {places} for {length(now - oldest)}",
        "culprit": "the coordinator" if row["told"] else "unknown",
        "markers missing in": list(row["held"]),
    }
    cause = (
        "markers are missing: the coordinator holds the transaction for finished, the partitions hold it for open"
        if row["told"]
        else "the partitions hold it for open, and no record of the coordinator about it is in the input"
    )
    finding = Finding(f"{name} hangs in {' '.join(row['held'])}", facts, cause, [Step(**each) for each in row["steps"]])
    finding.spans = [
        Span(place, "LSO held back", each["since_ms"], now, "fault") for place, each in row["held"].items()
    ]
    return finding


def _key(event: Event, options: Row) -> str | None:
    if event.event == "coordinator":
        return SHARED
    if event.producer_id is None or event.producer_id < 0:
        return None
    wanted = options.get("transactional_id")
    if wanted is not None and event.transactional_id not in (None, wanted):
        return None
    return str(event.producer_id)


ANALYSIS: Final = Analysis("txn-timeout", WANTS, _key, rule, conclude)
