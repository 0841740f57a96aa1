"""Find transactions that timed out, hang or were fenced: what they waited for, what they held back, and why.

The coordinator's states decide where they are in the input. A capture or a client's log has only requests and errors:
it shows less, and the report names what would show the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import SHARED, Analysis, Overview, Row
from ottla.analysis.report.model import Finding, Report, Span, Step, Table, clock, length, several
from ottla.analysis.rules.transaction_views import CoordinatorView, RequestView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ottla.analysis.event import Event

LOG: Final = "kafka-log"
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
GRACE_MS: Final = 15_000
"""A coordinator looks for transactions that timed out every 10 s: a shorter delay is not late."""
COORDINATOR: Final = "the coordinator"


def rule(key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Follow the transactions of one producer id, or the moves of coordinators."""
    if key == SHARED:
        for event in events:
            if event.topic == STATE_TOPIC:
                yield {
                    "kind": "coordinator",
                    "time_ms": event.time_ms or 0,
                    "what": f"{event.host} {event.state} {event.topic}-{event.partition}",
                }
        return
    coordinator, requests = CoordinatorView(), RequestView()
    for event in events:
        now = event.time_ms or 0
        requests.see(event, now)
        yield from coordinator.see(event, now)
    yield from coordinator.finish()
    if not coordinator.states_seen:
        yield from requests.finish()


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the faults in the order in which the transactions began, and what was open when the logs end."""
    now = int(options.get("now_ms") or overview.last_ms or 0)
    grace = int(options.get("grace_ms", GRACE_MS))
    moves = sorted((row["time_ms"], row["what"]) for row in rows if row["kind"] == "coordinator")
    findings: list[Finding] = []
    still_open: list[list[Any]] = []
    transactions = [row for row in rows if row["kind"] in ("transaction", "requests")]
    for row in sorted(transactions, key=lambda row: (row["start_ms"], row["producer_id"])):
        verdict = _verdict(row, now, grace)
        if verdict is not None:
            findings.append(_finding(row, verdict, now, moves))
        elif row["fenced_ms"] is None or row["kind"] == "transaction":
            still_open.append(
                [row["transactional_id"], f"{row['producer_id']}/{row['producer_epoch']}", row["state"],
                 clock(row["start_ms"]), length(now - row["start_ms"]), " ".join(row["partitions"])]
            )  # fmt: skip
    for row in sorted((row for row in rows if row["kind"] == "hanging"), key=lambda row: row["producer_id"] or 0):
        finding = _hanging(row, now, grace)
        if finding is not None:
            findings.append(finding)
    # A log directory holds no request, so that it cannot show a producer that was fenced.
    faults = "timed out or hung" if overview.kinds == {LOG} else "timed out, hung or was fenced"
    if findings:
        if len(findings) > 1:
            faults = faults.replace("was", "were")
        verdict = f"{several(len(findings), 'transaction')} {faults}: {findings[0].title}"
    else:
        verdict = f"no transaction {faults}"
        if still_open:
            verdict += f"; {len(still_open)} {'was' if len(still_open) == 1 else 'were'} open when the logs end"
    report = Report("txn-timeout", verdict, bool(findings), findings)
    if still_open:
        columns = ["transactional id", "producer", "state", "began", "open for", "partitions"]
        report.tables.append(Table("Open when the logs end", columns, still_open))
    if any(finding.facts.get("culprit") == COORDINATOR for finding in findings) and not moves:
        report.notes.append("the input shows no coordinator that moved, so that cause could not be checked")
    return report


def _verdict(row: Row, now: int, grace: int) -> str | None:
    """Return what went wrong in a word; None if the transaction is only open, or ended in time."""
    timeout = row["timeout_ms"]
    if row["kind"] == "requests":
        if row["end_error"] is not None:
            if row["fenced_ms"] is not None:
                return "fenced"
            requested = row["end_requested_ms"] or row["last_request_ms"]
            return "timed out" if timeout is not None and requested - row["start_ms"] >= timeout else "refused"
        silent_too_long = timeout is not None and now - row["start_ms"] > timeout + grace
        return "timed out" if silent_too_long and row["fenced_ms"] is None else None
    if row["over"]:
        return "timed out" if row["by_time"] else "fenced" if row["fenced"] else "slow"
    if row["prepared_ms"] is not None:
        return "hangs" if now - row["prepared_ms"] > grace else None
    if timeout is not None and now - row["start_ms"] > timeout + grace:
        return "hangs"
    return None


def _missing_markers(row: Row) -> list[str]:
    return [name for name in row["partitions"] if name not in row["marked"]]


def _finding(row: Row, verdict: str, now: int, moves: list[tuple[int, str]]) -> Finding:
    end = row["ended_ms"] if row["ended_ms"] is not None else row["end_requested_ms"] or now
    if not row["over"]:
        end = now
    name = row["transactional_id"] or f"producer {row['producer_id']}"
    culprit, cause = _cause(row, verdict, moves, end)
    ran_out_ms = row["prepared_ms"] or row["timed_out_ms"]
    ran_for = ran_out_ms - row["start_ms"] if ran_out_ms is not None else row["timeout_ms"] or end - row["start_ms"]
    title = {
        "timed out": f"{name} timed out after {length(ran_for)}",
        "fenced": f"{name} was fenced by {row['fenced_by'] or 'another instance'}",
        "refused": f"{name} was refused with {row['end_error']} after {length(end - row['start_ms'])}",
        "slow": f"{name} took {length(end - (row['prepared_ms'] or end))} to write its markers",
        "hangs": f"{name} hangs in {row['state']} for {length(end - (row['prepared_ms'] or row['start_ms']))}",
    }[verdict]
    last = "none in the input"
    if row["late_request"] or row["last_request"]:
        request, request_ms = row["last_request"], row["last_request_ms"]
        if row["late_request"]:
            request, request_ms = row["late_request"], row["late_request_ms"]
        last = f"{request} at {clock(request_ms)}"
    held_until = max([*row["marked"].values(), row["start_ms"]]) if row["over"] and row["marked"] else end
    blocked = length(held_until - row["start_ms"])
    first_held = [partition for partition, held in row["open_in"].items() if held["first"]]
    facts: dict[str, Any] = {
        "transactional id": row["transactional_id"],
        "producer id": row["producer_id"],
        "producer epoch": row["producer_epoch"],
        "partitions": row["partitions"],
        "state": row["state"] if row["kind"] == "transaction" else "not in the input",
        "waited for": _waited_for(row, verdict),
        "last request": last,
        "client": row["last_client"],
        "timeout": length(row["timeout_ms"]) if row["timeout_ms"] is not None else None,
        "LSO held back": f"{blocked} in {' '.join(first_held or row['partitions']) or 'no partition that is known'}",
        "culprit": culprit,
    }
    if verdict == "hangs" and row["prepared_ms"] is not None:
        facts["markers missing in"] = _missing_markers(row)
    finding = Finding(title, facts, cause, [Step(**line) for line in row["steps"]])
    finding.spans = [Span(name, "Ongoing", row["start_ms"], row["prepared_ms"] or end, "waits")]
    if row["prepared_ms"] is not None:
        finding.spans.append(Span(name, row["prepared_as"], row["prepared_ms"], end, "fault"))
    finding.spans += [
        Span(partition, "LSO held back", row["start_ms"], row["marked"].get(partition, end), "fault")
        for partition in row["partitions"][:12]
    ]
    return finding


def _waited_for(row: Row, verdict: str) -> str:
    if verdict in ("hangs", "slow") and row["prepared_ms"] is not None:
        missing = _missing_markers(row)
        return f"markers in {' '.join(missing)}" if missing else "its completion by the coordinator"
    if row["end_requested_ms"] is not None and row["kind"] == "transaction":
        return f"the coordinator to {row['end_requested']} it, as requested at {clock(row['end_requested_ms'])}"
    return "the coordinator to end it" if verdict == "hangs" else "the client to end it"


def _cause(row: Row, verdict: str, moves: list[tuple[int, str]], end: int) -> tuple[str, str]:
    """Return the culprit and the reason."""
    begin = row["prepared_ms"] if verdict != "timed out" and row["prepared_ms"] is not None else row["start_ms"]
    moved = [what for time_ms, what in moves if begin <= time_ms <= end]
    if verdict in ("hangs", "slow"):
        return COORDINATOR if not row["refused"] else "the partitions' leaders", _coordinator_cause(row, verdict, moved)
    client = row["last_client"] or f"the client of {row['transactional_id'] or row['producer_id']}"
    if verdict == "refused":
        return client, (
            f"EndTxn was refused with {row['end_error']}: the transaction had timed out, or another instance took over "
            f"the transactional id; the broker's event log or a capture shows which"
        )
    if row["fenced_by"] and (row["timed_out_ms"] is None or row["fenced_ms"] <= row["timed_out_ms"]):
        refused = row["late_error"] or row["end_error"]
        after = f"; {client} was refused with {refused} when it continued" if refused else ""
        return row["fenced_by"], f"fenced by {row['fenced_by']}, which took over the transactional id{after}"
    if verdict == "fenced":
        return "another instance", f"another instance took over the transactional id from {client}"
    if row["kind"] == "transaction" and row["end_requested_ms"] is not None:
        if moved:
            return COORDINATOR, f"the client requested its end while the coordinator moved: {'; '.join(moved[:3])}"
        return COORDINATOR, "the coordinator stalled: the client requested its end before the timeout"
    return client, _client_cause(row, end)


def _coordinator_cause(row: Row, verdict: str, moved: list[str]) -> str:
    """Return why the coordinator did not end a transaction."""
    if row["prepared_ms"] is None:
        if row["end_requested_ms"] is not None:
            return f"the coordinator stalled: {row['end_requested']} was requested and nothing followed"
        if moved:
            return f"the coordinator moved and did not continue the transaction: {'; '.join(moved[:3])}"
        return "the coordinator stalled: the timeout passed and it did not abort the transaction"
    missing = _missing_markers(row)
    if row["refused"]:
        return f"markers were refused: {', '.join(f'{name} ({why})' for name, why in row['refused'].items())}"
    if moved:
        return f"the coordinator moved while markers were to be written: {'; '.join(moved[:3])}"
    if missing and verdict == "hangs":
        return f"markers are missing in {' '.join(missing)}: the coordinator never wrote them"
    return "all markers are written, and the coordinator did not complete the transaction in time"


def _client_cause(row: Row, end: int) -> str:
    """Return why a client let its transaction time out: it was late, busy or silent."""
    timeout = row["timeout_ms"]
    limit = f"the timeout of {length(timeout)}" if timeout is not None else "the timeout"
    late, error = (row["late_request"], row["late_request_ms"]), row["late_error"]
    if row["kind"] == "requests" and row["end_error"] is not None:
        late, error = ("EndTxn", row["end_requested_ms"] or row["last_request_ms"]), row["end_error"]
    if late[0] is not None:
        refused = f" and was refused with {error}" if error else ""
        return (
            f"the client was late: its work took longer than {limit}; {late[0]} came "
            f"{length(late[1] - row['start_ms'])} after the transaction began{refused}"
        )
    if row["last_request_ms"] is None:
        return (
            f"no EndTxn within {limit}: the input has no request of this client, so that it does not show whether the "
            f"client stopped or was late (an event log or a capture does)"
        )
    silent = (row["timed_out_ms"] or row["prepared_ms"] or end) - row["last_request_ms"]
    after = f" (its last error was {row['last_error']})" if row["last_error"] else ""
    if timeout is not None and silent < timeout / 4:
        return f"the work took longer than {limit}: the client was active {length(silent)} before it{after}"
    return f"the client stopped: no request came from it in the last {length(silent)}{after}"


def _hanging(row: Row, now: int, grace: int) -> Finding | None:
    """Report a hanging transaction: open in partitions, and finished or unknown to the coordinator."""
    oldest = min(held["since_ms"] for held in row["open_in"].values())
    if not row["states_seen"] and now - oldest <= max(grace, 60_000):
        return None
    name = row["transactional_id"] or f"producer {row['producer_id']}"
    offsets = ", ".join(f"{partition} offset {held['offset']}" for partition, held in row["open_in"].items())
    facts = {
        "transactional id": row["transactional_id"],
        "producer id": row["producer_id"],
        "producer epoch": next(iter(row["open_in"].values()))["epoch"],
        "partitions": list(row["open_in"]),
        "state": "complete or unknown to the coordinator",
        "waited for": "markers that the coordinator will not write",
        "LSO held back": f"at {offsets} for {length(now - oldest)}",
        "culprit": COORDINATOR if row["states_seen"] else "unknown",
        "markers missing in": list(row["open_in"]),
    }
    cause = (
        "markers are missing: the transaction is complete to the coordinator and open in the partitions (a hanging "
        "transaction; `ottla txn hanging` lists them, `ottla txn abort` ends one)"
        if row["states_seen"]
        else "the transaction is open in the partitions, and the input has no record of the coordinator about it"
    )
    title = f"{name} hangs in {' '.join(row['open_in'])}"
    finding = Finding(title, facts, cause, [Step(**line) for line in row["steps"]])
    finding.spans = [
        Span(partition, "LSO held back", held["since_ms"], now, "fault") for partition, held in row["open_in"].items()
    ]
    return finding


def _key(event: Event, options: Row) -> str | None:
    if event.event == "coordinator":
        return SHARED
    if event.producer_id is None or event.producer_id < 0:
        return None
    transactional_id = options.get("transactional_id")
    if transactional_id is not None and event.transactional_id not in (None, transactional_id):
        return None
    return str(event.producer_id)


ANALYSIS: Final = Analysis("txn-timeout", WANTS, _key, rule, conclude)
