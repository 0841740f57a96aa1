"""Parse lines of ottla's event log: the kinds of `ottla.events` become events of the analysis table."""

from __future__ import annotations

import json
import operator
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.event import CLIENT, Event, partition_name

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "ottla-events"

REQUESTS: Final = {
    "JoinGroup": "group.join",
    "Heartbeat": "group.heartbeat",
    "ConsumerGroupHeartbeat": "group.heartbeat",
    "EndTxn": "txn.end",
    "AddPartitionsToTxn": "txn.add",
    "AddOffsetsToTxn": "txn.add",
    "InitProducerId": "txn.init",
    "Fetch": "fetch",
    "OffsetCommit": "commit",
}
"""Requests that have an event name; the others are `request`."""

KINDS: Final = {
    "group.state": "group.state",
    "group.epoch": "group.state",
    "group.target": "group.target",
    "group.deleted": "group.state",
    "member.joined": "group.join",
    "member.left": "group.left",
    "member.assigned": "group.assigned",
    "member.revoked": "group.released",
    "offsets.committed": "commit",
    "transaction.state": "txn.state",
    "transaction.marker": "txn.marker",
    "leader.changed": "leader",
    "topic.created": "topic",
    "topic.deleted": "topic",
    "coordinator.loaded": "coordinator",
    "coordinator.failed": "coordinator",
    "coordinator.unloaded": "coordinator",
}
STATES: Final = {
    "group.epoch": "Epoch",
    "group.deleted": "Dead",
    "topic.created": "created",
    "topic.deleted": "deleted",
    "coordinator.loaded": "loaded",
    "coordinator.failed": "failed",
    "coordinator.unloaded": "unloaded",
    "connection.opened": "opened",
    "connection.closed": "closed",
    "connection.refused": "refused",
    "node.started": "started",
    "node.stopped": "stopped",
}


def looks_like(line: str) -> bool:
    """Return whether a line begins like one of the event log."""
    return line.startswith('{"seq":')


def parse(line: str, base: Event) -> list[Event] | None:
    """Return the events of a line, or None if it is no line of an event log."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
        kind, time_ms, node = fields["kind"], int(fields["time"]), fields["node"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return list(_events(kind, fields, base._replace(format=FORMAT, time_ms=time_ms, host=f"node {node}")))


def _events(kind: str, fields: dict[str, Any], base: Event) -> Iterator[Event]:
    error = fields.get("error")
    errors = fields.get("errors")
    if errors:
        error = ", ".join(errors)
    here = base._replace(
        event=_name(kind, fields),
        client=fields.get("client_id"),
        api=fields.get("api"),
        request=_request(fields),
        group=fields.get("group"),
        protocol=fields.get("type"),
        member=fields.get("member"),
        epoch=fields.get("leader_epoch", fields.get("epoch")),
        topic=fields.get("topic"),
        partition=fields.get("partition"),
        partitions=_partitions(fields.get("partitions")),
        pending=_partitions(fields.get("pending")),
        transactional_id=fields.get("transactional_id"),
        producer_id=fields.get("producer_id"),
        producer_epoch=fields.get("producer_epoch"),
        state=STATES.get(kind, fields.get("to", fields.get("reason", fields.get("what")))),
        duration_ms=_milliseconds(fields),
        error=error,
        text=base.text,
    )
    if "committed" in fields:
        here = here._replace(state="commit" if fields["committed"] else "abort")
    if kind == "leader.changed":
        here = here._replace(host=f"node {fields['leader']}", state=f"from node {fields.get('previous')}")
    elif kind == "timeout":
        here = here._replace(event="txn.timeout" if fields.get("what") == "transaction" else "timeout")
    offsets = fields.get("offsets") or []
    if kind == "request" and here.api in ("Fetch", "OffsetCommit"):
        yield from _client_requests(here, fields, offsets)
    elif offsets and kind == "offsets.committed":
        for offset in offsets:
            yield here._replace(topic=offset["topic"], partition=offset["partition"], offset=offset["offset"])
    else:
        yield here


def _client_requests(here: Event, fields: dict[str, Any], offsets: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield the request as an event of its client, then one event for each partition and offset in it."""
    here = here._replace(side=CLIENT, client=here.client or f"connection {fields.get('connection')}")
    yield here
    for offset in offsets:
        yield here._replace(
            topic=offset["topic"],
            partition=offset["partition"],
            offset=offset["offset"],
            partitions=None,
            request=None,
        )


def _name(kind: str, fields: dict[str, Any]) -> str:
    if kind == "request":
        return REQUESTS.get(fields.get("api", ""), "request")
    if kind.startswith("connection."):
        return "connection"
    if kind == "member.left" and fields.get("reason") not in (None, "left"):
        return "group.fenced"
    return KINDS.get(kind, kind if kind == "response" else "log")


def _request(fields: dict[str, Any]) -> str | None:
    if "correlation_id" not in fields:
        return None
    return f"{fields['node']}/{fields.get('connection')}/{fields['correlation_id']}"


def _milliseconds(fields: dict[str, Any]) -> int | None:
    value = fields.get("timeout_ms", fields.get("ms"))
    return None if value is None else round(value)


def _partitions(value: Any) -> list[str] | None:
    if value is None or isinstance(value, int):  # `topic.created` has the number of partitions
        return None
    return [partition_name(topic, operator.index(index)) for topic, indexes in value.items() for index in indexes]
