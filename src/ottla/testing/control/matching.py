"""Which requests a rule applies to, and the values that tests write for APIs, error codes and durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.protocol.api import APIS, find_api
from ottla.protocol.error_codes import ErrorCode
from ottla.testing.control.partition_errors import requested_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ottla.testing.control.exchange import Exchange
    from ottla.testing.control.requests import ReceivedRequest

Api = str | int
"""An API by name (`"Fetch"`) or key (`1`)."""
MAX_SECONDS = 1e9


@dataclass(slots=True, frozen=True)
class RequestMatch:
    """The requests that a rule applies to; a condition that is None matches every request."""

    apis: frozenset[int] | None = None
    node: int | None = None
    topic: str | None = None
    partitions: frozenset[int] | None = None
    client_id: str | None = None
    where: Callable[[ReceivedRequest], bool] | None = None

    def matches(self, exchange: Exchange) -> bool:
        """Return whether the rule applies to this request."""
        received = exchange.received
        if self.apis is not None and received.api_key not in self.apis:
            return False
        if self.node is not None and received.node != self.node:
            return False
        if self.client_id is not None and received.client_id != self.client_id:
            return False
        if self.topic is not None and not any(
            self.covers(topic, index) for topic, index in requested_partitions(exchange)
        ):
            return False
        return self.where is None or self.where(received)

    def covers(self, topic: str, index: int | None) -> bool:
        """Return whether a partition is selected; index None stands for a topic as a whole."""
        if self.topic is not None and topic != self.topic:
            return False
        return self.partitions is None or index is None or index in self.partitions

    @property
    def selects_partitions(self) -> bool:
        """Whether the rule applies to single partitions of a request, not to the whole request."""
        return self.topic is not None


def check_conditions(
    node: object, topic: object, partition: object, client_id: object, times: object, where: object
) -> None:
    """Raise ValueError if a condition of `on()` has the wrong type, or partitions are given without a topic."""
    if partition is not None and topic is None:
        raise ValueError("partition= requires topic=")
    if times is not None and (not isinstance(times, int) or times < 1):
        raise ValueError("times= must be 1 or more, or None for every request")
    for name, value, kind in (("node", node, int), ("topic", topic, str), ("client_id", client_id, str)):
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name}= must be of type {kind.__name__}, not {value!r}")
    if where is not None and not callable(where):
        raise ValueError("where= must be a function of the request")


def partition_set(partition: int | Collection[int] | None) -> frozenset[int] | None:
    """Return one or several partition indexes as a set; ValueError if they are not numbers."""
    if partition is None:
        return None
    partitions = frozenset([partition] if isinstance(partition, int | str) else partition)
    if not all(isinstance(index, int) for index in partitions):
        raise ValueError(f"partition= must be a number or several numbers, not {partition!r}")
    return partitions


def api_keys(api: Api | Collection[Api] | None) -> frozenset[int] | None:
    """Return the keys of APIs given by name or key, one or several; None means all APIs."""
    if api is None:
        return None
    if isinstance(api, str | int):
        return frozenset([_api_key(api)])
    return frozenset(_api_key(name_or_key) for name_or_key in api)


def _api_key(api: Api) -> int:
    if isinstance(api, int):
        if find_api(api) is not None:
            return int(api)
    elif isinstance(api, str):
        name = api.replace("_", "").replace("-", "").lower()
        for known in APIS:
            if known.name.lower() == name:
                return known.key
    raise ValueError(f"Kafka has no API {api!r}; use a name such as Fetch, or a key such as 1")


def error_code(code: ErrorCode | int | str) -> ErrorCode:
    """Return the error code with this name or number; ValueError if Kafka has none."""
    try:
        return ErrorCode[code] if isinstance(code, str) else ErrorCode(code)
    except (KeyError, ValueError):
        raise ValueError(f"Kafka has no error {code!r}; use a name such as NOT_LEADER_OR_FOLLOWER") from None


def check_seconds(seconds: float) -> float:
    """Return the duration; ValueError if it is negative, not finite or not a number."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < MAX_SECONDS:
        raise ValueError(f"{seconds!r} is not a number of seconds")
    return seconds


def check_function(function: object) -> None:
    """Raise ValueError if this is not callable."""
    if not callable(function):
        raise ValueError(f"{function!r} is not a function")
