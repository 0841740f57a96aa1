"""The control API as a test in another language uses it, through `ottla serve --control`."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.http.openapi import openapi
from ottla.testing.http.operations import ACTIONS, OPERATIONS
from tests.ports import free_ports
from tests.testing.clients import Delivery, consumer, eventually, producer, read, send

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Producer


class Api:
    """The control API of a cluster in a subprocess."""

    def __init__(self, addresses: dict[str, Any]) -> None:
        self.bootstrap: str = addresses["bootstrap"]
        self.url: str = addresses["control"]

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def post(self, path: str, **body: Any) -> Any:
        return self._call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Api]:
    command = [sys.executable, "-m", "ottla", "serve", "--json", "--control", "0", "-l", "none", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Api(json.loads(process.stdout.readline()))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[Api]:
    with serving("-p", "0,0,0", "--seed-topic", "t:2", "-c", "group.initial.rebalance.delay.ms=0") as api:
        yield api


@pytest.fixture
def api(shared: Api) -> Api:
    shared.post("/reset")
    return shared


def client(api: Api, **configs: Any) -> Producer:
    return producer(api, **configs)  # type: ignore[arg-type]


def test_openapi_lists_every_operation() -> None:
    described = openapi()
    assert described["openapi"].startswith("3.")
    assert {(method.upper(), path) for path, methods in described["paths"].items() for method in methods} == {
        (operation.method, operation.path) for operation in OPERATIONS
    }
    ids = [method["operationId"] for path in described["paths"].values() for method in path.values()]
    assert len(set(ids)) == len(ids)
    action = described["paths"]["/rules"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert action["required"] == ["action"]
    assert all(name in action["properties"]["action"]["description"] for name in ACTIONS)
    json.dumps(described)


def test_state_topics_and_records(api: Api) -> None:
    assert api.get("/openapi.json")["paths"]
    state = api.get("/state")
    assert ([node["node"] for node in state["nodes"]], state["topics"]) == ([1, 2, 3], ["t"])
    api.post("/topics", topic="u", partitions=3, configs={"retention.ms": "100000"})
    sender = client(api, client_id="me")
    send(sender, "u", "hello", 1)
    (record,) = api.get("/topics/u/1/records")
    assert base64.b64decode(record["value"]) == b"hello"
    assert [partition["high_watermark"] for partition in api.get("/topics/u")["partitions"]] == [0, 1, 0]
    (seen,) = api.get("/requests?api=Produce&client_id=me")
    assert seen["request"]["topic_data"][0]["partition_data"][0]["index"] == 1
    assert any(event["kind"] == "topic.created" for event in api.get("/events?kind=topic.created"))
    assert "topic u" in api.get("/report")["text"]
    assert any(connection["client_id"] == "me" for connection in api.get("/connections"))


def test_added_node_has_same_listeners() -> None:
    with serving("-p", "0", "--dev-tls", "--seed-topic", "t") as api:
        address = api.post("/nodes")["address"]
        host, _, port = address.rpartition(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection((host, int(port)), timeout=60) as plain, context.wrap_socket(plain) as wire:
            assert wire.version() == "TLSv1.3"


def test_groups_are_described_and_expired(api: Api) -> None:
    send(client(api), "t", "a")
    reader = consumer(api, "t")  # type: ignore[arg-type]
    read(reader, 1)
    reader.commit(asynchronous=False)
    group = api.get("/groups/g")
    assert (group["state"], group["offsets"]["t-0"]) == ("Stable", 1)
    assert group["members"][0]["assignment"] == {"t": [0, 1]}
    node = api.get("/coordinators/group/g")["node"]
    api.post("/coordinators/group/g", node=node % 3 + 1)
    assert api.get("/coordinators/group/g")["node"] == node % 3 + 1
    api.post("/groups/g/expire")
    assert api.get("/events?kind=timeout")[-1]["what"] == "session"
    reader.close()


def test_rule_is_added_and_waited_for(api: Api) -> None:
    rule = api.post("/rules", api="Produce", topic="t", partitions=[0], error="MESSAGE_TOO_LARGE", action="error")
    sender = client(api, enable_idempotence=False)
    assert send(sender, "t", "a", 0).error_name == "MSG_SIZE_TOO_LARGE"
    assert send(sender, "t", "a", 1).error is None
    done = api.get(f"/rules/{rule['rule']}/wait?seconds=30")
    assert (done["hits"], done["active"], done["requests"][0]["api"]) == (1, False, "Produce")
    asleep = api.post("/rules", api="Produce", action="sleep")["rule"]
    delivery = Delivery(sender, "t", "b", 1)
    api.get(f"/rules/{asleep}/wait")
    assert not delivery.done
    api.post(f"/rules/{asleep}/wake")
    assert delivery.wait().error is None
    api.delete(f"/rules/{asleep}")
    assert [listed["rule"] for listed in api.get("/rules")] == [rule["rule"]]


def test_answer_rule_takes_response_as_json(api: Api) -> None:
    refused = {"topics": [{"name": "x", "error_code": 44, "error_message": "not here"}]}
    api.post("/rules", api="CreateTopics", action="answer", response=refused)
    admin = AdminClient({"bootstrap.servers": api.bootstrap})
    with pytest.raises(KafkaException, match="not here"):
        admin.create_topics([NewTopic("x", 1)])["x"].result(60)
    admin.create_topics([NewTopic("x", 1)])["x"].result(60)
    for response, problem in (({"topics": 3}, "must be a list"), ({"nope": 1}, "no field nope")):
        with pytest.raises(urllib.error.HTTPError) as raised:
            api.post("/rules", api="CreateTopics", action="answer", response=response)
        assert problem in json.load(raised.value)["error"]


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - {"answer", "error", "sleep"}))
def test_every_action_is_accepted(api: Api, action: str) -> None:
    more = {"seconds": 0.01} if action.startswith("delay") else {}
    rule = api.post("/rules", api="Metadata", action=action, times=1, **more)["rule"]
    sender = client(api, socket_timeout_ms=1000)
    assert send(sender, "t", "a").error is None
    eventually(lambda: api.get(f"/rules/{rule}")["hits"] == 1)


def test_nodes_leaders_and_coordinators(api: Api) -> None:
    sender = client(api)
    api.post("/topics/t/0/leader", node=2)
    assert api.get("/topics/t")["partitions"][0]["leader"] == 2
    assert send(sender, "t", "a", 0).error is None
    api.post("/topics/t/0/followers", nodes=[3])
    api.post("/nodes/2/stop")
    assert api.get("/topics/t")["partitions"][0]["leader"] == 3
    assert send(sender, "t", "b", 0).error is None
    api.post("/nodes/2/start")
    assert len(api.get("/state")["nodes"]) == 3
    added = api.post("/nodes")["node"]
    assert len(api.get("/state")["nodes"]) == 4
    api.delete(f"/nodes/{added}")
    assert len(api.get("/state")["nodes"]) == 3
    api.post("/shuffle-leaders", topics=["t"])
    api.post("/nodes/1/pause")
    api.post("/nodes/1/resume")
    api.post("/roll-segments", topic="t")
    assert api.post("/apply-retention", topic="t") == {"segments": 0}
    api.post("/compact")


def test_failed_operations_explain_themselves(api: Api) -> None:
    for ask, status, problem in (
        (lambda: api.get("/nothing"), 404, "openapi.json"),
        (lambda: api.get("/groups/none"), 404, "none"),
        (lambda: api.post("/state"), 405, "supports GET"),
        (lambda: api.post("/rules", action="explode"), 400, "use one of"),
        (lambda: api.post("/rules", action="error", api="Fetch", error="NOPE"), 400, "no error 'NOPE'"),
        (lambda: api.post("/topics"), 400, "missing: topic"),
        (lambda: api.post("/topics", topic="x", color="red"), 400, "unknown: color"),
        (lambda: api.post("/topics", topic="not a name"), 409, "INVALID_TOPIC"),
        (lambda: api.post("/advance", seconds=1), 400, "runs in real time"),
        (lambda: api.post("/nodes/9/stop"), 400, "no node 9"),
        (lambda: api.get("/events?kind=nope"), 400, "events: nope"),
        (lambda: api.get("/rules/999"), 404, "no rule 999"),
    ):
        with pytest.raises(urllib.error.HTTPError) as raised:
            ask()  # type: ignore[no-untyped-call]
        assert raised.value.code == status
        assert problem in json.load(raised.value)["error"]


def test_advance_moves_virtual_time() -> None:
    with serving("-p", "0", "--seed-topic", "t", "--virtual-time") as api:
        sender = client(api, transactional_id="x", transaction_timeout_ms=120_000)
        sender.init_transactions(60)
        sender.begin_transaction()
        sender.produce("t", "a")
        sender.flush(60)
        assert [transaction["state"] for transaction in api.get("/transactions")] == ["Ongoing"]
        before = api.get("/state")["time_ms"]
        api.post("/advance", seconds=150)
        assert api.get("/state")["time_ms"] == before + 150_000
        assert [transaction["state"] for transaction in api.get("/transactions")] == ["CompleteAbort"]
        with pytest.raises(KafkaException):
            sender.commit_transaction(60)


def test_shutdown_with_open_http_connections_logs_nothing() -> None:
    command = [sys.executable, "-m", "ottla", "serve", "--json", "-p", "0", "--control", "0", "--metrics", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    urls = json.loads(process.stdout.readline())
    wires = []
    for url in (urls["control"] + "/state", urls["control"] + "/requests", urls["metrics"]):
        port, path = url.removeprefix("http://127.0.0.1:").split("/", 1)
        wire = socket.create_connection(("127.0.0.1", int(port)), timeout=60)
        wire.sendall(f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert wire.recv(12) == b"HTTP/1.1 200"
        wires.append(wire)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    for wire in wires:
        wire.close()
    assert process.returncode == 0
    assert [line for line in log.splitlines() if "INFO" not in line] == []


def test_control_port_in_use_is_reported_before_the_broker_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "ottla", "serve", "-p", "0", "--control", port]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert f"cannot listen on http://127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_control_beyond_loopback_requires_a_token() -> None:
    command = [sys.executable, "-m", "ottla", "serve", "-p", "0", "--control", "0.0.0.0:0"]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "a token is required: set OTTLA_CONTROL_TOKEN or --control-token" in result.stderr


def test_web_page_cannot_reset_a_broker() -> None:
    with serving("-p", "0", "--seed-topic", "t") as api:
        for headers in (
            {"Origin": "http://evil.example", "Content-Type": "application/json"},
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Host": "evil.example", "Content-Type": "application/json"},
        ):
            request = urllib.request.Request(api.url + "/reset", b"{}", headers, method="POST")
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=60)
            assert refused.value.code in (403, 415)


def test_rule_is_described_with_the_names_that_it_was_added_with(api: Api) -> None:
    provided = {
        "action": "delay_response",
        "api": "Produce",
        "node": 1,
        "topic": "t",
        "partitions": [0, 1],
        "client_id": "c",
        "times": 0,
    }
    rule = api.post("/rules", **provided, seconds=1)
    assert {name: rule[name] for name in provided} == provided
    assert api.get("/rules") == [rule]


def test_rule_numbers_start_at_one_after_reset(api: Api) -> None:
    assert [api.post("/rules", action="observe")["rule"] for _ in range(2)] == [1, 2]
    api.post("/reset")
    assert api.get("/rules") == []
    assert api.post("/rules", action="observe")["rule"] == 1


def test_exhausted_rule_is_still_described(api: Api) -> None:
    rule = api.post("/rules", action="observe", api="Metadata")["rule"]
    AdminClient({"bootstrap.servers": api.bootstrap}).list_topics(timeout=60)
    described = api.get(f"/rules/{rule}/wait")
    assert (described["hits"], described["active"]) == (1, False)


def test_control_port_is_open_as_soon_as_the_brokers() -> None:
    broker, control = free_ports(2)
    command = [sys.executable, "-m", "ottla", "serve", "-p", str(broker), "--control", str(control), "-l", "none"]
    process = subprocess.Popen([*command, "--seed-topic", "t"], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: process.poll() is not None or _accepts(broker), "the broker's port")
        with urllib.request.urlopen(f"http://127.0.0.1:{control}/state", timeout=60) as response:
            assert json.load(response)["topics"] == ["t"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True
