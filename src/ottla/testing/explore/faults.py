"""The faults that the explorer injects: what each does to a request or to the cluster, and where it can happen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.error_codes import ErrorCode
from ottla.testing.control import cluster_changes
from ottla.testing.control.exchange import cut_response, delay_response, lose_response
from ottla.testing.control.partition_errors import requested_partitions
from ottla.testing.control.rules import NOT_HANDLED
from ottla.testing.explore.points import API_NAMES, COORDINATOR
from ottla.testing.explore.possible_errors import DESTRUCTIVE, is_fatal, possible_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.control.exchange import Exchange
    from ottla.testing.explore.points import Point

THROTTLE_MS = 300
ERROR = "error"
RETRIABLE_ERROR, FATAL_ERROR = "retriable-error", "fatal-error"
_GROUP_APIS = frozenset(
    {
        *("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch"),
        *("ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat"),
    }
)
_TRANSACTION_APIS = frozenset({"Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"})
_WORK_APIS = frozenset({"Produce", "Fetch", "OffsetCommit"})
"""Requests that an application sends while it processes records."""
_LEADER_APIS = frozenset({"Produce", "Fetch", "ListOffsets"})
_RESTART_APIS = _GROUP_APIS | _TRANSACTION_APIS | _LEADER_APIS | {"Metadata", "InitProducerId", "FindCoordinator"}


_EVICTED = frozenset({"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_MEMBER_EPOCH", "STALE_MEMBER_EPOCH"})
_FENCED = frozenset({"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})


class UnknownFaultError(ValueError):
    """A fault that does not exist; the message lists the faults."""


class Traits(NamedTuple):
    """What the clean run of a test used; some faults need it."""

    nodes: int = 1
    groups: bool = False
    transactions: bool = False


class Injection(NamedTuple):
    """A request at which a fault happens, on the cluster's event loop."""

    cluster: ControlledCluster
    exchange: Exchange
    late_seconds: float


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault. `apply` returns the response to send, None for none, or NOT_HANDLED to let the broker respond.

    `can_happen` tells where the fault makes sense, and `reported` whether the client library may have to report it to
    the application: then a run passes also if the application raises. Kinds with `destroys_records` are explored only
    if they are chosen by name, because no application passes after its records are gone.
    """

    name: str
    meaning: str
    apply: Callable[[Injection], Any]
    can_happen: Callable[[Point, Traits], bool]
    reported: bool = False
    destroys_records: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject: a kind, or an error code."""

    kind: FaultKind
    code: ErrorCode | None = None

    def __str__(self) -> str:
        return self.kind.name if self.code is None else f"{self.kind.name}:{self.code.name}"

    def reported_at(self, point: Point) -> bool:
        """Return whether the client library may have to report this fault to the application."""
        return self.kind.reported if self.code is None else is_fatal(point.api, self.code)

    def describe(self, point: Point) -> str:
        """Return the fault at this point in words."""
        if self.code is not None:
            return f"the broker responds to {point} with {self.code.name}"
        return self.kind.meaning.format(point=point)

    def apply(self, injection: Injection) -> Any:
        """Inject the fault at a request."""
        if self.code is None:
            return self.kind.apply(injection)
        # Make the error true: a broker that reports an unknown member or a fenced producer has evicted or fenced it.
        if self.code.name in _EVICTED:
            _evict_members(injection)
        elif self.code.name in _FENCED:
            _fence_producers(injection)
        response = injection.exchange.error_response(injection.exchange.request, self.code)
        return NOT_HANDLED if response is None else injection.exchange.encode(response)


# Connections and responses


def _disconnect(injection: Injection) -> Any:
    injection.exchange.close(abort=True)


def _lose_response(injection: Injection) -> Any:
    return lose_response(injection.exchange)


def _cut_response(injection: Injection) -> Any:
    return cut_response(injection.exchange)


def _delay_response(injection: Injection) -> Any:
    return delay_response(injection.exchange, injection.cluster.rules.clock, injection.late_seconds)


def _throttle(injection: Injection) -> Any:
    def edit(response: Any) -> Any:
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = THROTTLE_MS
        return response

    return injection.exchange.serve(injection.exchange.request, edit)


# The cluster


def _move_leaders(injection: Injection) -> Any:
    topics = {topic for topic, _ in requested_partitions(injection.exchange)}
    known = topics.intersection(injection.cluster.topics())
    if known:
        injection.cluster.shuffle_leaders(*sorted(known))
    return NOT_HANDLED


def _move_coordinators(injection: Injection) -> Any:
    injection.cluster.rehash_coordinators()
    return NOT_HANDLED


def _restart_node(injection: Injection) -> Any:
    injection.cluster.restart_node_soon(injection.exchange.received.node)


def _recreate_topics(injection: Injection) -> Any:
    topics = {topic for topic, _ in requested_partitions(injection.exchange)}
    for topic in sorted(topics.intersection(injection.cluster.topics())):
        injection.cluster.call(partial(cluster_changes.recreate_topic, name=topic))
    return NOT_HANDLED


# Groups and transactions


def _groups(injection: Injection) -> list[str]:
    group_id = getattr(injection.exchange.request, "group_id", None)
    groups = [group.group_id for group in injection.cluster.groups() if group.members]
    return [group for group in groups if group_id in (None, "", group)]


def _evict_members(injection: Injection) -> Any:
    for group in _groups(injection):
        member = getattr(injection.exchange.request, "member_id", None) or None
        try:
            injection.cluster.expire_member(group, member)
        except KeyError:
            continue  # the member has not joined yet
    return NOT_HANDLED


def _rebalance(injection: Injection) -> Any:
    for group in _groups(injection):
        injection.cluster.call(partial(cluster_changes.start_rebalance, group_id=group))
    return NOT_HANDLED


def _open_transactions(injection: Injection) -> list[str]:
    return [
        transaction.transactional_id
        for transaction in injection.cluster.transactions()
        if transaction.state == "Ongoing"
    ]


def _fence_producers(injection: Injection) -> Any:
    for transactional_id in _open_transactions(injection):
        injection.cluster.call(partial(cluster_changes.fence_producer, transactional_id=transactional_id))
    return NOT_HANDLED


def _time_out_transactions(injection: Injection) -> Any:
    for transactional_id in _open_transactions(injection):
        injection.cluster.expire_transaction(transactional_id)
    return NOT_HANDLED


def _anywhere(point: Point, traits: Traits) -> bool:
    return True


def _in_group(point: Point, traits: Traits) -> bool:
    return traits.groups and point.api in _GROUP_APIS | _WORK_APIS


def _in_transaction(point: Point, traits: Traits) -> bool:
    return traits.transactions and point.api in _TRANSACTION_APIS


KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("disconnect", "the connection breaks before {point} is handled", _disconnect, _anywhere),
        FaultKind(
            "response-lost",
            "the broker handles {point} and the connection breaks before the response",
            _lose_response,
            _anywhere,
        ),
        FaultKind("response-cut", "the connection breaks within the response to {point}", _cut_response, _anywhere),
        FaultKind("response-late", "the response to {point} is late", _delay_response, _anywhere),
        FaultKind(
            "throttled",
            "the broker throttles the client at {point}",
            _throttle,
            lambda point, _: point.api != "ApiVersions",
        ),
        FaultKind(
            "node-restarted",
            "the node restarts when it receives {point}",
            _restart_node,
            lambda point, _: point.api in _RESTART_APIS,
        ),
        FaultKind(
            "leader-moved",
            "another node becomes the leader before {point} is handled",
            _move_leaders,
            lambda point, traits: traits.nodes > 1 and point.api in _LEADER_APIS,
        ),
        FaultKind(
            "coordinator-moved",
            "another node becomes the coordinator before {point} is handled",
            _move_coordinators,
            lambda point, traits: traits.nodes > 1 and point.role == COORDINATOR,
        ),
        FaultKind("rebalance", "the group rebalances when {point} arrives", _rebalance, _in_group, reported=True),
        FaultKind(
            "member-evicted",
            "the coordinator evicts the members when the broker receives {point}",
            _evict_members,
            _in_group,
            reported=True,
        ),
        FaultKind(
            "producer-fenced",
            "another producer with the same transactional id fences the producer before {point} is handled",
            _fence_producers,
            _in_transaction,
            reported=True,
        ),
        FaultKind(
            "transaction-timed-out",
            "the transaction times out before {point} is handled",
            _time_out_transactions,
            _in_transaction,
            reported=True,
        ),
        FaultKind(
            "topic-recreated",
            "the topic is deleted and created again, empty, before {point} is handled",
            _recreate_topics,
            lambda point, _: point.api in _LEADER_APIS,
            reported=True,
            destroys_records=True,
        ),
    )
}
_ERROR_KIND = FaultKind(ERROR, "the broker responds to {point} with an error", lambda _: NOT_HANDLED, _anywhere)
FAULTS = (*KINDS, ERROR, RETRIABLE_ERROR, FATAL_ERROR, f"{ERROR}:CODE")
"""The names that `faults=` takes; the groups of errors stand for all of them."""


def parse_fault(text: str) -> Fault:
    """Return the fault with this name, such as `disconnect` or `error:NOT_LEADER_OR_FOLLOWER`."""
    if text in KINDS:
        return Fault(KINDS[text])
    name, colon, code = text.partition(":")
    if name == ERROR and colon:
        if code in ErrorCode.__members__ and code != "NONE":
            return Fault(_ERROR_KIND, ErrorCode[code])
        raise UnknownFaultError(f"Kafka has no error {code!r}; use a name such as NOT_LEADER_OR_FOLLOWER")
    raise UnknownFaultError(f"there is no fault {text!r}; the faults are {', '.join(FAULTS)}")


class FaultSelection:
    """The faults that a test chose by name; all that keep its records if it chose none."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        for name in self._names or ():
            if name not in (ERROR, RETRIABLE_ERROR, FATAL_ERROR):
                parse_fault(name)

    def faults_at(self, point: Point, traits: Traits) -> list[Fault]:
        """Return the chosen faults that can happen at a point."""
        faults = [Fault(kind) for kind in KINDS.values() if self._chooses(kind) and kind.can_happen(point, traits)]
        listed = {error.code: error.fatal for error in possible_errors(point.api)}
        if self._names is not None:  # errors by name are injected at any API
            chosen = [parse_fault(name) for name in sorted(self._names) if name.startswith(f"{ERROR}:")]
            listed |= {fault.code: False for fault in chosen if fault.code is not None and fault.code not in listed}
        faults += [Fault(_ERROR_KIND, code) for code, fatal in listed.items() if self._chooses_error(code, fatal=fatal)]
        return faults

    def _chooses(self, kind: FaultKind) -> bool:
        return not kind.destroys_records if self._names is None else kind.name in self._names

    def _chooses_error(self, code: ErrorCode, *, fatal: bool) -> bool:
        if self._names is None:
            return code.name not in DESTRUCTIVE
        group = FATAL_ERROR if fatal else RETRIABLE_ERROR
        return bool(self._names & {ERROR, group, f"{ERROR}:{code.name}"})


def check_apis(apis: Iterable[str] | None) -> frozenset[str] | None:
    """Return the names of the chosen APIs; ValueError with the known ones if Kafka does not have one of them."""
    if apis is None:
        return None
    chosen = frozenset([apis] if isinstance(apis, str) else apis)
    unknown = sorted(chosen - API_NAMES)
    if unknown:
        raise ValueError(f"Kafka has no API {unknown[0]!r}; the APIs are {', '.join(sorted(API_NAMES))}")
    return chosen
