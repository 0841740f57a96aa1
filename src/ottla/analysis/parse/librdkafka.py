"""Parse lines of librdkafka's default logger: `%7|1794738087.287|PARTADD|c1#consumer-3| [thrd:main]: ...`."""

from __future__ import annotations

import re
from typing import Final

from ottla.analysis.event import CLIENT, Event

FORMAT: Final = "librdkafka"
_LINE: Final = re.compile(
    r"^%(?P<level>\d)\|(?P<time>\d+\.\d+)\|(?P<code>\w+)\|(?P<client>[^|]*)\| (?:\[thrd:[^\]]*\]: )?(?P<message>.*)$"
)
_PARTITION: Final = re.compile(r"(\S+) \[(\d+)\]")
_GROUP: Final = re.compile(r'[Gg]roup (?:id )?"([^"]*)"')
_OFFSET: Final = re.compile(r"\boffset (-?\d+)")
_PID: Final = re.compile(r"PID\{Id:(-?\d+),Epoch:(-?\d+)\}")
_GENERATION: Final = re.compile(r"(?:GenerationId|generation-id|generation id|with epoch|epoch) (-?\d+)")
_MEMBER: Final = re.compile(r'(?:my MemberId |member id ")([^",\s]+)')
_FETCH_ERROR: Final = re.compile(r"\): (\w+)")
_LEVELS: Final = {"0": "ERROR", "1": "ERROR", "2": "ERROR", "3": "ERROR", "4": "WARN", "5": "INFO", "6": "INFO"}
_TXN_STATE: Final = re.compile(r"Transaction state change \w+ -> (\w+)")
_END_TXN: Final = re.compile(r"EndTxn returned (\w+)")
_TXN_EVENTS: Final = {
    "InTransaction": ("txn.begin", None),
    "CommittingTransaction": ("txn.end", "commit"),
    "AbortingTransaction": ("txn.end", "abort"),
}
_EVICTED: Final = {"SESSTMOUT": "session timeout", "MAXPOLL": "max.poll.interval.ms exceeded"}
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
    """Return whether a line comes from librdkafka's logger."""
    return line.startswith("%") and _LINE.match(line) is not None


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the events of a line, or None if librdkafka did not write it."""
    match = _LINE.match(line)
    if match is None:
        return None
    code, message = match["code"], match["message"]
    group, partition, offset = _GROUP.search(message), _PARTITION.search(message), _OFFSET.search(message)
    generation, member, pid = _GENERATION.search(message), _MEMBER.search(message), _PID.search(message)
    here = base._replace(
        event=_NAMES.get(code, "log"),
        side=CLIENT,
        format=FORMAT,
        level=_LEVELS.get(match["level"], "DEBUG"),
        time_ms=int(float(match["time"]) * 1000 + 0.5),
        client=match["client"],
        host=match["client"],
        group=group[1] if group else None,
        member=member[1] if member else None,
        epoch=int(generation[1]) if generation else None,
        topic=partition[1] if partition else None,
        partition=int(partition[2]) if partition else None,
        offset=int(offset[1]) if offset else None,
        producer_id=int(pid[1]) if pid else None,
        producer_epoch=int(pid[2]) if pid else None,
    )
    if here.event == "group.join" and not ("Joining group" in message or message.startswith("JoinGroup response")):
        here = here._replace(event="log")
    elif here.event in ("group.added", "group.released") and partition:
        here = here._replace(partitions=[f"{partition[1]}-{partition[2]}"])
    elif code in _EVICTED:
        here = here._replace(state=_EVICTED[code])
    elif code == "FETCH" and "Fetch topic " in message:
        here = here._replace(event="fetch")
    elif code == "FETCHERR":
        error = _FETCH_ERROR.search(message)
        ended = error is not None and error[1] == "_PARTITION_EOF"
        here = here._replace(event="log" if ended else "fetch", error=None if ended or error is None else error[1])
    elif code == "COMMIT" and ": returned: " in message:
        result = message.rpartition(": returned: ")[2]
        here = here._replace(event="commit", error=None if result == "Success" else result)
    elif code == "OFFSETFETCH" and "OffsetFetchResponse: " in message:
        here = here._replace(event="position", state="committed offset fetched")
    elif code == "MSGSET" and message.endswith(" delivered"):
        here = here._replace(event="produce")
    elif code == "GETPID" and pid:
        here = here._replace(event="txn.init")
    elif code == "TXNSTATE":
        state = _TXN_STATE.search(message)
        name, outcome = _TXN_EVENTS.get(state[1] if state else "", ("txn.state", state[1] if state else None))
        here = here._replace(event=name, state=outcome)
    elif code == "ENDTXN" and (result := _END_TXN.search(message)):
        here = here._replace(event="response", api="EndTxn", error=None if result[1] == "NO_ERROR" else result[1])
    elif here.level in ("ERROR", "WARN"):
        here = here._replace(error=code)
    return [here]
