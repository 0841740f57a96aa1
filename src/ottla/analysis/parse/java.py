"""Lines of Kafka's Java clients as events, in the usual layouts of log4j, logback and slf4j-simple.

What the clients themselves write begins with who they are: `[Consumer clientId=c1, groupId=g] Resetting offset ...`.
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
    r"^(?P<head>.{0,160}?)\[(?:Consumer|Producer|AdminClient) (?P<who>(?:instanceId|clientId)=[^\]]*)\] (?P<said>.*)$"
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
_TIMEOUT: Final = ("poll timeout has expired", "session timed out", "Member was fenced", "was fenced", "fenced")


def looks_like(line: str) -> bool:
    """Whether a Java client wrote this line."""
    return _LINE.match(line) is not None


def parse(line: str, base: Event) -> list[Event] | None:
    """The events of a line; None for what no client wrote (a stack trace belongs to the line before: it is `log`)."""
    found = _LINE.match(line)
    if found is None:
        if line.startswith(("\t", "Caused by: ", " (")) or _THROWN.match(line):
            more = base._replace(event="log", side=CLIENT, format=FORMAT, time_ms=None)
            if line.startswith("\tAdded partitions"):
                return [more._replace(event="group.added", partitions=_names(line))]
            return [more]
        if _OTHER.match(line):
            moment = milliseconds(line[:40], base.time_ms)
            return [base._replace(event="log", side=CLIENT, format=FORMAT, time_ms=moment)]
        return None
    who = dict(each.split("=", 1) for each in found["who"].split(", ") if "=" in each)
    level = _LEVEL.search(found["head"])
    said = found["said"]
    error = _ERRORS.search(said)
    generation, member = _GENERATION.search(said), _MEMBER.search(said)
    here = base._replace(
        event="log",
        side=CLIENT,
        format=FORMAT,
        level=level[1] if level else None,
        time_ms=milliseconds(found["head"], base.time_ms),
        client=who.get("clientId"),
        host=who.get("clientId"),
        group=who.get("groupId"),
        transactional_id=who.get("transactionalId"),
        epoch=int(generation[1]) if generation else None,
        member=member[1] if member else None,
        error=error[1] if error and (level is None or level[1] in ("WARN", "ERROR")) else None,
    )
    return list(_events(said, here))


def _events(said: str, here: Event) -> Iterator[Event]:
    if said.startswith("Adding newly assigned partitions:"):
        yield here._replace(event="group.added", partitions=_names(said))
    elif said.startswith(("Revoke previously assigned partitions", "Revoking previously assigned partitions")):
        yield here._replace(event="group.released", partitions=_names(said), state="revoked")
    elif said.startswith("Lost previously assigned partitions"):
        yield here._replace(event="group.released", partitions=_names(said), state="lost")
    elif ("transitioned from" in said and "to JOINING" in said) or said.startswith(
        ("(Re-)joining group", "Successfully joined group", "Request joining group", "Join")
    ):
        yield here._replace(event="group.join")
    elif "sending LeaveGroup request" in said or (said.startswith(("Member", "Leaving")) and "leav" in said.lower()):
        yield here._replace(event="group.left")
    elif any(word in said for word in _TIMEOUT):
        yield here._replace(event="txn.fenced" if here.transactional_id else "group.fenced")
    elif "Heartbeat" in said or "heartbeat" in said:
        yield here._replace(event="group.heartbeat")
    elif said.startswith(("Setting offset for partition", "Resetting offset for partition", "Seeking to")):
        yield from _one(said, here, "position")
    elif said.startswith(("Fetch", "Added", "Handling", "Completed")) and "offset" in said and _ONE.search(said):
        yield from _one(said, here, "fetch")
    elif said.startswith("Committed offset"):
        yield from _one(said, here, "commit")
    elif said.startswith("ProducerId set to"):
        pid = _PID.search(said)
        ids = (int(pid[1]), int(pid[2])) if pid else (None, None)
        yield here._replace(event="txn.init", producer_id=ids[0], producer_epoch=ids[1], epoch=None)
    elif said.startswith("Transition from state"):
        state = re.search(r"to(?: error state| state)? (\w+)", said)
        yield here._replace(event="txn.state", state=state[1] if state else None)
    elif said.startswith(("Begin adding new partition", "Begin adding offsets")):
        yield here._replace(event="txn.add", partitions=_names(said))
    else:
        yield here


def _names(said: str) -> list[str]:
    return _NAME.findall(said.partition(":")[2] or said.rpartition("partitions")[2])


def _one(said: str, here: Event, event: str) -> Iterator[Event]:
    place, offset = _ONE.search(said), _OFFSET.search(said)
    if place is None:
        yield here
        return
    yield here._replace(
        event=event,
        topic=place[1],
        partition=int(place[2]),
        offset=int(offset[1]) if offset else None,
    )
