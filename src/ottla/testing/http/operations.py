"""What the control API over HTTP can do: one table of operations, with what each takes, gives and does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

from ottla.protocol.api import response_class
from ottla.testing.control.rules import api_keys, check_seconds, error_code
from ottla.testing.control.state import (
    ConnectionState,
    GroupState,
    PartitionState,
    SessionState,
    StoredRecord,
    TransactionState,
)
from ottla.testing.http.json_messages import message_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.testing.control.controlled_cluster import Kit
    from ottla.testing.control.requests import SeenRequest
    from ottla.testing.control.rules import Control, Rule

Handler = "Callable[[Kit, dict[str, str], Any], Any]"


class Refused(Exception):  # noqa: N818 - it is an answer
    """A request that cannot be done, with the status that says why."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Field(NamedTuple):
    """One field of a body, as OpenAPI has it."""

    type: str
    meaning: str
    required: bool = False
    items: str | None = None
    """What a list is made of."""
    values: tuple[str, ...] = ()
    """All that it can be; anything if empty."""


class Operation(NamedTuple):
    """One method of one path: what it does, what it takes and gives, and who does it."""

    method: str
    path: str
    summary: str
    run: Callable[[Kit, dict[str, str], Any], Any]
    body: Mapping[str, Field] = {}
    query: Mapping[str, Field] = {}
    returns: Any = None
    """The type of the answer."""


class NodeAnswer(TypedDict):
    """Where a node listens."""

    node: int
    address: str


class ClusterAnswer(TypedDict):
    """A cluster."""

    cluster_id: str
    bootstrap: str
    nodes: list[NodeAnswer]
    topics: list[str]
    time_ms: int


class TopicAnswer(TypedDict):
    """A topic."""

    topic: str
    partitions: list[PartitionState]


class RequestAnswer(TypedDict):
    """A request that came in; `request` has the fields of its API's message."""

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


class ControlAnswer(TypedDict):
    """A control function, and the last requests that it acted on."""

    control: int
    action: str
    hits: int
    active: bool
    requests: list[RequestAnswer]


class ReportAnswer(TypedDict):
    """A report for people."""

    text: str


class CoordinatorAnswer(TypedDict):
    """Who coordinates."""

    node: int


class SegmentsAnswer(TypedDict):
    """How many segments are gone."""

    segments: int


T = TypeVar("T")
PATH_TYPES = {"node": "integer", "partition": "integer", "control": "integer"}
"""What parts of paths are; others are strings."""

ACTIONS = {
    "observe": "look on and change nothing",
    "answer": "answer `response` in place of the broker",
    "error": "answer `error`; with `topic`, only its (chosen) partitions fail",
    "delay": "let the request wait for `seconds` before it is handled",
    "delay_response": "handle it, and let the answer wait for `seconds`",
    "sleep": "let it wait until the control is woken or removed",
    "drop_response": "handle it and never answer",
    "drop_connection": "end the connection; with `after_handling`, once the request has been handled",
    "cut": "send the first `bytes` of the answer (half of it without) and end the connection",
    "corrupt": "change bytes of the answer, at `positions` or anywhere",
}

CONTROL_FIELDS = {
    "action": Field(
        "string",
        "; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items()),
        required=True,
        values=tuple(ACTIONS),
    ),
    "api": Field("string", "name or key of the API; all without it"),
    "node": Field("integer", "requests to this node only"),
    "topic": Field("string", "requests about this topic only"),
    "partitions": Field("array", "partitions of the topic", items="integer"),
    "client_id": Field("string", "requests of this client only"),
    "times": Field("integer", "act on so many requests, 1 if not given; 0 is on all"),
    "error": Field("string", "name or number of the error code"),
    "response": Field("object", "answer: the fields of the API's response, as `/requests` shows those of requests"),
    "seconds": Field("number", "how long"),
    "after_handling": Field("boolean", "drop_connection: handle the request first"),
    "out_of_order": Field("boolean", "sleep: let later requests of the connection be handled"),
    "bytes": Field("integer", "cut: how many bytes are sent"),
    "positions": Field("array", "corrupt: which bytes of the answer's body", items="integer"),
}


# What operations do


def _api(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text


def _control(control: Control) -> ControlAnswer:
    return {
        "control": control.number,
        "action": control.action,
        "hits": control.hits,
        "active": control.active,
        "requests": [_seen(each) for each in control.requests[-10:]],
    }


def _seen(seen: SeenRequest) -> RequestAnswer:
    return {
        "time_ms": seen.time_ms,
        "node": seen.node,
        "connection": seen.connection,
        "client": seen.client,
        "client_id": seen.client_id,
        "api": seen.api,
        "api_key": seen.api_key,
        "version": seen.version,
        "correlation_id": seen.correlation_id,
        "request": plain(seen.request),
    }


def _state(kit: Kit, _: dict[str, str], __: Any) -> Any:
    cluster = kit.cluster
    return {
        "cluster_id": cluster.cluster_id,
        "bootstrap": ",".join(cluster.nodes().values()),
        "nodes": [{"node": node, "address": address} for node, address in cluster.nodes().items()],
        "topics": cluster.topics(),
        "time_ms": cluster.call(lambda broker: broker.world.clock.now_ms()),
    }


def _topics(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return [{"topic": name, "partitions": kit.cluster.partitions(name)} for name in kit.cluster.topics()]


def _create_topic(kit: Kit, _: dict[str, str], body: Any) -> Any:
    name = body["topic"]
    kit.cluster.create_topic(name, body.get("partitions", 1), body.get("replication_factor", 1), body.get("configs"))
    return {"topic": name, "partitions": kit.cluster.partitions(name)}


def _topic(kit: Kit, path: dict[str, str], __: Any) -> Any:
    return {"topic": path["topic"], "partitions": kit.cluster.partitions(path["topic"])}


def _records(kit: Kit, path: dict[str, str], __: Any) -> Any:
    return kit.cluster.records(path["topic"], int(path["partition"]))


def _groups(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return kit.cluster.groups()


def _group(kit: Kit, path: dict[str, str], __: Any) -> Any:
    return kit.cluster.group(path["group"])


def _transactions(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return kit.cluster.transactions()


def _sessions(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return kit.cluster.sessions()


def _connections(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return kit.cluster.connections()


def _requests(kit: Kit, query: dict[str, str], __: Any) -> Any:
    node = query.get("node")
    found = kit.cluster.requests(
        _api(query.get("api")), node=None if node is None else int(node), client_id=query.get("client_id")
    )
    return [_seen(each) for each in _last(found, int(query.get("most", "100")))]


def _events(kit: Kit, query: dict[str, str], __: Any) -> Any:
    kinds = [kind for kind in query.get("kind", "").split(",") if kind]
    return _last(kit.cluster.events(*kinds), int(query.get("most", "1000")))


def _last(found: list[T], most: int) -> list[T]:
    if most < 0:
        raise Refused(400, "most: 0 or more is wanted")
    return found[max(len(found) - most, 0) :]


def _report(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return {"text": kit.cluster.report()}


def _reset(kit: Kit, _: dict[str, str], __: Any) -> Any:
    kit.cluster.reset()
    kit.controls.clear()


def _advance(kit: Kit, _: dict[str, str], body: Any) -> Any:
    kit.cluster.advance(float(body["seconds"]))


def _controls(kit: Kit, _: dict[str, str], __: Any) -> Any:
    return [_control(each) for each in kit.controls.values()]


def _add_control(kit: Kit, _: dict[str, str], body: Any) -> Any:
    action = body.get("action")
    if action not in ACTIONS:
        raise Refused(400, f"action {action!r}: use one of {', '.join(ACTIONS)}")
    times = body.get("times", 1)
    rule: Rule = kit.cluster.on(
        _api(body.get("api")),
        node=body.get("node"),
        topic=body.get("topic"),
        partition=body.get("partitions"),
        client_id=body.get("client_id"),
        times=None if times == 0 else times,
    )
    made: dict[str, Callable[[], Control]] = {
        "observe": rule.observe,
        "answer": lambda: rule.answer(_response(body)),
        "error": lambda: rule.error(error_code(_error(body))),
        "delay": lambda: rule.delay(float(_needed(body, "seconds"))),
        "delay_response": lambda: rule.delay_response(float(_needed(body, "seconds"))),
        "sleep": lambda: rule.sleep(out_of_order=bool(body.get("out_of_order"))),
        "drop_response": rule.drop_response,
        "drop_connection": lambda: rule.drop_connection(after_handling=bool(body.get("after_handling"))),
        "cut": lambda: rule.cut(body.get("bytes")),
        "corrupt": lambda: rule.corrupt(*body.get("positions", ())),
    }
    control = made[action]()
    kit.controls[control.number] = control
    return _control(control)


def _response(body: Any) -> Any:
    keys = api_keys(_api(body.get("api")))
    if keys is None or "response" not in body:
        raise Refused(400, "answer needs api and response")
    return message_of(response_class(next(iter(keys))), body["response"])


def _error(body: Any) -> str | int:
    wanted: str = _needed(body, "error")
    return int(wanted) if wanted.isascii() and wanted.lstrip("-").isdigit() else wanted


def _needed(body: Any, name: str) -> Any:
    if name not in body:
        raise Refused(400, f"missing: {name}, for {body['action']}")
    return body[name]


def _find_control(kit: Kit, path: dict[str, str]) -> Control:
    found = kit.controls.get(int(path["control"]))
    if found is None:
        raise Refused(404, f"there is no control {path['control']}")
    return found


def _get_control(kit: Kit, path: dict[str, str], __: Any) -> Any:
    return _control(_find_control(kit, path))


def _wait_control(kit: Kit, path: dict[str, str], __: Any) -> Any:
    control = _find_control(kit, path)
    try:
        control.wait(check_seconds(float(path.get("seconds", "30"))), int(path.get("hits", "1")))
    except TimeoutError as error:
        raise Refused(408, str(error)) from error
    return _control(control)


def _wake_control(kit: Kit, path: dict[str, str], __: Any) -> Any:
    _find_control(kit, path).wake()


def _remove_control(kit: Kit, path: dict[str, str], __: Any) -> Any:
    control = _find_control(kit, path)
    control.remove()
    del kit.controls[control.number]


def _add_node(kit: Kit, _: dict[str, str], body: Any) -> Any:
    node = kit.cluster.add_node(int((body or {}).get("port", 0)))
    return {"node": node, "address": kit.cluster.nodes()[node]}


def _on_node(action: str) -> Callable[[Kit, dict[str, str], Any], Any]:
    def run(kit: Kit, path: dict[str, str], __: Any) -> Any:
        getattr(kit.cluster, action)(int(path["node"]))

    return run


def _slow_disk(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.slow_disk(float(body["seconds"]), int(path["node"]))


def _full_disk(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.full_disk(int(path["node"]), full=bool((body or {}).get("full", True)))


def _partition_client(kit: Kit, _: dict[str, str], body: Any) -> Any:
    control = kit.cluster.partition_client(body["client_id"], body.get("node"))
    kit.controls[control.number] = control
    return _control(control)


def _move_leader(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.move_leader(path["topic"], int(path["partition"]), int(body["node"]))


def _set_followers(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.set_followers(path["topic"], int(path["partition"]), body["nodes"])


def _shuffle(kit: Kit, _: dict[str, str], body: Any) -> Any:
    kit.cluster.shuffle_leaders(*(body or {}).get("topics", ()))


def _coordinator(kit: Kit, path: dict[str, str], __: Any) -> Any:
    return {"node": kit.cluster.coordinator(path["key"], path["kind"])}


def _move_coordinator(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.move_coordinator(path["key"], int(body["node"]), path["kind"])


def _rehash(kit: Kit, _: dict[str, str], __: Any) -> Any:
    kit.cluster.rehash_coordinators()


def _expire_member(kit: Kit, path: dict[str, str], body: Any) -> Any:
    kit.cluster.expire_member(path["group"], (body or {}).get("member"))


def _expire_transaction(kit: Kit, path: dict[str, str], __: Any) -> Any:
    kit.cluster.expire_transaction(path["transactional_id"])


def _on_logs(action: str) -> Callable[[Kit, dict[str, str], Any], Any]:
    def run(kit: Kit, _: dict[str, str], body: Any) -> Any:
        result = getattr(kit.cluster, action)((body or {}).get("topic"))
        return None if result is None else {"segments": result}

    return run


_TOPIC = {"topic": Field("string", "of this topic; of all without it")}
_SECONDS = {"seconds": Field("number", "how long", required=True)}
_NODE = {"node": Field("integer", "the node's id", required=True)}

OPERATIONS = (
    Operation("GET", "/state", "The cluster: id, addresses, topics, time", _state, returns=ClusterAnswer),
    Operation("GET", "/report", "All of it as text, for a test that failed", _report, returns=ReportAnswer),
    Operation("POST", "/reset", "As new: no topics but those it began with, no groups, no faults", _reset),
    Operation("POST", "/advance", "Move time (with --virtual-time)", _advance, _SECONDS),
    Operation("GET", "/topics", "All topics with their partitions", _topics, returns=list[TopicAnswer]),
    Operation(
        "POST",
        "/topics",
        "Create a topic",
        _create_topic,
        {
            "topic": Field("string", "its name", required=True),
            "partitions": Field("integer", "how many, 1 if not given"),
            "replication_factor": Field("integer", "1 if not given"),
            "configs": Field("object", "names and values"),
        },
        returns=TopicAnswer,
    ),
    Operation("GET", "/topics/{topic}", "One topic", _topic, returns=TopicAnswer),
    Operation(
        "GET",
        "/topics/{topic}/{partition}/records",
        "Its records; keys and values in base64",
        _records,
        returns=list[StoredRecord],
    ),
    Operation("POST", "/topics/{topic}/{partition}/leader", "Let a node lead a partition", _move_leader, _NODE),
    Operation(
        "POST",
        "/topics/{topic}/{partition}/followers",
        "Let nodes follow a partition",
        _set_followers,
        {"nodes": Field("array", "the nodes' ids", required=True, items="integer")},
    ),
    Operation(
        "POST",
        "/shuffle-leaders",
        "Let others lead",
        _shuffle,
        {"topics": Field("array", "of these topics; of all", items="string")},
    ),
    Operation("GET", "/groups", "All groups", _groups, returns=list[GroupState]),
    Operation("GET", "/groups/{group}", "One group", _group, returns=GroupState),
    Operation(
        "POST",
        "/groups/{group}/expire",
        "Let the session of a member time out",
        _expire_member,
        {"member": Field("string", "member id; all without it")},
    ),
    Operation("GET", "/transactions", "All transactional ids", _transactions, returns=list[TransactionState]),
    Operation("POST", "/transactions/{transactional_id}/expire", "Let a transaction time out", _expire_transaction),
    Operation(
        "GET",
        "/coordinators/{kind}/{key}",
        "Who coordinates (kind: group or transaction)",
        _coordinator,
        returns=CoordinatorAnswer,
    ),
    Operation("POST", "/coordinators/{kind}/{key}", "Let a node coordinate", _move_coordinator, _NODE),
    Operation("POST", "/rehash-coordinators", "Let others coordinate", _rehash),
    Operation("GET", "/sessions", "Fetch sessions", _sessions, returns=list[SessionState]),
    Operation("GET", "/connections", "Connections", _connections, returns=list[ConnectionState]),
    Operation(
        "GET",
        "/requests",
        "The last requests, decoded",
        _requests,
        query={
            "api": Field("string", "name or key"),
            "node": Field("integer", "node id"),
            "client_id": Field("string", "client id"),
            "most": Field("integer", "how many, 100 if not given"),
        },
        returns=list[RequestAnswer],
    ),
    Operation(
        "GET",
        "/events",
        "The last events",
        _events,
        query={
            "kind": Field("string", "kinds, with commas between"),
            "most": Field("integer", "how many, 1000 if not given"),
        },
        returns=list[dict[str, Any]],
    ),
    Operation("GET", "/controls", "The control functions that were added here", _controls, returns=list[ControlAnswer]),
    Operation("POST", "/controls", "Add a control function", _add_control, CONTROL_FIELDS, returns=ControlAnswer),
    Operation("GET", "/controls/{control}", "One of them: how often it acted", _get_control, returns=ControlAnswer),
    Operation(
        "GET",
        "/controls/{control}/wait",
        "Wait until it has acted",
        _wait_control,
        query={
            "seconds": Field("number", "at most so long, 30 if not given"),
            "hits": Field("integer", "so often, 1 if not given"),
        },
        returns=ControlAnswer,
    ),
    Operation("POST", "/controls/{control}/wake", "Let what sleeps go on", _wake_control),
    Operation("DELETE", "/controls/{control}", "Remove it", _remove_control),
    Operation(
        "POST", "/nodes", "Add a node", _add_node, {"port": Field("integer", "any without it")}, returns=NodeAnswer
    ),
    Operation("POST", "/nodes/{node}/stop", "Let a node die", _on_node("stop_node")),
    Operation("POST", "/nodes/{node}/start", "Let it come back", _on_node("start_node")),
    Operation("POST", "/nodes/{node}/restart", "Both", _on_node("restart_node")),
    Operation("POST", "/nodes/{node}/pause", "Let it hang", _on_node("pause_node")),
    Operation("POST", "/nodes/{node}/resume", "Let it go on", _on_node("resume_node")),
    Operation("DELETE", "/nodes/{node}", "Let it go for good", _on_node("remove_node")),
    Operation("POST", "/nodes/{node}/slow-disk", "Make its disk slow", _slow_disk, _SECONDS),
    Operation(
        "POST", "/nodes/{node}/full-disk", "Fill its disk", _full_disk, {"full": Field("boolean", "false ends it")}
    ),
    Operation(
        "POST",
        "/partition-client",
        "Cut a client off from a node, or from all, until the control is removed",
        _partition_client,
        {"client_id": Field("string", "the client", required=True), "node": Field("integer", "the node")},
        returns=ControlAnswer,
    ),
    Operation("POST", "/roll-segments", "Close active segments", _on_logs("roll_segments"), _TOPIC),
    Operation(
        "POST",
        "/apply-retention",
        "Delete what is too old now",
        _on_logs("apply_retention"),
        _TOPIC,
        returns=SegmentsAnswer,
    ),
    Operation("POST", "/compact", "Compact now", _on_logs("compact"), _TOPIC),
)
