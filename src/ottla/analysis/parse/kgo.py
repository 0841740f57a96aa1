"""Parse lines of franz-go's logger (`kgo.BasicLogger`, at any level, with any prefix).

A line is `prefix [LEVEL] message; key: value, key: value`. The prefixes of kgo's own tests hold the time of day and, in
brackets, the number of the client: `[10:19:45.745 29][INFO] synced; group: g, assigned: t[0 1]`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ottla.analysis.event import CLIENT, Event, partition_name
from ottla.analysis.parse.timestamps import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "kgo"
_LINE: Final = re.compile(r"^(?P<prefix>[^\n]{0,80}?)\[(?P<level>DEBUG|INFO|WARN|ERROR)\] (?P<message>.*)$")
_CLIENT: Final = re.compile(r"\[[\d:.]+ (\d+)\]\s*$")
_FIELD: Final = re.compile(r"(?:; |, )([a-z_0-9]+): ")
_TOPIC: Final = re.compile(r"([^\s\[\],{}]+)\[([^\]]*)\]")
_NUMBERED: Final = re.compile(r"(\d+)(?:\{([^}]*)\})?")
_ERROR: Final = re.compile(r"^([A-Z][A-Z_]{3,}): ")
_GO_TEST: Final = ("=== ", "--- ", "PASS", "FAIL", "ok  \t", "SKIP", "    ")

_OUT_OF_RANGE: Final = "received OFFSET_OUT_OF_RANGE"
REVOKED: Final = ("entering OnPartitionsRevoked", "entering OnPartitionsLost")


def looks_like(line: str) -> bool:
    """Return whether a line comes from kgo's logger."""
    return _LINE.match(line) is not None


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the events of a line, or None if kgo did not write it."""
    match = _LINE.match(line)
    if match is None:
        if line.startswith(_GO_TEST):
            return [base._replace(event="log", side=CLIENT, format=FORMAT, time_ms=None)]
        return None
    prefix = match["prefix"]
    number = _CLIENT.search(prefix)
    here = base._replace(
        event="log",
        side=CLIENT,
        format=FORMAT,
        level=match["level"],
        time_ms=milliseconds(prefix, base.time_ms),
        client=number[1] if number else None,
        host=base.file if number is None else f"{base.file}#{number[1]}",
    )
    message, semicolon, rest = match["message"].partition("; ")
    fields: dict[str, str] = {}
    if semicolon:
        names = list(_FIELD.finditer("; " + rest))
        for index, name in enumerate(names):
            end = names[index + 1].start() if index + 1 < len(names) else None
            fields[name[1]] = ("; " + rest)[name.end() : end]
    return list(_events(message, fields, here))


def _events(message: str, fields: dict[str, str], here: Event) -> Iterator[Event]:
    error = fields.get("err")
    if error in (None, "", "<nil>"):
        error = None
    else:
        named = _ERROR.match(error or "")
        error = named[1] if named else error
    here = here._replace(
        group=fields.get("group"),
        member=fields.get("member_id"),
        transactional_id=fields.get("transactional_id"),
        producer_id=_int(fields.get("producer_id", fields.get("prior_id"))),
        producer_epoch=_int(fields.get("prior_epoch")),
        epoch=_int(fields.get("generation", fields.get("epoch"))),
        topic=fields.get("topic"),
        partition=_int(fields.get("partition")),
        error=error,
    )
    if message == "new group session begun":
        lost = partitions(fields.get("lost", ""))
        if lost:
            yield here._replace(event="group.released", partitions=lost)
        yield here._replace(event="group.added", partitions=partitions(fields.get("added", "")))
    elif message in REVOKED:
        yield here._replace(event="group.released", partitions=partitions(fields.get("with", "")), state=message[9:])
    elif message in ("synced", "consumer group initial heartbeat received assignment"):
        yield here._replace(event="log", partitions=partitions(fields.get("assigned", "")))
    elif message in ("leaving group", "leaving next-gen group"):
        yield here._replace(event="group.left")
    elif message == "joining group" or message.startswith(("joined", "beginning to manage the")):
        yield here._replace(event="group.join")
    elif message in ("heartbeating", "heartbeat complete", "heartbeat errored") or message.startswith("heartbeat "):
        yield here._replace(event="group.heartbeat", state=message.removeprefix("heartbeat "))
    elif message == "updated uncommitted":
        yield from _moves(here._replace(event="fetch"), fields.get("to", ""))
    elif message == "updated committed":
        yield from _moves(here._replace(event="commit"), fields.get("to", ""))
    elif message == "produced":
        yield from _moves(here._replace(event="produce"), fields.get("to", ""), first=True)
    elif message == "assigning partitions":
        yield from _positions(here._replace(event="position", state=fields.get("why")), fields.get("input", ""))
    elif message.startswith("transact session resetting"):
        yield here._replace(event="position", state="the transaction was aborted: back to what is committed")
    elif message.startswith(_OUT_OF_RANGE) and "first fetch" not in message:
        yield here._replace(event="fetch", error=_OUT_OF_RANGE[9:])
    elif message == "beginning transaction":
        yield here._replace(event="txn.begin")
    elif message == "ending transaction":
        yield here._replace(
            event="txn.end",
            state="commit" if fields.get("commit") == "true" else "abort",
            producer_epoch=here.epoch,
            epoch=None,
        )
    elif message.startswith("end transaction response successfully received"):
        yield here._replace(event="response", api="EndTxn", epoch=None)
    elif message.startswith("producer ID failed"):
        failed_id = _int(fields.get("id"))
        yield here._replace(
            event="response", api="EndTxn", producer_id=failed_id, producer_epoch=here.epoch, epoch=None
        )
    elif message.startswith("join returned UnknownMemberID"):
        yield here._replace(event="group.fenced", state="UNKNOWN_MEMBER_ID")
    elif message == "producer id initialization success":
        yield here._replace(event="txn.init", producer_id=_int(fields.get("id")), producer_epoch=here.epoch, epoch=None)
    elif message.startswith("read EndTxn"):
        yield here._replace(api="EndTxn")  # the next lines hold the error of the response
    elif message.startswith(("wrote ", "read ")):
        words = message.split()
        yield here._replace(
            event="request" if words[0] == "wrote" else "response", api=words[1], host=here.host, epoch=None
        )
    else:
        yield here


def _int(value: str | None) -> int | None:
    return int(value) if value is not None and value.lstrip("-").isdigit() else None


def partitions(text: str) -> list[str]:
    """Return the partitions in `t[0 1], u[2]`."""
    return [
        partition_name(topic, int(number[1]))
        for topic, inside in _TOPIC.findall(text)
        for number in _NUMBERED.finditer(inside)
    ]


def _moves(here: Event, text: str, *, first: bool = False) -> Iterator[Event]:
    """Yield an event per partition of `t[2{0=>25 r25 e0}, 3{...}]`, which moved from one offset to another."""
    for topic, inside in _TOPIC.findall(text):
        for entry in _NUMBERED.finditer(inside):
            words = (entry[2] or "").split()
            numbers = words[0].split("=>") if words else []
            if numbers and numbers[0].lstrip("-").isdigit() and numbers[-1].lstrip("-").isdigit():
                records = next((word[1:] for word in words if word.startswith("r")), "")
                state = f"from {numbers[-2]}" if len(numbers) > 1 else None
                yield here._replace(
                    topic=topic,
                    partition=int(entry[1]),
                    offset=int(numbers[0] if first else numbers[-1]),
                    state=f"{state}, {records} records" if state and records else state,
                )


def _positions(here: Event, text: str) -> Iterator[Event]:
    """Yield the start positions in `t[0{25 e0 ce0}]`; -2 is the start and -1 the end of the log."""
    has_offset = False
    for topic, inside in _TOPIC.findall(text):
        for entry in _NUMBERED.finditer(inside):
            words = (entry[2] or "").split()
            if words and words[0].lstrip("-").isdigit():
                has_offset = True
                yield here._replace(topic=topic, partition=int(entry[1]), offset=int(words[0]))
    if not has_offset:
        yield here
