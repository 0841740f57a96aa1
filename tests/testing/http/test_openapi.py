"""The OpenAPI description is complete: a client derived from it calls every operation."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from ottla.testing.http.openapi import openapi
from tests.testing.clients import consumer, producer, read, send
from tests.testing.http.test_api import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.testing.http.test_api import Api

TYPES = {"string": str, "integer": int, "number": (int, float), "object": dict, "array": list, "null": type(None)}
KEYWORDS = {
    *("$ref", "additionalProperties", "anyOf", "contentEncoding", "description", "enum", "items", "prefixItems"),
    *("properties", "required", "type"),
}


class DescribedClient:
    """Calls operations by operation id as the description defines them, and checks the results against it."""

    def __init__(self, url: str) -> None:
        self._url = url
        with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as response:
            self.described = json.load(response)
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.described["paths"].items()
            for method, operation in methods.items()
        }
        self.called: set[str] = set()

    def __call__(self, name: str, **arguments: Any) -> Any:
        method, path, operation = self.operations[name]
        query = {}
        for parameter in operation["parameters"]:
            key = parameter["name"]
            if key not in arguments:
                assert not parameter.get("required"), f"{name} needs {key}"
                continue
            value = arguments.pop(key)
            self.check(value, parameter["schema"], f"{name}.{key}")
            if parameter["in"] == "path":
                path = path.replace(f"{{{key}}}", urllib.parse.quote(str(value), safe=""))
            else:
                query[key] = value
        body = None
        if "requestBody" in operation:
            self.check(arguments, operation["requestBody"]["content"]["application/json"]["schema"], name)
            body = json.dumps(arguments).encode()
        else:
            assert not arguments, f"{name} takes no body"
        url = f"{self._url}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                result, kind = json.load(response), "200"
        except urllib.error.HTTPError as error:
            result, kind = json.load(error), "default"
        self.check(result, operation["responses"][kind]["content"]["application/json"]["schema"], name)
        if kind == "200":
            self.called.add(name)
        return result

    def check(self, value: Any, schema: dict[str, Any], where: str) -> None:
        assert set(schema) <= KEYWORDS, where
        if "$ref" in schema:
            schema = self.described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:
            assert any(self._fits(value, option, where) for option in schema["anyOf"]), (where, value)
            return
        kind = schema.get("type")
        if kind is None:
            return
        if kind == "boolean":
            assert isinstance(value, bool), (where, value)
            return
        assert isinstance(value, TYPES[kind]), (where, value)
        assert not isinstance(value, bool), (where, value)
        assert value in schema.get("enum", [value]), (where, value)
        for key in schema.get("required", ()):
            assert key in value, (where, key)
        for key, item in value.items() if kind == "object" else ():
            within = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
            assert within is not False, (where, key)
            self.check(item, within, f"{where}.{key}")
        if kind == "array":
            inside = schema.get("prefixItems") or [schema["items"]] * len(value)
            assert len(value) == len(inside), (where, value)
            for number, (item, within) in enumerate(zip(value, inside, strict=True)):
                self.check(item, within, f"{where}[{number}]")

    def _fits(self, value: Any, schema: dict[str, Any], where: str) -> bool:
        try:
            self.check(value, schema, where)
        except AssertionError:
            return False
        return True


def test_references_resolve_and_path_parameters_are_declared() -> None:
    described = openapi()
    assert set(described) == {"openapi", "info", "servers", "paths", "components"}
    text = json.dumps(described)
    for name in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', text):
        assert described["components"]["schemas"][name]["properties"]
    for path, methods in described["paths"].items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert {"200", "default"} == set(operation["responses"])
            assert operation["summary"]


@pytest.fixture(scope="module")
def server() -> Iterator[Api]:
    with serving("-p", "0,0,0", "--seed-topic", "t:2", "-c", "group.initial.rebalance.delay.ms=0") as api:
        yield api


def test_client_derived_from_description_calls_every_operation(server: Api) -> None:
    call = DescribedClient(server.url)
    assert call("getState")["topics"] == ["t"]
    call("postTopics", topic="u", partitions=2, replication_factor=3, configs={"retention.ms": "1000"})
    assert len(call("getTopics")) == 2
    sender = producer(server, client_id="me", transactional_id="x")  # type: ignore[arg-type]
    sender.init_transactions(60)
    sender.begin_transaction()
    assert send(sender, "u", "hello", 1).error is None
    assert call("getTopicsTopic", topic="u")["partitions"][1]["leader"] > 0
    assert call("getTopicsTopicPartitionRecords", topic="u", partition=1)[0]["transactional"] is True
    assert call("getTransactions")[0]["state"] == "Ongoing"
    call("postTransactionsTransactional_idExpire", transactional_id="x")
    reader = consumer(server, "t")  # type: ignore[arg-type]
    send(producer(server), "t", "hello")  # type: ignore[arg-type]
    read(reader, 1)
    reader.commit(asynchronous=False)
    assert call("getGroups")[0]["group_id"] == "g"
    assert call("getGroupsGroup", group="g")["offsets"] == {"t-0": 1}
    node = call("getCoordinatorsKindKey", kind="group", key="g")["node"]
    call("postCoordinatorsKindKey", kind="group", key="g", node=node % 3 + 1)
    call("postRehashCoordinators")
    call("postGroupsGroupExpire", group="g")
    call("getSessions")
    assert call("getConnections")
    assert call("getRequests", api="Produce", client_id="me", limit=1)[0]["api"] == "Produce"
    assert call("getEvents", kind="topic.created", limit=5)
    assert "topic u" in call("getReport")["text"]
    call("postTopicsTopicPartitionLeader", topic="u", partition=0, node=2)
    call("postTopicsTopicPartitionFollowers", topic="u", partition=0, nodes=[1])
    call("postShuffleLeaders", topics=["u"])
    call("postRollSegments", topic="u")
    call("postApplyRetention")
    call("postCompact")

    rule = call("postRules", action="observe", api="Metadata", times=0)["rule"]
    producer(server).list_topics(timeout=60)  # type: ignore[arg-type]
    assert call("getRulesRuleWait", rule=rule, seconds=60, hits=1)["requests"][0]["api"] == "Metadata"
    assert call("getRulesRule", rule=rule)["active"] is True
    call("postRulesRuleWake", rule=rule)
    assert [listed["rule"] for listed in call("getRules")] == [rule]
    call("deleteRulesRule", rule=rule)
    cut = call("postPartitionClient", client_id="absent")["rule"]
    call("deleteRulesRule", rule=cut)

    added = call("postNodes")["node"]
    for action in ("Stop", "Start", "Restart", "Pause", "Resume"):
        call(f"postNodesNode{action}", node=added)
    call("postNodesNodeSlowDisk", node=added, seconds=0.001)
    call("postNodesNodeFullDisk", node=added, full=True)
    call("postNodesNodeFullDisk", node=added, full=False)
    call("deleteNodesNode", node=added)
    call("postReset")
    reader.close()
    assert call("postTopicsTopicRecords", topic="t", value="hello", partition=1) == {"partition": 1, "offset": 0}
    assert len(call("getTopicsTopicRecords", topic="t", count=1, timeout=60)) == 1
    exploration = call("postExplorations", faults=["disconnect"])["exploration"]
    assert call("postExplorationsExplorationNext", exploration=exploration)["schedule"] == "no faults"
    verdict = call("postExplorationsExplorationVerdict", exploration=exploration, passed=False, message="lost")
    assert verdict == {"verdict": "failed", "violations": []}
    assert call("getExplorationsExploration", exploration=exploration)["problem"]
    assert "lost" in call("getExplorationsExplorationReport", exploration=exploration)["html"]

    assert "error" in call("postAdvance", seconds=1), "time moves by itself here"
    assert set(call.operations) - call.called == {"postAdvance"}


def test_advance_as_described() -> None:
    with serving("-p", "0", "--virtual-time") as api:
        call = DescribedClient(api.url)
        before = call("getState")["time_ms"]
        call("postAdvance", seconds=60)
        assert call("getState")["time_ms"] == before + 60_000


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("getTopicsTopic", {"topic": "none"}),
        ("getGroupsGroup", {"group": "none"}),
        ("getRulesRule", {"rule": 77}),
        ("postNodesNodeStop", {"node": 77}),
        ("postTopics", {"topic": "not allowed!"}),
        ("postTopics", {"topic": "a", "partitions": -3}),
        ("postTransactionsTransactional_idExpire", {"transactional_id": "none"}),
        ("postNodes", {"port": 99_999}),
    ],
)
def test_failures_as_described(server: Api, name: str, arguments: dict[str, Any]) -> None:
    assert DescribedClient(server.url)(name, **arguments)["error"]
