"""Lines of librdkafka's default logger as events: `%7|1794738087.287|PARTADD|c1#consumer-3| [thrd:main]: ...`."""

from __future__ import annotations

import re
from typing import Final

from ottla.analysis.event import CLIENT, Event

FORMAT: Final = "librdkafka"
_LINE: Final = re.compile(
    r"^%(?P<level>\d)\|(?P<time>\d+\.\d+)\|(?P<code>\w+)\|(?P<client>[^|]*)\| (?:\[thrd:[^\]]*\]: )?(?P<said>.*)$"
)
_PLACE: Final = re.compile(r"(\S+) \[(\d+)\]")
_GROUP: Final = re.compile(r'[Gg]roup (?:id )?"([^"]*)"')
_OFFSET: Final = re.compile(r"\boffset (-?\d+)")
_PID: Final = re.compile(r"PID\{Id:(-?\d+),Epoch:(-?\d+)\}")
_GENERATION: Final = re.compile(r"(?:GenerationId|generation-id|generation id|with epoch|epoch) (-?\d+)")
_MEMBER: Final = re.compile(r'(?:my MemberId |member id ")([^",\s]+)')
_FETCH_ERROR: Final = re.compile(r"\): (\w+)")
_LEVELS: Final = {"0": "ERROR", "1": "ERROR", "2": "ERROR", "3": "ERROR", "4": "WARN", "5": "INFO", "6": "INFO"}
_TXN_STATE: Final = re.compile(r"Transaction state change \w+ -> (\w+)")
_NAMES: Final = {
    "PARTADD": "group.added",
    "PARTDEL": "group.released",
    "JOIN": "group.join",
    "JOINGROUP": "group.join",
    "HEARTBEAT": "group.heartbeat",
    "LEAVE": "group.left",
    "CGRPJOINSTATE": "group.state",
    "ADDPARTS": "txn.add",
    "SESSTMOUT": "group.fenced",
    "MAXPOLL": "group.fenced",
}


def looks_like(line: str) -> bool:
    """Whether this is a line of librdkafka's logger."""
    return line.startswith("%") and _LINE.match(line) is not None


def parse(line: str, base: Event) -> list[Event] | None:
    """The events of a line; None for what librdkafka does not write."""
    found = _LINE.match(line)
    if found is None:
        return None
    code, said = found["code"], found["said"]
    group, place, offset = _GROUP.search(said), _PLACE.search(said), _OFFSET.search(said)
    generation, member, pid = _GENERATION.search(said), _MEMBER.search(said), _PID.search(said)
    here = base._replace(
        event=_NAMES.get(code, "log"),
        side=CLIENT,
        format=FORMAT,
        level=_LEVELS.get(found["level"], "DEBUG"),
        time_ms=int(float(found["time"]) * 1000 + 0.5),
        client=found["client"],
        host=found["client"],
        group=group[1] if group else None,
        member=member[1] if member else None,
        epoch=int(generation[1]) if generation else None,
        topic=place[1] if place else None,
        partition=int(place[2]) if place else None,
        offset=int(offset[1]) if offset else None,
        producer_id=int(pid[1]) if pid else None,
        producer_epoch=int(pid[2]) if pid else None,
    )
    if here.event == "group.join" and not ("Joining group" in said or said.startswith("JoinGroup response")):
        here = here._replace(event="log")
    elif here.event in ("group.added", "group.released") and place:
        here = here._replace(partitions=[f"{place[1]}-{place[2]}"])
    elif code == "FETCH" and said.find("Fetch topic ") >= 0:
        here = here._replace(event="fetch")
    elif code == "FETCHERR":
        error = _FETCH_ERROR.search(said)
        ended = error is not None and error[1] == "_PARTITION_EOF"
        here = here._replace(event="log" if ended else "fetch", error=None if ended or error is None else error[1])
    elif code == "COMMIT" and ": returned: " in said:
        result = said.rpartition(": returned: ")[2]
        here = here._replace(event="commit", error=None if result == "Success" else result)
    elif code == "OFFSETFETCH" and "OffsetFetchResponse: " in said:
        here = here._replace(event="position", state="committed offset fetched")
    elif code == "MSGSET" and said.endswith(" delivered"):
        here = here._replace(event="produce")
    elif code == "GETPID" and pid:
        here = here._replace(event="txn.init")
    elif code == "TXNSTATE":
        state = _TXN_STATE.search(said)
        here = here._replace(event="txn.state", state=state[1] if state else None)
    elif here.level in ("ERROR", "WARN"):
        here = here._replace(error=code)
    return [here]
