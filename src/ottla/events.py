"""The event log: what matters to somebody who has to find out what happened, one object per event, in order.

The names of events and of their fields are declared here, once, and stay (docs/events.md is made of this table). Rooms
are handed a `NodeEvents` or None; None is how the log is off, and costs one comparison. What happens to an event is the
sinks' business: a file of JSON lines, a bounded memory for tests, lines for people.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Sink = Callable[["Event"], None]

Event = dict[str, Any]
"""One event: `seq`, `time`, `node`, `kind`, and the fields of its kind."""

log = logging.getLogger(__name__)

ENVELOPE: Final = {
    "seq": "int: the number of the event since the cluster started, without gaps",
    "time": "int: milliseconds since 1970 by the cluster's clock (virtual in tests that move time)",
    "node": "int: the node on which it happened; 0 is the cluster as a whole",
    "kind": "string: the name of the event",
}

FIELDS: Final = {
    "api": "string: the API's name, as in Kafka's protocol guide (Fetch, JoinGroup)",
    "bytes": "int: size of the frame, without its length prefix",
    "client_id": "string or null: as the client sent it",
    "committed": "bool: true for a commit, false for an abort",
    "connection": "int: number of the connection on its node",
    "correlation_id": "int: pairs a response with its request, on one connection",
    "action": "string: what a rule of the test kit did",
    "epoch": "int: generation of a classic group, group or member epoch of a consumer group",
    "errors": "list of strings: names of the error codes in a response, each once, in order",
    "error": "string: name of an error code",
    "from": "string: the state before",
    "group": "string: group id",
    "host": "string: the client's address",
    "instance": "string or null: group.instance.id",
    "leader": "int: node id, -1 for none",
    "leader_epoch": "int",
    "listener": "string: the listener's name",
    "member": "string: member id",
    "ms": "float: milliseconds from the request to its response",
    "offset": "int: the offset of a record",
    "offsets": "list of {topic, partition, offset}",
    "partition": "int",
    "partitions": "map of topic name to list of partition numbers",
    "pending": "map of topic name to partition numbers that the member has yet to give back",
    "port": "int: the client's port",
    "previous": "int: node id of the leader before, -1 for none",
    "principal": "string: who it is, as ACLs name them",
    "producer_epoch": "int",
    "producer_id": "int",
    "reason": "string: why",
    "rule": "int: number of the rule",
    "timeout_ms": "int",
    "to": "string: the state after",
    "topic": "string",
    "topic_id": "string: as Kafka prints ids",
    "transactional_id": "string",
    "type": "string: classic or consumer",
    "version": "int: version of the request",
    "what": "string: which timeout: session, rebalance, join, sync, transaction",
}


class Kind(NamedTuple):
    """One kind of event: when it is written, the fields that it always has, and those that it may have."""

    meaning: str
    always: tuple[str, ...]
    sometimes: tuple[str, ...] = ()


KINDS: Final[dict[str, Kind]] = {
    "node.started": Kind("a node lets clients in", ()),
    "node.stopped": Kind("a node lets nobody in any more", ("reason",)),
    "connection.opened": Kind("a client connected", ("connection", "listener", "host", "port")),
    "connection.closed": Kind(
        "a connection ended; `reason` is given where the broker ended it",
        ("connection", "host", "port", "client_id", "principal"),
        ("reason",),
    ),
    "connection.refused": Kind("a client was turned away", ("listener", "host", "port", "reason")),
    "request": Kind(
        "a request was read; what it is about is told as far as it says",
        ("connection", "api", "version", "correlation_id", "client_id", "bytes"),
        (
            "group",
            "member",
            "instance",
            "epoch",
            "transactional_id",
            "producer_id",
            "producer_epoch",
            "committed",
            "partitions",
            "offsets",
        ),
    ),
    "response": Kind(
        "the answer is on its way (there is none to a produce without acks)",
        ("connection", "api", "version", "correlation_id", "client_id", "bytes", "ms"),
        ("errors",),
    ),
    "topic.created": Kind("a topic is there", ("topic", "topic_id", "partitions")),
    "topic.deleted": Kind("a topic is gone", ("topic", "topic_id")),
    "leader.changed": Kind(
        "a partition has another leader, or the same in another epoch",
        ("topic", "partition", "leader", "previous", "leader_epoch"),
    ),
    "coordinator.loaded": Kind(
        "this node coordinates what a partition of __consumer_offsets or __transaction_state holds",
        ("topic", "partition", "leader_epoch"),
    ),
    "coordinator.failed": Kind(
        "this node cannot load a partition of an internal topic and answers NOT_COORDINATOR for what it holds; "
        "`offset` is that of the first record that cannot be loaded",
        ("topic", "partition", "leader_epoch", "offset", "reason"),
    ),
    "coordinator.unloaded": Kind("this node coordinates it no longer", ("topic", "partition")),
    "group.state": Kind(
        "a group went from one state to another; `epoch` is the generation or group epoch it is in now",
        ("group", "type", "from", "to", "epoch"),
    ),
    "group.epoch": Kind("a group's epoch was bumped: members or topics changed", ("group", "type", "epoch")),
    "group.target": Kind(
        "what a member of a consumer group is to own was computed, for the group's epoch; of a streams group, its "
        "active tasks by subtopology",
        ("group", "type", "member", "epoch", "partitions"),
    ),
    "group.deleted": Kind("a group is gone", ("group", "type")),
    "member.joined": Kind(
        "somebody is a member now; a static member that came back under a new id is one too",
        ("group", "type", "member", "instance", "client_id", "host"),
    ),
    "member.left": Kind(
        "somebody is no member any more; `reason`: left, session timeout, rebalance timeout, join timeout, sync "
        "timeout, replaced, group full",
        ("group", "type", "member", "instance", "reason"),
    ),
    "member.assigned": Kind(
        "what a member owns from now on, all of it; in a classic group as the leader assigned it, in a streams group "
        "its active tasks by subtopology",
        ("group", "type", "member", "epoch", "partitions"),
        ("pending",),
    ),
    "member.revoked": Kind(
        "a member of a consumer or streams group has said that it let go of these partitions or tasks",
        ("group", "type", "member", "epoch", "partitions"),
    ),
    "offsets.committed": Kind(
        "offsets are in the log; with a producer id they count only when its transaction commits",
        ("group", "offsets"),
        ("producer_id", "producer_epoch"),
    ),
    "transaction.state": Kind(
        "a transaction went from one state to another; `partitions` are those in it before it was completed",
        ("transactional_id", "from", "to", "producer_id", "producer_epoch", "partitions", "timeout_ms"),
    ),
    "transaction.marker": Kind(
        "the end of a transaction was written to one of its partitions, or could not be",
        ("topic", "partition", "producer_id", "producer_epoch", "committed"),
        ("error",),
    ),
    "timeout": Kind(
        "time has run out for somebody; what follows from it follows in the log",
        ("what",),
        ("group", "member", "transactional_id", "producer_id", "producer_epoch", "timeout_ms"),
    ),
    "rule": Kind("a rule of the test kit acted on a request", ("rule", "action", "api")),
}


class Events:
    """The log of one cluster. Sinks are called in order, on the cluster's loop."""

    __slots__ = ("_now_ms", "_seq", "sinks")

    def __init__(self, now_ms: Callable[[], int], sinks: Iterable[Sink] = ()) -> None:
        self._now_ms = now_ms
        self._seq = 0
        self.sinks = list(sinks)

    def of_node(self, node_id: int) -> NodeEvents:
        """Where one node's events go."""
        return NodeEvents(self, node_id)

    def emit(self, node: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Take in an event."""
        event: Event = {"seq": self._seq, "time": self._now_ms(), "node": node, "kind": kind, **fields}
        self._seq += 1
        for sink in self.sinks:
            sink(event)


class NodeEvents:
    """The log as one node writes to it."""

    __slots__ = ("_events", "node")

    def __init__(self, events: Events, node: int) -> None:
        self._events = events
        self.node = node

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Something happened here. `from_` is the field `from`, which Python does not allow as a name."""
        if "from_" in fields:
            fields["from"] = fields.pop("from_")
        self._events.emit(self.node, kind, fields)


def partition_map(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Partitions as an event has them."""
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


# Sinks


class EventFile:
    """A file of JSON lines; each is written whole and at once: a crash loses no event, and a reader sees all."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - it is open as long as the cluster

    def __call__(self, event: Event) -> None:
        """Write an event down."""
        self._file.write(to_line(event))

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecentEvents:
    """The last events, for tests."""

    def __init__(self, most: int = 10_000) -> None:
        self._events: deque[Event] = deque(maxlen=most)

    def __call__(self, event: Event) -> None:
        """Keep an event, and forget the oldest if there are too many."""
        self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        """Forget them."""
        self._events.clear()


def log_event(event: Event) -> None:
    """A sink for people: the events as lines of the program's log, at level DEBUG."""
    log.debug("%s", for_people(event))


def to_line(event: Event) -> str:
    """An event as a line of a file."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"


def for_people(event: Event) -> str:
    """An event as a line to read: the kind first, then what is in it."""
    rest = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in ENVELOPE)
    return f"node {event['node']} {event['kind']:<20} {rest}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{topic}[{' '.join(map(str, indexes))}]" for topic, indexes in value.items()) or "nothing"
    if isinstance(value, list):
        return ",".join(
            f"{each['topic']}-{each['partition']}@{each['offset']}" if isinstance(each, dict) else str(each)
            for each in value
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
