"""Parse lines of Kafka's Java clients, in the usual layouts of log4j, logback and slf4j-simple.

Each message of a client begins with its identity: `[Consumer clientId=c1, groupId=g] Resetting offset ...`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ottla.analysis.event import CLIENT, Event
from ottla.analysis.parse.timestamps import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "java"
_LINE: Final = re.compile(
    r"^(?P<head>.{0,160}?)\[(?:Consumer|Producer|AdminClient) (?P<identity>(?:instanceId|clientId)=[^\]]*)\] "
    r"(?P<message>.*)$"
)
_OTHER: Final = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ][\d:,.]+\S{0,7}.{0,60}? (?:TRACE|DEBUG|INFO|WARN|ERROR) ")
_THROWN: Final = re.compile(r"^[\w.$]+(?:Exception|Error)\b")
_LEVEL: Final = re.compile(r"\b(TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\b")
_NAME: Final = re.compile(r"[\w.\-]+-\d+")
_ERRORS: Final = re.compile(r"\b(\w+(?:Exception|Error))\b")
_GENERATION: Final = re.compile(r"(?:generationId=|generation |memberEpoch=|epoch=?\s?)(-?\d+)")
_MEMBER: Final = re.compile(r"(?:memberId='?|memberId=|member id |memberId )([\w.\-]+)")
_OFFSET: Final = re.compile(r"(?:offset |offset=|FetchPosition\{offset=)(\d+)")
_ONE: Final = re.compile(r"(?:partition|for partition) ([\w.\-]+)-(\d+)")
_PID: Final = re.compile(r"(?:ProducerId set to|producerId=|ProducerId:?) ?(\d+)(?: with epoch|,? epoch=?) ?(-?\d+)")
_TIMEOUT_MS: Final = re.compile(r"transactionTimeoutMs=(\d+)")
_STATES: Final = re.compile(r"(?:from state|to(?: error)?(?: state)?) ([A-Z_]+)")
_TXN_EVENTS: Final = {
    "IN_TRANSACTION": ("txn.begin", None),
    "COMMITTING_TRANSACTION": ("txn.end", "commit"),
    "ABORTING_TRANSACTION": ("txn.end", "abort"),
}
_EVICTED: Final = ("poll timeout has expired", "session timed out", "Member was fenced", "was fenced", "fenced")


def looks_like(line: str) -> bool:
    """Return whether a Java client wrote a line."""
    return _LINE.match(line) is not None


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the events of a line, or None if no client wrote it; a line of a stack trace is a `log` event."""
    match = _LINE.match(line)
    if match is None:
        if line.startswith(("\t", "Caused by: ", " (")) or _THROWN.match(line):
            continued = base._replace(event="log", side=CLIENT, format=FORMAT, time_ms=None)
            if line.startswith("\tAdded partitions"):
                return [continued._replace(event="group.added", partitions=_names(line))]
            return [continued]
        if _OTHER.match(line):
            moment = milliseconds(line[:40], base.time_ms)
            return [base._replace(event="log", side=CLIENT, format=FORMAT, time_ms=moment)]
        return None
    identity = dict(pair.split("=", 1) for pair in match["identity"].split(", ") if "=" in pair)
    level = _LEVEL.search(match["head"])
    message = match["message"]
    error = _ERRORS.search(message)
    generation, member = _GENERATION.search(message), _MEMBER.search(message)
    here = base._replace(
        event="log",
        side=CLIENT,
        format=FORMAT,
        level=level[1] if level else None,
        time_ms=milliseconds(match["head"], base.time_ms),
        client=identity.get("clientId"),
        host=identity.get("clientId"),
        group=identity.get("groupId"),
        transactional_id=identity.get("transactionalId"),
        epoch=int(generation[1]) if generation else None,
        member=member[1] if member else None,
        error=error[1] if error and (level is None or level[1] in ("WARN", "ERROR")) else None,
    )
    return list(_events(message, here))


def _events(message: str, here: Event) -> Iterator[Event]:
    if here.transactional_id is not None and (event := _transaction_event(message, here)) is not None:
        yield event
        return
    if message.startswith("Adding newly assigned partitions:"):
        yield here._replace(event="group.added", partitions=_names(message))
    elif message.startswith(("Revoke previously assigned partitions", "Revoking previously assigned partitions")):
        yield here._replace(event="group.released", partitions=_names(message), state="revoked")
    elif message.startswith("Lost previously assigned partitions"):
        yield here._replace(event="group.released", partitions=_names(message), state="lost")
    elif ("transitioned from" in message and "to JOINING" in message) or message.startswith(
        ("(Re-)joining group", "Successfully joined group", "Request joining group", "Join")
    ):
        yield here._replace(event="group.join")
    elif "sending LeaveGroup request" in message or (
        message.startswith(("Member", "Leaving")) and "leav" in message.lower()
    ):
        yield here._replace(event="group.left")
    elif any(word in message for word in _EVICTED):
        state = "max.poll.interval.ms exceeded" if "poll timeout" in message else None
        yield here._replace(event="txn.fenced" if here.transactional_id else "group.fenced", state=state)
    elif "Heartbeat" in message or "heartbeat" in message:
        yield here._replace(event="group.heartbeat")
    elif message.startswith(("Setting offset for partition", "Resetting offset for partition", "Seeking to")):
        yield from _one(message, here, "position")
    elif (
        message.startswith(("Fetch", "Added", "Handling", "Completed")) and "offset" in message and _ONE.search(message)
    ):
        yield from _one(message, here, "fetch")
    elif message.startswith("Committed offset"):
        yield from _one(message, here, "commit")
    else:
        yield here


def _transaction_event(message: str, here: Event) -> Event | None:
    """Return the event of a message of the transaction manager, or None if it is about something else."""
    if message.startswith("ProducerId set to"):
        pid = _PID.search(message)
        producer_id, epoch = (int(pid[1]), int(pid[2])) if pid else (None, None)
        return here._replace(event="txn.init", producer_id=producer_id, producer_epoch=epoch, epoch=None)
    if message.startswith("Sending transactional request InitProducerId"):
        timeout = _TIMEOUT_MS.search(message)
        return here._replace(event="txn.init", duration_ms=int(timeout[1]) if timeout else None, epoch=None)
    if message.startswith("Transition from state"):
        before, after, *_ = [*_STATES.findall(message), "", ""]
        name, outcome = _TXN_EVENTS.get(after, ("txn.state", after or None))
        if after == "READY" and before in ("COMMITTING_TRANSACTION", "ABORTING_TRANSACTION"):
            return here._replace(event="response", api="EndTxn", error=None)
        return here._replace(event=name, state=outcome)
    if message.startswith("Transiting to"):
        error = _ERRORS.search(message)
        return here._replace(event="response", api="EndTxn", error=error[1] if error else "fatal error", epoch=None)
    if message.startswith(("Begin adding new partition", "Begin adding offsets")):
        return here._replace(event="txn.add", partitions=_names(message))
    return None


def _names(message: str) -> list[str]:
    return _NAME.findall(message.partition(":")[2] or message.rpartition("partitions")[2])


def _one(message: str, here: Event, event: str) -> Iterator[Event]:
    partition, offset = _ONE.search(message), _OFFSET.search(message)
    if partition is None:
        yield here
        return
    yield here._replace(
        event=event,
        topic=partition[1],
        partition=int(partition[2]),
        offset=int(offset[1]) if offset else None,
    )
