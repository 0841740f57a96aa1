"""The control API over HTTP: all that the test kit does, for tests in any language.

`ottla serve --control PORT` serves it; `/openapi.json` describes it, made from the same table that answers requests.
It is for tests on this machine: it listens on the loopback address and asks nobody who they are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ottla.events import KINDS
from ottla.protocol.api import response_class
from ottla.protocol.errors import KafkaError
from ottla.testing.control import api_keys, error_code
from ottla.testing.json_messages import message_of, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.testing.control import Control, Rule
    from ottla.testing.kit import Kit
    from ottla.testing.requests_seen import SeenRequest

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


class Operation(NamedTuple):
    """One method of one path: what it does, what it takes, and who does it."""

    method: str
    path: str
    summary: str
    run: Callable[[Kit, dict[str, str], Any], Any]
    body: Mapping[str, Field] = {}
    query: Mapping[str, str] = {}


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
    "action": Field("string", "; ".join(f"{name}: {meaning}" for name, meaning in ACTIONS.items()), required=True),
    "api": Field("string", "name or key of the API; all without it"),
    "node": Field("integer", "requests to this node only"),
    "topic": Field("string", "requests about this topic only"),
    "partitions": Field("array", "partitions of the topic"),
    "client_id": Field("string", "requests of this client only"),
    "times": Field("integer", "act on so many requests, 1 if not given; 0 is on all"),
    "error": Field("string", "name or number of the error code"),
    "response": Field("object", "answer: the fields of the API's response, as `/requests` shows those of requests"),
    "seconds": Field("number", "how long"),
    "after_handling": Field("boolean", "drop_connection: handle the request first"),
    "out_of_order": Field("boolean", "sleep: let later requests of the connection be handled"),
    "bytes": Field("integer", "cut: how many bytes are sent"),
    "positions": Field("array", "corrupt: which bytes of the answer's body"),
}


# What operations do


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
    kit.cluster.create_topic(
        name, body.get("partitions", 1), body.get("replication_factor", 1), body.get("configs") or {}
    )
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
    return [_seen(each) for each in found[-int(query.get("most", "100")) :]]


def _events(kit: Kit, query: dict[str, str], __: Any) -> Any:
    kinds = [kind for kind in query.get("kind", "").split(",") if kind]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise Refused(400, f"there are no events {', '.join(unknown)}; docs/events.md lists them")
    return kit.cluster.events(*kinds)[-int(query.get("most", "1000")) :]


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
        "delay": lambda: rule.delay(float(body["seconds"])),
        "delay_response": lambda: rule.delay_response(float(body["seconds"])),
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
    wanted: str | int = body["error"]
    return int(wanted) if isinstance(wanted, str) and wanted.lstrip("-").isdigit() else wanted


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
        control.wait(float(path.get("seconds", "30")), int(path.get("hits", "1")))
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
    Operation("GET", "/state", "The cluster: id, addresses, topics, time", _state),
    Operation("GET", "/report", "All of it as text, for a test that failed", _report),
    Operation("POST", "/reset", "As new: no topics but those it began with, no groups, no faults", _reset),
    Operation("POST", "/advance", "Move time (with --virtual-time)", _advance, _SECONDS),
    Operation("GET", "/topics", "All topics with their partitions", _topics),
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
    ),
    Operation("GET", "/topics/{topic}", "One topic", _topic),
    Operation("GET", "/topics/{topic}/{partition}/records", "Its records; keys and values in base64", _records),
    Operation("POST", "/topics/{topic}/{partition}/leader", "Let a node lead a partition", _move_leader, _NODE),
    Operation(
        "POST",
        "/topics/{topic}/{partition}/followers",
        "Let nodes follow a partition",
        _set_followers,
        {"nodes": Field("array", "the nodes' ids", required=True)},
    ),
    Operation(
        "POST", "/shuffle-leaders", "Let others lead", _shuffle, {"topics": Field("array", "of these topics; of all")}
    ),
    Operation("GET", "/groups", "All groups", _groups),
    Operation("GET", "/groups/{group}", "One group", _group),
    Operation(
        "POST",
        "/groups/{group}/expire",
        "Let the session of a member time out",
        _expire_member,
        {"member": Field("string", "member id; all without it")},
    ),
    Operation("GET", "/transactions", "All transactional ids", _transactions),
    Operation("POST", "/transactions/{transactional_id}/expire", "Let a transaction time out", _expire_transaction),
    Operation("GET", "/coordinators/{kind}/{key}", "Who coordinates (kind: group or transaction)", _coordinator),
    Operation("POST", "/coordinators/{kind}/{key}", "Let a node coordinate", _move_coordinator, _NODE),
    Operation("POST", "/rehash-coordinators", "Let others coordinate", _rehash),
    Operation("GET", "/sessions", "Fetch sessions", _sessions),
    Operation("GET", "/connections", "Connections", _connections),
    Operation(
        "GET",
        "/requests",
        "The last requests, decoded",
        _requests,
        query={"api": "name or key", "node": "node id", "client_id": "client id", "most": "how many, 100"},
    ),
    Operation("GET", "/events", "The last events", _events, query={"kind": "kinds, with commas", "most": "how many"}),
    Operation("GET", "/controls", "The control functions that were added here", _controls),
    Operation("POST", "/controls", "Add a control function", _add_control, CONTROL_FIELDS),
    Operation("GET", "/controls/{control}", "One of them: how often it acted", _get_control),
    Operation(
        "GET",
        "/controls/{control}/wait",
        "Wait until it has acted",
        _wait_control,
        query={"seconds": "at most so long, 30", "hits": "so often, 1"},
    ),
    Operation("POST", "/controls/{control}/wake", "Let what sleeps go on", _wake_control),
    Operation("DELETE", "/controls/{control}", "Remove it", _remove_control),
    Operation("POST", "/nodes", "Add a node", _add_node, {"port": Field("integer", "any without it")}),
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
    ),
    Operation("POST", "/roll-segments", "Close active segments", _on_logs("roll_segments"), _TOPIC),
    Operation("POST", "/apply-retention", "Delete what is too old now", _on_logs("apply_retention"), _TOPIC),
    Operation("POST", "/compact", "Compact now", _on_logs("compact"), _TOPIC),
)


# Answers


def respond(kit: Any, method: str, target: str, body: bytes) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    path, _, query = target.partition("?")
    offered = [each for each in OPERATIONS if kit.operations is None or f"/{each.path.split('/')[1]}" in kit.operations]
    if method == "GET" and path == "/openapi.json":
        return 200, openapi(offered)
    fits = [(operation, found) for operation in offered if (found := _fit(operation.path, path)) is not None]
    if not fits:
        return 404, {"error": f"there is nothing at {path}; /openapi.json lists what there is"}
    for operation, found in fits:
        if operation.method == method:
            try:
                return 200, plain(operation.run(kit, {**found, **_query(query)}, _body(operation, body)))
            except Refused as error:
                return error.status, {"error": str(error)}
            except KeyError as error:
                return 404, {"error": f"not found: {error.args[0] if error.args else error}"}
            except KafkaError as error:
                return 409, {"error": str(error)}
            except (ValueError, TypeError, RuntimeError) as error:
                return 400, {"error": str(error)}
    return 405, {"error": f"{path} takes {', '.join(operation.method for operation, _ in fits)}"}


def _fit(pattern: str, path: str) -> dict[str, str] | None:
    wanted, given = pattern.split("/"), path.rstrip("/").split("/")
    if len(wanted) != len(given):
        return None
    found = {}
    for name, value in zip(wanted, given, strict=True):
        if name.startswith("{"):
            found[name[1:-1]] = unquote(value)
        elif name != value:
            return None
    return found


def _query(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split("&") if part)
    return {unquote(name): unquote(value.replace("+", " ")) for name, _, value in pairs}


def _body(operation: Operation, body: bytes) -> Any:
    if not body.strip():
        given: Any = {}
    else:
        try:
            given = json.loads(body)
        except ValueError as error:
            raise Refused(400, f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise Refused(400, "the body is a JSON object")
    unknown = sorted(set(given) - set(operation.body))
    missing = sorted(name for name, field in operation.body.items() if field.required and name not in given)
    if unknown:
        raise Refused(400, f"unknown: {', '.join(unknown)}; there are {', '.join(operation.body) or 'no fields'}")
    if missing:
        raise Refused(400, f"missing: {', '.join(missing)}")
    return given


def _api(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isdigit() else text


def _control(control: Control) -> dict[str, Any]:
    return {
        "control": control.number,
        "action": control.action,
        "hits": control.hits,
        "active": control.active,
        "requests": [_seen(each) for each in control.requests[-10:]],
    }


def _seen(seen: SeenRequest) -> dict[str, Any]:
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


def openapi(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """The description of this API."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
        described: dict[str, Any] = {
            "summary": operation.summary,
            "operationId": _operation_id(operation),
            "parameters": [
                *({"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names),
                *(
                    {"name": n, "in": "query", "description": meaning, "schema": {"type": "string"}}
                    for n, meaning in operation.query.items()
                ),
            ],
            "responses": {
                "200": {"description": "done", "content": {"application/json": {"schema": {}}}},
                "default": {
                    "description": "not done, and why",
                    "content": {
                        "application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}
                    },
                },
            },
        }
        if operation.body:
            schema: dict[str, Any] = {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    name: {
                        "type": field.type,
                        "description": field.meaning,
                        **({"items": {}} if field.type == "array" else {}),
                    }
                    for name, field in operation.body.items()
                },
            }
            required = [name for name, field in operation.body.items() if field.required]
            if required:
                schema["required"] = required
            described["requestBody"] = {
                "required": bool(required),
                "content": {"application/json": {"schema": schema}},
            }
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    from ottla import __version__

    return {
        "openapi": "3.1.0",
        "info": {"title": "ottla's test kit", "version": __version__},
        "paths": paths,
    }


def _operation_id(operation: Operation) -> str:
    words = [part.strip("{}") for part in operation.path.replace("-", "/").split("/") if part]
    return operation.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)
