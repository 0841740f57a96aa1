"""The analysis table: its columns, the names of its events, and small functions on them.

docs/events-schema.md is generated from this module; `inputs` and `parse` fill the table.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BROKER: Final = "broker"
CLIENT: Final = "client"


class Event(NamedTuple):
    """One row of the table; a column that the source does not hold is None."""

    time_ms: int | None
    event: str
    side: str = BROKER
    format: str = ""
    file: str = ""
    position: int = 0
    host: str | None = None
    level: str | None = None
    client: str | None = None
    api: str | None = None
    request: str | None = None
    group: str | None = None
    protocol: str | None = None
    member: str | None = None
    epoch: int | None = None
    topic: str | None = None
    partition: int | None = None
    partitions: list[str] | None = None
    pending: list[str] | None = None
    offset: int | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    state: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    text: str | None = None


COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "time_ms": ("bigint", "milliseconds since 1970 by the clock of `host`; null if the line has no time"),
    "event": ("string", "the name of the event, see below"),
    "side": ("string", "`broker` or `client`: which side the event describes"),
    "format": ("string", "the input kind that it was read from"),
    "file": ("string", "the file that it was read from"),
    "position": ("bigint", "the byte position of its line, or the offset of its record"),
    "host": ("string", "the node, tap or client by whose clock the time is"),
    "level": ("string", "the level of a log line"),
    "client": ("string", "the client id, or the number of the client's logger"),
    "api": ("string", "the API by its name in Kafka's protocol guide"),
    "request": ("string", "pairs a response with its request: node, connection and correlation id"),
    "group": ("string", "the group id"),
    "protocol": ("string", "the group protocol: `classic`, `consumer` or `streams`"),
    "member": ("string", "the member id"),
    "epoch": ("int", "the member epoch, or the generation of a classic group; the leader epoch for `leader`"),
    "topic": ("string", "the topic of an event about one partition"),
    "partition": ("int", "the partition of an event about one partition"),
    "partitions": ("array<string>", "the partitions, as `topic-0`, of an event about several"),
    "pending": (
        "array<string>",
        "the partitions pending revocation, which the member still owns",
    ),
    "offset": ("bigint", "the offset"),
    "transactional_id": ("string", "the transactional id"),
    "producer_id": ("bigint", "the producer id"),
    "producer_epoch": ("int", "the producer epoch"),
    "state": ("string", "the state after a transition, or the reason; `commit` or `abort` of a marker"),
    "duration_ms": ("bigint", "the duration, or the transaction timeout"),
    "error": ("string", "the error, by its name in Kafka where it has one"),
    "text": ("string", "the line itself, or further details"),
}

EVENTS: Final[dict[str, str]] = {
    "request": "a request was sent or received",
    "response": "a response was sent or received, with its `error`; `duration_ms` is the time since the request",
    "connection": "a connection was opened, closed or refused, by `state`",
    "group.join": "a member joins or rejoins",
    "group.heartbeat": "a heartbeat of a member",
    "group.state": "a group changed its state or epoch",
    "group.assigned": "all partitions of a member: it no longer owns those that are missing",
    "group.target": "the target assignment of a member in an epoch",
    "group.added": "a client owns these partitions in addition",
    "group.revoking": "the coordinator asked a member to revoke these partitions; it owns them until it confirms",
    "group.released": "a member no longer owns these partitions",
    "group.left": "a member left the group and owns nothing any more",
    "group.fenced": "a member was evicted or fenced: a timeout, or another member with its instance id",
    "commit": "an offset was committed; with a producer id, the end of its transaction is `state`",
    "position": "a client set its position in a partition",
    "fetch": "a client fetched; with a partition, `offset` is its next position there",
    "produce": "records were written to a partition; `offset` is the first",
    "append": "a log grew to the log end offset `offset` in this second, by the records and bytes in `text`",
    "history": "an operation of a history of `ottla.history`, in `text`",
    "txn.init": "a transactional id got a producer id and epoch, which fences older epochs",
    "txn.begin": "a transaction began",
    "txn.add": "partitions (or a group) were added to a transaction",
    "txn.state": "a transaction changed its state",
    "txn.end": "a client requested the end of its transaction; `state` is `commit` or `abort`",
    "txn.marker": "a marker (a control batch) was written to a partition",
    "txn.timeout": "the coordinator aborts a transaction because its timeout passed",
    "txn.open": "at the end of a partition's log this producer's transaction is open since `offset`",
    "txn.fenced": "a producer was refused because a newer instance has its transactional id",
    "timeout": "a timeout passed; `state` names it",
    "coordinator": "a node loaded or unloaded a partition of `__consumer_offsets` or `__transaction_state`",
    "leader": "a partition has a new leader, which is `host`",
    "topic": "a topic was created or deleted, or (`named`) a topic id was seen with its name, by `state`",
    "log": "a log line about something else",
    "unparsed": "a line that no parser understands, in `text`",
}


_LIMITS: Final = {"bigint": 1 << 63, "int": 1 << 31}
_NUMBERS: Final = tuple((index, _LIMITS[kind]) for index, (kind, _) in enumerate(COLUMNS.values()) if kind in _LIMITS)
_TEXTS: Final = tuple(index for index, (kind, _) in enumerate(COLUMNS.values()) if kind == "string")


def fits(event: Event) -> bool:
    """Return whether each value has the type of its column: a foreign line may hold anything."""
    for index, limit in _NUMBERS:
        number = event[index]
        if number is not None and (type(number) is not int or not -limit <= number < limit):
            return False
    return all(event[index] is None or isinstance(event[index], str) for index in _TEXTS)


def partition_name(topic: str, partition: int) -> str:
    """Return a partition as `topic-number`."""
    return f"{topic}-{partition}"


def split_partition(name: str) -> tuple[str, int] | None:
    """Return topic and number of a name such as `orders-3`, or None if it is none."""
    topic, dash, number = name.rpartition("-")
    return (topic, int(number)) if dash and topic and number.isdigit() else None


def order(event: Event) -> tuple[int, str, int]:
    """Return the sort key of an event: time, then file and position."""
    return (event.time_ms if event.time_ms is not None else -1, event.file, event.position)
