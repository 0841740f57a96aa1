"""Injects the faults of a schedule into a cluster, and records the points that a run visits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ottla.events import for_people
from ottla.protocol.api_table import ApiKey
from ottla.testing.control.matching import RequestMatch
from ottla.testing.control.partition_errors import requested_partitions
from ottla.testing.control.rules import NOT_HANDLED
from ottla.testing.explore.faults import Injection
from ottla.testing.explore.outcome import TimelineEntry
from ottla.testing.explore.points import PointCounter, Visit

if TYPE_CHECKING:
    from ottla.events import Event
    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.control.exchange import Exchange
    from ottla.testing.control.rules import Rule
    from ottla.testing.explore.schedule import Schedule

MAX_VISITS = 20_000
TIMELINE_EVENTS = 60
TIMELINE_KINDS = ("request", "response", "member", "timeout", "group", "transaction", "leader")


class Injector:
    """One run: a rule in front of all others that counts requests and applies the schedule."""

    def __init__(self, cluster: ControlledCluster, schedule: Schedule, late_seconds: float) -> None:
        self._cluster = cluster
        self.schedule = schedule
        self.started = time.monotonic()
        self._late_seconds = late_seconds
        self._counter = PointCounter()
        self.visits: list[Visit] = []
        self.injected: dict[int, int] = {}
        """Index of a fault in the schedule -> time at which it happened."""
        self.failure: Exception | None = None
        self._rule: Rule = cluster.rules.add(RequestMatch(), "explore", None, self._act)

    def remove(self) -> None:
        """End the run: inject nothing more."""
        self._rule.remove()

    def _act(self, _: Rule, exchange: Exchange) -> Any:
        received = exchange.received
        partition = None
        if received.api_key == ApiKey.PRODUCE:
            partitions = list(requested_partitions(exchange))
            if len(partitions) == 1:
                partition = f"{partitions[0][0]}-{partitions[0][1]}"
        points = self._counter.count(received.api, partition)
        if len(self.visits) < MAX_VISITS:
            situation = self._situation(exchange)
            self.visits.append(Visit(points[-1], situation, received.time_ms, received.client_id, received.node))
        result: Any = NOT_HANDLED
        for index, planned in enumerate(self.schedule.faults):
            if planned.point in points and index not in self.injected:
                self.injected[index] = received.time_ms
                if result is NOT_HANDLED:
                    result = planned.fault.apply(Injection(self._cluster, exchange, self._late_seconds))
        return result

    def _situation(self, exchange: Exchange) -> str:
        """Return the state that decides how a request is handled; requests in the same state behave alike."""
        request, api = exchange.request, exchange.received.api_key
        if api == ApiKey.PRODUCE:
            return "transactional" if getattr(request, "transactional_id", None) else f"acks {request.acks}"
        if api == ApiKey.FETCH:
            return "first" if getattr(request, "session_epoch", -1) <= 0 else "session"
        group_id = getattr(request, "group_id", None)
        if isinstance(group_id, str) and group_id:
            return self._cluster.call(lambda runtime: _group_state(runtime, group_id))
        return ""

    def timeline(self) -> list[TimelineEntry]:
        """Return the requests, responses and state changes around the faults, with the faults in between."""
        entries = [
            TimelineEntry(event["time"], describe(event), str(event.get("api", "")), str(event.get("client_id") or ""))
            for event in self._cluster.events()
            if event["kind"].startswith(TIMELINE_KINDS)
        ]
        for index, planned in enumerate(self.schedule.faults):
            time_ms = self.injected.get(index)
            if time_ms is not None:
                fault = TimelineEntry(time_ms, planned.describe(), planned.point.api, fault=True)
                entries.insert(_position(entries, fault), fault)
        return _around_faults(entries)


def describe(event: Event) -> str:
    """Return an event in a line: an arrow to the broker for a request, from the broker for a response."""
    if event["kind"] not in ("request", "response"):
        return for_people(event)
    arrow = "->" if event["kind"] == "request" else "<-"
    words = [f"connection {event['connection']} {arrow} node {event['node']}: {event['api']} v{event['version']}"]
    words += [str(event[name]) for name in ("group", "transactional_id") if name in event]
    for topic, indexes in event.get("partitions", {}).items():
        words.append(f"{topic}-{'/'.join(map(str, indexes))}" if indexes else topic)
    words += [f"@{item['offset']}" for item in event.get("offsets", ())]
    words += event.get("errors", ())
    return " ".join(words)


def _position(entries: list[TimelineEntry], fault: TimelineEntry) -> int:
    """Return where a fault belongs: after the request at which it happened."""
    position = 0
    for index, entry in enumerate(entries):
        if entry.time_ms < fault.time_ms or (
            entry.time_ms == fault.time_ms and entry.api == fault.api and " -> " in entry.text
        ):
            position = index + 1
    return position


def _around_faults(entries: list[TimelineEntry]) -> list[TimelineEntry]:
    """Return at most TIMELINE_EVENTS entries: those around the faults, else the last ones."""
    faults = [index for index, entry in enumerate(entries) if entry.fault]
    if len(entries) <= TIMELINE_EVENTS or not faults:
        return entries[-TIMELINE_EVENTS:]
    before = TIMELINE_EVENTS // 4
    start = max(0, faults[0] - before)
    end = max(start + TIMELINE_EVENTS, faults[-1] + before)
    chosen = entries[start:end]
    if len(chosen) <= 2 * TIMELINE_EVENTS:
        return chosen
    kept = {index for fault in faults for index in range(fault - before, fault + before)}
    return [entry for index, entry in enumerate(entries) if index in kept]


def _group_state(runtime: Any, group_id: str) -> str:
    for node in runtime.nodes.values():
        for shard in node.groups.shards():
            group = shard.groups.get(group_id)
            if group is not None:
                return str(group.state_name)
    return "no group"
