"""The event log: one object for each event that explains what happened in a cluster, in order.

The names of events and fields are declared here and stay stable; docs/events.md is made from this table. Code that
emits events holds a `NodeEvents`; without an event log it is `NO_EVENTS`, which ignores them. Sinks decide where events
go: a file of JSON lines, a bounded memory for tests, or log lines.
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
    "partitions": "map of topic name to list of partition indexes (of a streams group: subtopology to tasks)",
    "pending": "map of topic name to partition numbers that the member has yet to revoke",
    "port": "int: the client's port",
    "previous": "int: node id of the leader before, -1 for none",
    "principal": "string: the principal, as in ACLs (User:alice)",
    "producer_epoch": "int",
    "producer_id": "int",
    "reason": "string: why",
    "rule": "int: number of the rule",
    "schemas": "list of strings: ids or guids of the registry's schemas that produced records name, each once",
    "timeout_ms": "int",
    "to": "string: the state after",
    "topic": "string",
    "topic_id": "string: as Kafka prints ids",
    "transactional_id": "string",
    "type": "string: group type: classic, consumer, share or streams",
    "version": "int: version of the request",
    "what": "string: which timeout: session, rebalance, join, sync, transaction",
}


class Kind(NamedTuple):
    """One kind of event: when it is written, the fields that it always has, and those that it may have."""

    meaning: str
    always: tuple[str, ...]
    sometimes: tuple[str, ...] = ()


KINDS: Final[dict[str, Kind]] = {
    "node.started": Kind("a node accepts clients", ()),
    "node.stopped": Kind("a node stopped accepting clients", ("reason",)),
    "connection.opened": Kind("a client connected", ("connection", "listener", "host", "port")),
    "connection.closed": Kind(
        "a connection ended; `reason` is given where the broker ended it",
        ("connection", "host", "port", "client_id", "principal"),
        ("reason",),
    ),
    "connection.refused": Kind("a connection was refused", ("listener", "host", "port", "reason")),
    "request": Kind(
        "a request was read; groups, transactions and partitions that it names are fields",
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
            "schemas",
        ),
    ),
    "response": Kind(
        "the response is written to the connection (a produce with acks=0 has none)",
        ("connection", "api", "version", "correlation_id", "client_id", "bytes", "ms"),
        ("errors",),
    ),
    "topic.created": Kind("a topic was created", ("topic", "topic_id", "partitions")),
    "topic.deleted": Kind("a topic was deleted", ("topic", "topic_id")),
    "leader.changed": Kind(
        "a partition has another leader, or the same leader in a new epoch",
        ("topic", "partition", "leader", "previous", "leader_epoch"),
    ),
    "coordinator.loaded": Kind(
        "this node loaded a partition of __consumer_offsets or __transaction_state and is its coordinator",
        ("topic", "partition", "leader_epoch"),
    ),
    "coordinator.failed": Kind(
        "this node cannot load a partition of an internal topic and answers NOT_COORDINATOR for its keys; "
        "`offset` is that of the first record that cannot be loaded",
        ("topic", "partition", "leader_epoch", "offset", "reason"),
    ),
    "coordinator.unloaded": Kind("this node is no longer the coordinator of a partition", ("topic", "partition")),
    "group.state": Kind(
        "a group changed its state; `epoch` is its generation or group epoch now",
        ("group", "type", "from", "to", "epoch"),
    ),
    "group.epoch": Kind("a group's epoch was bumped: members or topics changed", ("group", "type", "epoch")),
    "group.target": Kind(
        "the target assignment of a member of a consumer group was computed, for the group's epoch; of a streams "
        "group, its active tasks by subtopology",
        ("group", "type", "member", "epoch", "partitions"),
    ),
    "group.deleted": Kind("a group was deleted", ("group", "type")),
    "member.joined": Kind(
        "a member joined; also a static member that came back under a new id",
        ("group", "type", "member", "instance", "client_id", "host"),
    ),
    "member.left": Kind(
        "a member left or was evicted; `reason`: left, session timeout, rebalance timeout, join timeout, sync "
        "timeout, replaced, group full",
        ("group", "type", "member", "instance", "reason"),
    ),
    "member.assigned": Kind(
        "all that a member owns from now on; in a classic group as the leader assigned it, in a streams group its "
        "active tasks by subtopology",
        ("group", "type", "member", "epoch", "partitions"),
        ("pending",),
    ),
    "member.revoked": Kind(
        "a member of a consumer or streams group confirmed that it revoked these partitions or tasks",
        ("group", "type", "member", "epoch", "partitions"),
    ),
    "offsets.committed": Kind(
        "offsets are in the log; with a producer id they take effect when its transaction commits",
        ("group", "offsets"),
        ("producer_id", "producer_epoch"),
    ),
    "transaction.state": Kind(
        "a transaction changed its state; `partitions` are those in it before it was completed",
        ("transactional_id", "from", "to", "producer_id", "producer_epoch", "partitions", "timeout_ms"),
    ),
    "transaction.marker": Kind(
        "the marker of a transaction was written to one of its partitions, or failed",
        ("topic", "partition", "producer_id", "producer_epoch", "committed"),
        ("error",),
    ),
    "timeout": Kind(
        "a session, rebalance, join, sync or transaction timed out; its consequences follow as events",
        ("what",),
        ("group", "member", "transactional_id", "producer_id", "producer_epoch", "timeout_ms"),
    ),
    "rule": Kind("a rule of the test kit acted on a request", ("rule", "action", "api")),
}


class Events:
    """The event log of one cluster. Calls its sinks in order, on the cluster's loop."""

    __slots__ = ("_now_ms", "_seq", "sinks")
    enabled = True
    """False for the null log; callers check it only before work that an event needs."""

    def __init__(self, now_ms: Callable[[], int], sinks: Iterable[Sink] = ()) -> None:
        self._now_ms = now_ms
        self._seq = 0
        self.sinks = list(sinks)

    def of_node(self, node_id: int) -> NodeEvents:
        """Return the event log of one node."""
        return NodeEvents(self, node_id)

    def emit(self, node: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Number an event and pass it to the sinks."""
        event: Event = {"seq": self._seq, "time": self._now_ms(), "node": node, "kind": kind, **fields}
        self._seq += 1
        for sink in self.sinks:
            sink(event)


class NodeEvents:
    """The event log as one node writes to it."""

    __slots__ = ("_events", "node")
    enabled = True

    def __init__(self, events: Events, node: int) -> None:
        self._events = events
        self.node = node

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Write an event. `from_` stands for the field `from`, which is a keyword of Python."""
        if "from_" in fields:
            fields["from"] = fields.pop("from_")
        self._events.emit(self.node, kind, fields)


class _NullEvents(Events):
    """Ignores all events."""

    __slots__ = ()
    enabled = False

    def of_node(self, node_id: int) -> NodeEvents:
        """Return the null log of a node."""
        return NO_EVENTS

    def emit(self, node: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Do nothing."""


class _NullNodeEvents(NodeEvents):
    """Ignores all events."""

    __slots__ = ()
    enabled = False

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Do nothing."""


NO_EVENT_LOG: Final = _NullEvents(lambda: 0)
NO_EVENTS: Final = _NullNodeEvents(NO_EVENT_LOG, 0)


def partition_map(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return partitions by topic, as events have them."""
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes


# Sinks


class EventFile:
    """Appends events to a file, a JSON object per line; each line is written at once, so that a crash loses none."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - it is open as long as the cluster

    def __call__(self, event: Event) -> None:
        """Append an event."""
        self._file.write(to_line(event))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RecentEvents:
    """Keeps the last events in memory, for tests."""

    def __init__(self, most: int = 10_000) -> None:
        self._events: deque[Event] = deque(maxlen=most)

    def __call__(self, event: Event) -> None:
        """Keep an event, and drop the oldest beyond the limit."""
        self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(list(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def clear(self) -> None:
        """Drop all events."""
        self._events.clear()


def log_event(event: Event) -> None:
    """Write an event to the program's log at level DEBUG."""
    log.debug("%s", for_people(event))


def to_line(event: Event) -> str:
    """Return an event as one line of JSON."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"


def for_people(event: Event) -> str:
    """Return an event as text: the node and the kind, then its fields."""
    rest = " ".join(f"{name}={_short(value)}" for name, value in event.items() if name not in ENVELOPE)
    return f"node {event['node']} {event['kind']:<20} {rest}".rstrip()


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{topic}[{' '.join(map(str, indexes))}]" for topic, indexes in value.items()) or "nothing"
    if isinstance(value, list):
        return ",".join(
            f"{item['topic']}-{item['partition']}@{item['offset']}" if isinstance(item, dict) else str(item)
            for item in value
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
