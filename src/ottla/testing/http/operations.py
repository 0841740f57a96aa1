"""The operations of the control API: one table with what each one does, takes and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from ottla.protocol.api import find_api, response_class
from ottla.testing.control.matching import api_keys, check_seconds, error_code
from ottla.testing.control.state import (
    ConnectionState,
    GroupState,
    PartitionState,
    SessionState,
    StoredRecord,
    TransactionState,
)
from ottla.testing.http.explorations import EXPLORATIONS
from ottla.testing.http.json_messages import read_message, to_json
from ottla.testing.http.operation import Field, Operation, OperationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.testing.control.requests import ReceivedRequest
    from ottla.testing.control.rules import Rule, RuleBuilder


class NodeInfo(TypedDict):
    """A node and the address of its first listener."""

    node: int
    address: str


class ClusterInfo(TypedDict):
    """A cluster: id, addresses, topics and the time of its clock."""

    cluster_id: str
    bootstrap: str
    nodes: list[NodeInfo]
    topics: list[str]
    time_ms: int


class TopicInfo(TypedDict):
    """A topic with its partitions."""

    topic: str
    partitions: list[PartitionState]


class RequestInfo(TypedDict):
    """A received request; `request` has the fields of its API's message."""

    time_ms: int
    node: int
    connection: int
    client: str
    client_id: str | None
    api: str
    api_key: int
    version: int
    correlation_id: int
    request: Any


class RuleInfo(TypedDict):
    """A rule with its conditions, and the last ten requests that it acted on."""

    rule: int
    action: str
    api: str | None
    node: int | None
    topic: str | None
    partitions: list[int] | None
    client_id: str | None
    times: int
    hits: int
    active: bool
    requests: list[RequestInfo]


class ReportInfo(TypedDict):
    """A cluster's state and last events as text."""

    text: str


class CoordinatorInfo(TypedDict):
    """The node that coordinates."""

    node: int


class DeletedSegments(TypedDict):
    """The number of segments that were deleted."""

    segments: int


class RecordPosition(TypedDict):
    """The partition and offset of a record."""

    partition: int
    offset: int


T = TypeVar("T")
PATH_TYPES = {"node": "integer", "partition": "integer", "rule": "integer", "exploration": "integer"}
"""The types of path parameters; others are strings."""

ACTIONS = {
    "observe": "count and record the requests, and change nothing",
    "answer": "send `response` in place of the broker's response",
    "error": "respond with `error`; with `topic`, only its (chosen) partitions fail",
    "delay": "wait `seconds` before the request is handled",
    "delay_response": "handle the request, and wait `seconds` before its response is sent",
    "sleep": "hold the request until the rule is woken or removed",
    "drop_response": "handle the request and never respond",
    "drop_connection": "close the connection; with `after_handling`, after the request has been handled",
    "cut": "send the first `bytes` of the response (half of it by default) and close the connection",
    "corrupt": "invert bytes of the response, at `positions` or at a random one",
}

RULE_FIELDS = {
    "action": Field(
        "string",
        "; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items()),
        required=True,
        values=tuple(ACTIONS),
    ),
    "api": Field("string", "name or key of the API; all APIs by default"),
    "node": Field("integer", "only requests to this node"),
    "topic": Field("string", "only requests that name this topic"),
    "partitions": Field("array", "only these partitions of the topic", items="integer"),
    "client_id": Field("string", "only requests of this client"),
    "times": Field("integer", "act on this many requests, 1 by default; 0 for all"),
    "error": Field("string", "error: name or number of the error code"),
    "response": Field("object", "answer: the fields of the API's response, in the form of /requests"),
    "seconds": Field("number", "delay, delay_response: how long"),
    "after_handling": Field("boolean", "drop_connection: handle the request first"),
    "out_of_order": Field("boolean", "sleep: handle later requests of the connection meanwhile"),
    "bytes": Field("integer", "cut: how many bytes are sent"),
    "positions": Field("array", "corrupt: positions in the response body", items="integer"),
}


def _name_or_key(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text


def _rule_info(rule: Rule) -> RuleInfo:
    match = rule.match
    api = None if match.apis is None else find_api(min(match.apis))
    return {
        "rule": rule.number,
        "action": rule.action,
        "api": None if api is None else api.name,
        "node": match.node,
        "topic": match.topic,
        "partitions": None if match.partitions is None else sorted(match.partitions),
        "client_id": match.client_id,
        "times": rule.times or 0,
        "hits": rule.hits,
        "active": rule.active,
        "requests": [_request_info(received) for received in rule.requests[-10:]],
    }


def _request_info(received: ReceivedRequest) -> RequestInfo:
    return {
        "time_ms": received.time_ms,
        "node": received.node,
        "connection": received.connection,
        "client": received.client,
        "client_id": received.client_id,
        "api": received.api,
        "api_key": received.api_key,
        "version": received.version,
        "correlation_id": received.correlation_id,
        "request": to_json(received.request),
    }


def _state(cluster: Any, _: dict[str, str], __: Any) -> ClusterInfo:
    nodes = cluster.nodes()
    return {
        "cluster_id": cluster.cluster_id,
        "bootstrap": ",".join(nodes.values()),
        "nodes": [{"node": node, "address": address} for node, address in nodes.items()],
        "topics": cluster.topics(),
        "time_ms": cluster.call(lambda broker: broker.world.clock.now_ms()),
    }


def _topics(cluster: Any, _: dict[str, str], __: Any) -> list[TopicInfo]:
    return [_topic_info(cluster, name) for name in cluster.topics()]


def _topic_info(cluster: Any, name: str) -> TopicInfo:
    return {"topic": name, "partitions": cluster.partitions(name)}


def _create_topic(cluster: Any, _: dict[str, str], body: Any) -> TopicInfo:
    name = body["topic"]
    cluster.create_topic(name, body.get("partitions", 1), body.get("replication_factor", 1), body.get("configs"))
    return _topic_info(cluster, name)


def _topic(cluster: Any, path: dict[str, str], __: Any) -> TopicInfo:
    return _topic_info(cluster, path["topic"])


def _records(cluster: Any, path: dict[str, str], __: Any) -> list[StoredRecord]:
    records: list[StoredRecord] = cluster.records(path["topic"], int(path["partition"]))
    return records


def _produce(cluster: Any, path: dict[str, str], body: Any) -> RecordPosition:
    partition, offset = cluster.produce(
        path["topic"],
        body.get("value"),
        key=body.get("key"),
        partition=body.get("partition"),
        headers=body.get("headers"),
        timestamp_ms=body.get("timestamp_ms"),
    )
    return {"partition": partition, "offset": offset}


def _wait_for_records(cluster: Any, path: dict[str, str], _: Any) -> list[StoredRecord]:
    try:
        records: list[StoredRecord] = cluster.wait_for_records(
            path["topic"], int(path["count"]), timeout=float(path.get("timeout", "60"))
        )
    except TimeoutError as error:
        raise OperationError(408, str(error)) from None
    return records


def _read(method: str) -> Callable[[Any, dict[str, str], Any], Any]:
    """Return a handler that calls a method of the cluster without arguments."""
    return lambda cluster, _, __: getattr(cluster, method)()


def _group(cluster: Any, path: dict[str, str], __: Any) -> GroupState:
    group: GroupState = cluster.group(path["group"])
    return group


def _requests(cluster: Any, query: dict[str, str], __: Any) -> list[RequestInfo]:
    node = query.get("node")
    requests = cluster.requests(
        _name_or_key(query.get("api")), node=None if node is None else int(node), client_id=query.get("client_id")
    )
    return [_request_info(received) for received in _last(requests, int(query.get("limit", "100")))]


def _events(cluster: Any, query: dict[str, str], __: Any) -> list[dict[str, Any]]:
    kinds = [kind for kind in query.get("kind", "").split(",") if kind]
    return _last(cluster.events(*kinds), int(query.get("limit", "1000")))


def _last(items: list[T], limit: int) -> list[T]:
    if limit < 0:
        raise OperationError(400, "limit: must be 0 or more")
    return items[max(len(items) - limit, 0) :]


def _report(cluster: Any, _: dict[str, str], __: Any) -> ReportInfo:
    return {"text": cluster.report()}


def _reset(cluster: Any, _: dict[str, str], __: Any) -> None:
    cluster.reset()


def _advance(cluster: Any, _: dict[str, str], body: Any) -> None:
    cluster.advance(float(body["seconds"]))


def _rules(cluster: Any, _: dict[str, str], __: Any) -> list[RuleInfo]:
    return [_rule_info(rule) for rule in list(cluster.rules.by_number.values())]


def _add_rule(cluster: Any, _: dict[str, str], body: Any) -> RuleInfo:
    action = body["action"]
    if action not in ACTIONS:
        raise OperationError(400, f"action {action!r}: use one of {', '.join(ACTIONS)}")
    times = body.get("times", 1)
    builder: RuleBuilder = cluster.on(
        _name_or_key(body.get("api")),
        node=body.get("node"),
        topic=body.get("topic"),
        partition=body.get("partitions"),
        client_id=body.get("client_id"),
        times=None if times == 0 else times,
    )
    add: dict[str, Callable[[], Rule]] = {
        "observe": builder.observe,
        "answer": lambda: builder.answer(_response(body)),
        "error": lambda: builder.error(error_code(_error(body))),
        "delay": lambda: builder.delay(float(_required(body, "seconds"))),
        "delay_response": lambda: builder.delay_response(float(_required(body, "seconds"))),
        "sleep": lambda: builder.sleep(out_of_order=bool(body.get("out_of_order"))),
        "drop_response": builder.drop_response,
        "drop_connection": lambda: builder.drop_connection(after_handling=bool(body.get("after_handling"))),
        "cut": lambda: builder.cut(body.get("bytes")),
        "corrupt": lambda: builder.corrupt(*body.get("positions", ())),
    }
    return _rule_info(add[action]())


def _response(body: Any) -> Any:
    keys = api_keys(_name_or_key(body.get("api")))
    if keys is None or "response" not in body:
        raise OperationError(400, "answer requires api and response")
    return read_message(response_class(next(iter(keys))), body["response"])


def _error(body: Any) -> str | int:
    name: str = _required(body, "error")
    return int(name) if name.isascii() and name.lstrip("-").isdigit() else name


def _required(body: Any, name: str) -> Any:
    if name not in body:
        raise OperationError(400, f"{body['action']} requires {name}")
    return body[name]


def _find_rule(cluster: Any, path: dict[str, str]) -> Rule:
    rule: Rule | None = cluster.rules.by_number.get(int(path["rule"]))
    if rule is None:
        raise OperationError(404, f"there is no rule {path['rule']}")
    return rule


def _get_rule(cluster: Any, path: dict[str, str], __: Any) -> RuleInfo:
    return _rule_info(_find_rule(cluster, path))


def _wait_for_rule(cluster: Any, path: dict[str, str], __: Any) -> RuleInfo:
    rule = _find_rule(cluster, path)
    try:
        rule.wait(check_seconds(float(path.get("seconds", "30"))), int(path.get("hits", "1")))
    except TimeoutError as error:
        raise OperationError(408, str(error)) from error
    return _rule_info(rule)


def _wake_rule(cluster: Any, path: dict[str, str], __: Any) -> None:
    _find_rule(cluster, path).wake()


def _remove_rule(cluster: Any, path: dict[str, str], __: Any) -> None:
    _find_rule(cluster, path).remove()


def _add_node(cluster: Any, _: dict[str, str], body: Any) -> NodeInfo:
    node = cluster.add_node(int(body.get("port", 0)))
    return {"node": node, "address": cluster.nodes()[node]}


def _change_node(method: str) -> Callable[[Any, dict[str, str], Any], None]:
    """Return a handler that calls a method of the cluster with the node of the path."""

    def run(cluster: Any, path: dict[str, str], __: Any) -> None:
        getattr(cluster, method)(int(path["node"]))

    return run


def _slow_disk(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.slow_disk(float(body["seconds"]), int(path["node"]))


def _full_disk(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.full_disk(int(path["node"]), full=bool(body.get("full", True)))


def _partition_client(cluster: Any, _: dict[str, str], body: Any) -> RuleInfo:
    return _rule_info(cluster.partition_client(body["client_id"], body.get("node")))


def _move_leader(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.move_leader(path["topic"], int(path["partition"]), int(body["node"]))


def _set_followers(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.set_followers(path["topic"], int(path["partition"]), body["nodes"])


def _shuffle_leaders(cluster: Any, _: dict[str, str], body: Any) -> None:
    cluster.shuffle_leaders(*body.get("topics", ()))


def _coordinator(cluster: Any, path: dict[str, str], __: Any) -> CoordinatorInfo:
    return {"node": cluster.coordinator(path["key"], path["kind"])}


def _move_coordinator(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.move_coordinator(path["key"], int(body["node"]), path["kind"])


def _expire_member(cluster: Any, path: dict[str, str], body: Any) -> None:
    cluster.expire_member(path["group"], body.get("member_id"))


def _expire_transaction(cluster: Any, path: dict[str, str], __: Any) -> None:
    cluster.expire_transaction(path["transactional_id"])


def _change_logs(method: str) -> Callable[[Any, dict[str, str], Any], Any]:
    """Return a handler that calls a method of the cluster with the topic of the body."""

    def run(cluster: Any, _: dict[str, str], body: Any) -> Any:
        result = getattr(cluster, method)(body.get("topic"))
        return None if result is None else {"segments": result}

    return run


_TOPIC = {"topic": Field("string", "only this topic; all by default")}
_SECONDS = {"seconds": Field("number", "how long", required=True)}
_NODE = {"node": Field("integer", "node id", required=True)}

OPERATIONS = (
    Operation("GET", "/state", "Cluster id, addresses, topics and time", _state, returns=ClusterInfo),
    Operation("GET", "/report", "State and last events as text, for a failed test", _report, returns=ReportInfo),
    Operation(
        "POST", "/reset", "Delete topics, groups, transactions, rules and faults; recreate the initial topics", _reset
    ),
    Operation("POST", "/advance", "Move virtual time (with --virtual-time)", _advance, _SECONDS),
    Operation("GET", "/topics", "List topics with their partitions", _topics, returns=list[TopicInfo]),
    Operation(
        "POST",
        "/topics",
        "Create a topic",
        _create_topic,
        {
            "topic": Field("string", "topic name", required=True),
            "partitions": Field("integer", "number of partitions, 1 by default"),
            "replication_factor": Field("integer", "1 by default"),
            "configs": Field("object", "topic configs: names and values"),
        },
        returns=TopicInfo,
    ),
    Operation("GET", "/topics/{topic}", "Describe a topic", _topic, returns=TopicInfo),
    Operation(
        "GET",
        "/topics/{topic}/{partition}/records",
        "List the records of a partition; keys and values in base64",
        _records,
        returns=list[StoredRecord],
    ),
    Operation(
        "POST",
        "/topics/{topic}/records",
        "Append a record; key and value are texts",
        _produce,
        {
            "value": Field("string", "null, or absent, is a tombstone"),
            "key": Field("string", "chooses the partition as Kafka's default partitioner does"),
            "partition": Field("integer", "instead of the one that the key chooses"),
            "headers": Field("object", "names and values"),
            "timestamp_ms": Field("integer", "the cluster's time by default"),
        },
        returns=RecordPosition,
    ),
    Operation(
        "GET",
        "/topics/{topic}/records",
        "Wait until a topic has `count` records and list them; keys and values in base64",
        _wait_for_records,
        query={
            "count": Field("integer", "how many records", required=True),
            "timeout": Field("number", "seconds to wait, 60 by default; then status 408"),
        },
        returns=list[StoredRecord],
    ),
    Operation("POST", "/topics/{topic}/{partition}/leader", "Move the leader of a partition", _move_leader, _NODE),
    Operation(
        "POST",
        "/topics/{topic}/{partition}/followers",
        "Set the followers of a partition",
        _set_followers,
        {"nodes": Field("array", "node ids", required=True, items="integer")},
    ),
    Operation(
        "POST",
        "/shuffle-leaders",
        "Move the leader of every partition to another node",
        _shuffle_leaders,
        {"topics": Field("array", "only these topics; all by default", items="string")},
    ),
    *EXPLORATIONS,
    Operation("GET", "/groups", "List groups", _read("groups"), returns=list[GroupState]),
    Operation("GET", "/groups/{group}", "Describe a group", _group, returns=GroupState),
    Operation(
        "POST",
        "/groups/{group}/expire",
        "Expire the session of a member",
        _expire_member,
        {"member_id": Field("string", "member id; all members by default")},
    ),
    Operation("GET", "/transactions", "List transactional ids", _read("transactions"), returns=list[TransactionState]),
    Operation("POST", "/transactions/{transactional_id}/expire", "Time out a transaction", _expire_transaction),
    Operation(
        "GET",
        "/coordinators/{kind}/{key}",
        "Find the coordinator (kind: group or transaction)",
        _coordinator,
        returns=CoordinatorInfo,
    ),
    Operation("POST", "/coordinators/{kind}/{key}", "Move the coordinator to a node", _move_coordinator, _NODE),
    Operation("POST", "/rehash-coordinators", "Move every coordinator to another node", _read("rehash_coordinators")),
    Operation("GET", "/sessions", "List fetch sessions", _read("sessions"), returns=list[SessionState]),
    Operation("GET", "/connections", "List client connections", _read("connections"), returns=list[ConnectionState]),
    Operation(
        "GET",
        "/requests",
        "List the last requests, decoded",
        _requests,
        query={
            "api": Field("string", "only this API (name or key)"),
            "node": Field("integer", "only requests to this node"),
            "client_id": Field("string", "only requests of this client"),
            "limit": Field("integer", "number of requests, 100 by default"),
        },
        returns=list[RequestInfo],
    ),
    Operation(
        "GET",
        "/events",
        "List the last events",
        _events,
        query={
            "kind": Field("string", "only these kinds, separated by commas"),
            "limit": Field("integer", "number of events, 1000 by default"),
        },
        returns=list[dict[str, Any]],
    ),
    Operation("GET", "/rules", "List the rules", _rules, returns=list[RuleInfo]),
    Operation("POST", "/rules", "Add a rule", _add_rule, RULE_FIELDS, returns=RuleInfo),
    Operation("GET", "/rules/{rule}", "Describe a rule and count its hits", _get_rule, returns=RuleInfo),
    Operation(
        "GET",
        "/rules/{rule}/wait",
        "Wait until a rule has acted",
        _wait_for_rule,
        query={
            "seconds": Field("number", "give up after this time, 30 by default"),
            "hits": Field("integer", "on this many requests, 1 by default"),
        },
        returns=RuleInfo,
    ),
    Operation("POST", "/rules/{rule}/wake", "Serve the requests that a sleep rule holds", _wake_rule),
    Operation("DELETE", "/rules/{rule}", "Remove a rule", _remove_rule),
    Operation(
        "POST",
        "/nodes",
        "Add a node",
        _add_node,
        {"port": Field("integer", "port; a free one by default")},
        returns=NodeInfo,
    ),
    Operation("POST", "/nodes/{node}/stop", "Stop a node", _change_node("stop_node")),
    Operation("POST", "/nodes/{node}/start", "Start a stopped node", _change_node("start_node")),
    Operation("POST", "/nodes/{node}/restart", "Stop and start a node", _change_node("restart_node")),
    Operation("POST", "/nodes/{node}/pause", "Pause a node, like SIGSTOP", _change_node("pause_node")),
    Operation("POST", "/nodes/{node}/resume", "Resume a paused node", _change_node("resume_node")),
    Operation("DELETE", "/nodes/{node}", "Remove a node for good", _change_node("remove_node")),
    Operation("POST", "/nodes/{node}/slow-disk", "Delay the fsyncs of a node", _slow_disk, _SECONDS),
    Operation(
        "POST",
        "/nodes/{node}/full-disk",
        "Fill the disk of a node",
        _full_disk,
        {"full": Field("boolean", "false ends the fault; true by default")},
    ),
    Operation(
        "POST",
        "/partition-client",
        "Disconnect a client at every request, until the rule is removed",
        _partition_client,
        {"client_id": Field("string", "client id", required=True), "node": Field("integer", "only from this node")},
        returns=RuleInfo,
    ),
    Operation("POST", "/roll-segments", "Roll the active segments", _change_logs("roll_segments"), _TOPIC),
    Operation(
        "POST",
        "/apply-retention",
        "Delete segments beyond their retention",
        _change_logs("apply_retention"),
        _TOPIC,
        returns=DeletedSegments,
    ),
    Operation("POST", "/compact", "Compact logs", _change_logs("compact"), _TOPIC),
)
