"""Points: the requests of a test at which a fault can happen, named so that the next run finds the same one.

A point is the nth request of an API, for Produce of one partition: `Produce[orders-0]#2`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from ottla.protocol.api import APIS

PRODUCER, CONSUMER, COORDINATOR, ADMIN, CLIENT = "producer", "consumer", "coordinator", "admin", "client"

_ROLES = {
    PRODUCER: ("Produce",),
    CONSUMER: ("Fetch", "ListOffsets", "OffsetForLeaderEpoch", "ShareFetch", "ShareAcknowledge"),
    COORDINATOR: (
        *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "OffsetFetch"),
        *("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"),
        *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
    ),
    CLIENT: ("ApiVersions", "Metadata", "FindCoordinator", "SaslHandshake", "SaslAuthenticate"),
}
ROLE_OF_API = {api: role for role, apis in _ROLES.items() for api in apis}
"""The role of a connection by the API of its request; APIs that are not listed are an admin client's."""
API_NAMES = frozenset(api.name for api in APIS)
_TEXT = re.compile(r"(?P<api>[A-Za-z]+)(?:\[(?P<partition>[^\]]+)\])?#(?P<ordinal>[0-9]{1,9})\Z")


class Point(NamedTuple):
    """The nth request of an API in a run, counted from 1; with `partition`, the nth one that names only that."""

    api: str
    ordinal: int
    partition: str | None = None

    @property
    def role(self) -> str:
        """The role of the connection that sends the request."""
        return ROLE_OF_API.get(self.api, ADMIN)

    def __str__(self) -> str:
        partition = "" if self.partition is None else f"[{self.partition}]"
        return f"{self.api}{partition}#{self.ordinal}"


def parse_point(text: str) -> Point:
    """Return the point with this text form; ValueError with the valid form if there is none."""
    match = _TEXT.match(text)
    if match is None or int(match["ordinal"]) < 1:
        raise ValueError(f"{text!r} is not a point; write the nth request of an API, such as Produce#1")
    return Point(check_api(match["api"]), int(match["ordinal"]), match["partition"])


def check_api(api: str) -> str:
    """Return the name of an API; ValueError with the known names if Kafka has no such API."""
    if api not in API_NAMES:
        raise ValueError(f"Kafka has no API {api!r}; the APIs are {', '.join(sorted(API_NAMES))}")
    return api


class PointCounter:
    """Numbers the requests of one run."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()

    def count(self, api: str, partition: str | None) -> list[Point]:
        """Return the points that a request is: without its partition, and with it."""
        points = [self._next(api, None)]
        if partition is not None:
            points.append(self._next(api, partition))
        return points

    def _next(self, api: str, partition: str | None) -> Point:
        self._counts[api, partition] += 1
        return Point(api, self._counts[api, partition], partition)


class Visit(NamedTuple):
    """A request that arrived at a point. `situation` is the broker state that decides how it is handled."""

    point: Point
    situation: str
    time_ms: int
    client_id: str | None
    node: int

    @property
    def kind(self) -> tuple[str, str, str | None, str]:
        """Points of the same kind behave alike: same role, API, partition and situation."""
        return self.point.role, self.point.api, self.point.partition, self.situation
