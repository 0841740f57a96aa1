"""The one table that every input becomes: its columns, the names of its events, and nothing about where they come from.

`docs/events-schema.md` is made from what stands here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BROKER: Final = "broker"
CLIENT: Final = "client"


class Event(NamedTuple):
    """One thing that happened, as one source tells it. What a source does not tell is None."""

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
    "time_ms": ("bigint", "when, in milliseconds since 1970 by the clock of `host`; null where the line tells no time"),
    "event": ("string", "what, one of the names below"),
    "side": ("string", "`broker` or `client`: who tells it"),
    "format": ("string", "the format it was read from"),
    "file": ("string", "the file it stands in"),
    "position": ("bigint", "the byte at which its line begins, or its offset in a log"),
    "host": ("string", "whose clock: a node, or one client"),
    "level": ("string", "the level of a line of a log"),
    "client": ("string", "the client id, or the number of the client's logger"),
    "api": ("string", "the request, by its name in Kafka"),
    "request": ("string", "what pairs a response with its request: node, connection and correlation id"),
    "group": ("string", "the group"),
    "protocol": ("string", "`classic` or `consumer`: the protocol of the group"),
    "member": ("string", "the member of the group"),
    "epoch": ("int", "the member's epoch, or the generation of a classic group; a leader's epoch for `leader`"),
    "topic": ("string", "the topic, of an event about one partition"),
    "partition": ("int", "the partition, of an event about one partition"),
    "partitions": ("array<string>", "the partitions, as `topic-0`, of an event about several"),
    "pending": ("array<string>", "the partitions that a member has been asked to give up and still holds"),
    "offset": ("bigint", "the offset"),
    "transactional_id": ("string", "the transactional id"),
    "producer_id": ("bigint", "the producer id"),
    "producer_epoch": ("int", "the producer epoch"),
    "state": ("string", "the state after a transition; `commit` or `abort` of a marker"),
    "duration_ms": ("bigint", "how long it took, or the timeout that was given"),
    "error": ("string", "the error, by its name in Kafka where it has one"),
    "text": ("string", "the line itself, or what it says in words"),
}

EVENTS: Final[dict[str, str]] = {
    "request": "a request arrived or was sent",
    "response": "it was answered; `error` is its error, `duration_ms` what it took",
    "connection": "a connection was opened, closed or refused; `state` says which",
    "group.join": "a member joins or joins again",
    "group.heartbeat": "a member says that it is there",
    "group.state": "the group is in another state or epoch",
    "group.assigned": "a member's partitions, all of them: what it had before and is not named is not its own any more",
    "group.target": "what a member is to own in an epoch, once others have given it up",
    "group.added": "a client took these partitions in addition",
    "group.revoking": "a member was asked to give up these partitions, and holds them until it says so",
    "group.released": "a member gave up these partitions",
    "group.left": "a member left, with all that it held",
    "group.fenced": "a member was put out: its session or its rebalance timed out, or another took its place",
    "commit": "an offset was committed; one with a producer id by its transaction, whose end is `state`",
    "position": "a client set its position in a partition",
    "fetch": "a client fetched from a partition; `offset` is the one it goes on from",
    "produce": "records were written to a partition; `offset` is the first",
    "append": "a log grew to `offset` within this second; `text` is records and bytes (of log directories, on request)",
    "history": "an operation of a history of `ottla.history`, as it stands there, in `text`",
    "txn.init": "a transactional id got its producer id and epoch, which fences the one before",
    "txn.begin": "a transaction began",
    "txn.add": "partitions (or a group) became part of a transaction",
    "txn.state": "a transaction is in another state",
    "txn.end": "a client asked for the end of a transaction; `state` is `commit` or `abort`",
    "txn.marker": "the end of a transaction was written to a partition",
    "txn.timeout": "the coordinator gave up on a transaction",
    "txn.open": "a partition still holds back its last stable offset at `offset` for this producer",
    "txn.fenced": "a producer was refused because a newer one has its place",
    "timeout": "time ran out for somebody; `state` says for what",
    "coordinator": "a node coordinates a partition of `__consumer_offsets` or `__transaction_state`, or no longer",
    "leader": "a partition has another leader; `host` leads from here on",
    "topic": "a topic was created or deleted; `state` says which",
    "log": "a line of a log that says something else",
    "unparsed": "a line that no parser understands, kept as it is",
}


_LIMITS: Final = {"bigint": 1 << 63, "int": 1 << 31}
_NUMBERS: Final = tuple((place, _LIMITS[kind]) for place, (kind, _) in enumerate(COLUMNS.values()) if kind in _LIMITS)
_TEXTS: Final = tuple(place for place, (kind, _) in enumerate(COLUMNS.values()) if kind == "string")


def fits(event: Event) -> bool:
    """Whether each value is of the type of its column: what somebody else wrote may be anything."""
    for place, limit in _NUMBERS:
        number = event[place]
        if number is not None and (type(number) is not int or not -limit <= number < limit):
            return False
    return all(event[place] is None or isinstance(event[place], str) for place in _TEXTS)


def partition_name(topic: str, partition: int) -> str:
    """A partition as it is named everywhere."""
    return f"{topic}-{partition}"


def split_partition(name: str) -> tuple[str, int] | None:
    """Topic and number of a name such as `orders-3`."""
    topic, dash, number = name.rpartition("-")
    return (topic, int(number)) if dash and topic and number.isdigit() else None


def order(event: Event) -> tuple[int, str, int]:
    """The order of events: by time; what has none, or the same, stays in the order of its file."""
    return (event.time_ms if event.time_ms is not None else -1, event.file, event.position)
