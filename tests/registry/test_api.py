"""The REST API, request by request, with Confluent's status codes, error codes and messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ottla.testing import Cluster

from .http_client import Http

if TYPE_CHECKING:
    from collections.abc import Iterator


def record(*names: str, default: bool = False, name: str = "R") -> dict[str, Any]:
    fields = [{"name": entry, "type": "int", **({"default": 0} if default else {})} for entry in names]
    return {"type": "record", "name": name, "fields": fields}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True) as cluster:
        yield cluster


@pytest.fixture
def http(cluster: Cluster) -> Http:
    cluster.reset()
    return Http(cluster.registry_url)


@pytest.fixture(scope="module")
def unchanged() -> Iterator[Http]:
    """A registry with one subject, for requests that change nothing."""
    with Cluster(registry=True) as cluster:
        http = Http(cluster.registry_url)
        http.register("a", record("x"))
        yield http


def test_register_returns_the_same_id_for_the_same_schema(http: Http) -> None:
    first = http.register("a-value", record("x"))
    assert (first.status, first.content_type) == (200, "application/vnd.schemaregistry.v1+json")
    assert (first.body["id"], first.body["version"], first.body["schemaType"]) == (1, 1, "AVRO")
    assert http.register("a-value", json.dumps(record("x"), indent=3)).body["id"] == 1
    assert http.register("b-value", record("x")).body["id"] == 1
    assert http.register("b-value", record("x", "y", default=True)).body == {
        **http("GET", "/schemas/ids/2").body,
        "id": 2,
        "version": 2,
    }
    assert http("GET", "/subjects").body == ["a-value", "b-value"]
    assert http("GET", "/subjects?subjectPrefix=b").body == ["b-value"]
    assert http("GET", "/subjects/b-value/versions").body == [1, 2]
    assert http("GET", "/schemas/ids/1/versions").body == [
        {"subject": "a-value", "version": 1},
        {"subject": "b-value", "version": 1},
    ]
    assert http("GET", "/schemas/ids/1/subjects").body == ["a-value", "b-value"]
    assert http("GET", "/schemas/types").body == ["JSON", "PROTOBUF", "AVRO"]


def test_version_can_be_read_by_number_latest_id_and_guid(http: Http) -> None:
    guid = http.register("a", record("x")).body["guid"]
    by_number = http("GET", "/subjects/a/versions/1").body
    assert by_number["subject"] == "a"
    assert http("GET", "/subjects/a/versions/latest").body == by_number
    assert http("GET", "/subjects/a/versions/1/schema").body == record("x")
    assert http("GET", "/schemas/ids/1").body["schema"] == by_number["schema"]
    assert http("GET", f"/schemas/guids/{guid}").body["schema"] == by_number["schema"]
    assert http("GET", f"/schemas/guids/{guid}/ids").body == [{"context": ".", "id": 1}]
    assert [row["subject"] for row in http("GET", "/schemas").body] == ["a"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        ("GET", "/subjects/none/versions", None, 404, 40401, "Subject 'none' not found."),
        ("GET", "/subjects/a/versions/9", None, 404, 40402, "Version 9 not found."),
        ("GET", "/subjects/a/versions/0", None, 422, 42202, "The specified version '0' is not a valid version id. "),
        ("GET", "/subjects/a/versions/x", None, 422, 42202, "The specified version 'x' is not a valid version id. "),
        ("GET", "/schemas/ids/9", None, 404, 40403, "Schema 9 not found"),
        ("GET", "/schemas/ids/x", None, 404, 404, "HTTP 404 Not Found"),
        ("GET", "/schemas/guids/x", None, 404, 40403, "Schema x not found"),
        ("POST", "/subjects/a", {"schema": '"string"'}, 404, 40403, "Schema not found"),
        ("POST", "/subjects/none", {"schema": '"string"'}, 404, 40401, "Subject 'none' not found."),
        ("POST", "/subjects/new/versions", {"schema": ""}, 422, 42201, "Empty schema"),
        ("POST", "/subjects/new/versions", {}, 422, 42201, "Empty schema"),
        ("POST", "/subjects/a/versions", {"schema": "nonsense"}, 422, 42201, "Invalid schema {subject=a,"),
        ("POST", "/subjects/a/versions", {"schema": "1", "schemaType": "XML"}, 422, 42201, "Invalid schema type XML"),
        ("POST", "/subjects/a/versions", b"{", 400, 400, "Cannot deserialize the body"),
        ("POST", "/subjects/a/versions", b"[]", 400, 400, "Cannot deserialize the body"),
        ("POST", "/subjects/a/versions", {"schema": 5}, 400, 400, 'Cannot deserialize the body: "schema" is a string'),
        ("POST", "/subjects/a/versions", {"schema": "1", "references": [{}]}, 400, 400, "Cannot deserialize the body"),
        (
            "POST",
            "/subjects/%00/versions",
            {"schema": '"int"'},
            422,
            42208,
            "The specified subject '\0' is not a valid.",
        ),
        ("DELETE", "/subjects/none", None, 404, 40401, "Subject 'none' not found."),
        ("DELETE", "/subjects/a?permanent=true", None, 404, 40405, "Subject 'a' was not deleted first"),
        ("DELETE", "/subjects/a/versions/1?permanent=true", None, 404, 40407, "Subject 'a' Version 1 was not deleted"),
        ("GET", "/config/a", None, 404, 40408, "Subject 'a' does not have subject-level compatibility configured"),
        ("PUT", "/config", {"compatibility": "sometimes"}, 422, 42203, "Invalid compatibility level."),
        ("GET", "/mode/a", None, 404, 40409, "Subject 'a' does not have subject-level mode configured"),
        ("PUT", "/mode", {"mode": "ASLEEP"}, 422, 42204, "Invalid mode."),
        ("PUT", "/mode", {"mode": "IMPORT"}, 422, 42205, "Cannot import since found existing subjects"),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "id": 7}, 422, 42205, "Subject a in context . is not in"),
    ],
)
def test_refusals_have_confluents_codes(
    http: Http, method: str, path: str, body: Any, status: int, code: int, message: str
) -> None:
    http.register("a", record("x"))
    answer = http(method, path, body)
    assert (answer.status, answer.body["error_code"]) == (status, code)
    assert answer.body["message"].startswith(message)


def test_incompatible_schema_is_refused_with_its_reasons(http: Http) -> None:
    http.register("a", record("x"))
    answer = http.register("a", record("x", "y"))
    assert (answer.status, answer.body["error_code"]) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer.body["message"]
    assert "{validateFields: 'false', compatibility: 'BACKWARD'}" in answer.body["message"]
    checked = http(
        "POST",
        "/compatibility/subjects/a/versions/latest?verbose=true",
        {"schema": json.dumps(record("x", "y"))},
    )
    assert checked.body["is_compatible"] is False
    assert checked.body["messages"][1] == "{oldSchemaVersion: 1}"
    assert http("POST", "/compatibility/subjects/a/versions", {"schema": json.dumps(record("x"))}).body == {
        "is_compatible": True
    }
    assert http("PUT", "/config/a", {"compatibility": "none"}).body == {"compatibility": "NONE"}
    assert http("GET", "/config/a").body == {"compatibilityLevel": "NONE"}
    assert http.register("a", record("x", "y")).body["version"] == 2
    assert http("DELETE", "/config/a").body == {"compatibilityLevel": "NONE"}
    assert http("GET", "/config/a?defaultToGlobal=true").body == {"compatibilityLevel": "BACKWARD"}


@pytest.mark.parametrize(
    ("level", "accepted"),
    [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False), ("FORWARD", True), ("FULL", True), ("FULL_TRANSITIVE", False)],
)
def test_transitive_levels_look_at_every_version(http: Http, level: str, accepted: bool) -> None:
    http("PUT", "/config", {"compatibility": "NONE"})
    http.register("a", {"type": "enum", "name": "E", "symbols": ["A"]})
    http.register("a", record("x", default=True))
    http("PUT", "/config", {"compatibility": level})
    assert (http.register("a", record("x", "y", default=True)).status == 200) is accepted


def test_deletion_is_soft_first_and_permanent_then(http: Http) -> None:
    http.register("a", record("x"))
    http.register("a", record("x", "y", default=True))
    assert http("DELETE", "/subjects/a/versions/1").body == 1
    assert http("DELETE", "/subjects/a/versions/1").body["error_code"] == 40406
    assert http("GET", "/subjects/a/versions").body == [2]
    assert http("GET", "/subjects/a/versions?deleted=true").body == [1, 2]
    assert http("GET", "/schemas/ids/1").status == 200
    assert http("DELETE", "/subjects/a").body == [2]
    assert http("DELETE", "/subjects/a").body["error_code"] == 40404
    assert http("GET", "/subjects").body == []
    assert http("GET", "/subjects?deleted=true").body == ["a"]
    assert http("DELETE", "/subjects/a?permanent=true").body == [1, 2]
    assert http("GET", "/schemas/ids/1").body["error_code"] == 40403
    assert http.register("a", record("z")).body["id"] == 3, "ids of deleted schemas are not given again"


def test_references_are_resolved_and_block_deletion(http: Http) -> None:
    http.register("item", {"type": "record", "name": "Item", "namespace": "shop", "fields": []})
    order = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "item", "type": "Item"}]}
    references = [{"name": "shop.Item", "subject": "item", "version": 1}]
    assert http.register("order", order).body["error_code"] == 42201
    registered = http.register("order", order, references=references)
    assert registered.body["references"] == references
    assert http("GET", "/subjects/item/versions/1/referencedby").body == [2]
    assert http("DELETE", "/subjects/item/versions/1").body["error_code"] == 42206
    assert '"Item"' in http("GET", "/subjects/order/versions/1?format=resolved").body["schema"]
    http("DELETE", "/subjects/order")
    assert http("DELETE", "/subjects/item/versions/1").body == 1


def test_mode_controls_registration(http: Http) -> None:
    assert http("GET", "/mode").body == {"mode": "READWRITE"}
    assert http("PUT", "/mode", {"mode": "IMPORT"}).body == {"mode": "IMPORT"}
    imported = http.register("a", record("x"), id=100, version=5)
    assert (imported.body["id"], imported.body["version"]) == (100, 5)
    assert http.register("b", record("y"), id=100).body["error_code"] == 42205
    assert http.register("b", record("x"), id=101).body["error_code"] == 42207
    assert http("PUT", "/mode", {"mode": "READONLY"}).body == {"mode": "READONLY"}
    assert http.register("a", record("y", name="R")).body["error_code"] == 42205
    assert http("PUT", "/mode/a", {"mode": "READWRITE"}).status == 200
    assert http.register("a", record("x", "y", default=True)).body["id"] == 101
    assert http("DELETE", "/mode/a").body == {"mode": "READWRITE"}


def test_contexts_have_ids_of_their_own(http: Http) -> None:
    http.register("a", record("x"))
    assert http.register(":.test:a", record("y")).body["id"] == 1
    assert http("GET", "/contexts").body == [".", ".test"]
    assert http("GET", "/contexts/.test/subjects").body == [":.test:a"]
    assert http("GET", "/contexts/.test/schemas/ids/1").body["schema"] == json.dumps(record("y"), separators=(",", ":"))
    assert http("GET", "/contexts/.test/subjects/a/versions").body == [1]
    assert http("GET", "/subjects?subjectPrefix=a").body == ["a"]


def test_normalize_finds_a_schema_with_other_order(http: Http) -> None:
    http("POST", "/subjects/a/versions?normalize=true", {"schema": '{"type":"int","b":1,"a":2}'})
    body = {"schema": '{"a":2,"type":"int","b":1}'}
    assert http("POST", "/subjects/a?normalize=true", body).body["version"] == 1
    assert http("POST", "/subjects/a/versions?normalize=true", body).body["id"] == 1


def test_page_of_another_site_is_refused(http: Http) -> None:
    origin = {"Origin": "http://evil.example"}
    assert http("PUT", "/config", {"compatibility": "NONE"}, origin).status == 403
    assert http("GET", "/subjects", headers={"Host": "evil.example"}).status in (400, 403, 421)
    assert http("POST", "/subjects/a/versions", b"{}", {"Content-Type": "text/plain"}).status in (403, 415)
    assert http("GET", "/config").body == {"compatibilityLevel": "BACKWARD"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, 404),
        ("DELETE", "/subjects", None, 405, 405),
        ("PATCH", "/config", {}, 405, 405),
        ("POST", "/subjects/a/versions", b"", 422, 422),
        ("POST", "/subjects/a/versions", b"\xff\xfe{", 400, 400),
        ("POST", "/subjects/a/versions", b"[" * 100_000, 400, 400),
        ("POST", "/subjects/a/versions", b'{"schema": NaN}', 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "schemaType": 5}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "version": "1"}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "version": -2}, 422, 42202),
        ("POST", "/subjects/a/versions", {"schema": json.dumps(record("x")), "version": 5}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "id": 2**31}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "id": True}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "references": {}}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "references": [1]}, 400, 400),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": '"int"', "references": [{"name": "x", "subject": "y", "version": 0}]},
            422,
            42202,
        ),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": '"int"', "references": [{"name": "x", "subject": "y", "version": 1}]},
            422,
            42201,
        ),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "metadata": []}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "metadata": {"properties": {"a": 1}}}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "metadata": {"tags": {"a": "b"}}}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "ruleSet": []}, 400, 400),
        ("POST", "/subjects/a/versions", {"schema": '"int"', "ruleSet": {"domainRules": [{}]}}, 422, 42210),
        (
            "POST",
            "/subjects/a/versions",
            {"schema": '"int"', "ruleSet": {"domainRules": [{"name": "r", "type": "CEL", "mode": "UPGRADE"}]}},
            422,
            42210,
        ),
        ("POST", "/subjects/a/versions", {"schema": "[", "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": "message {", "schemaType": "PROTOBUF"}, 422, 42201),
        ("POST", "/subjects/a", b"{", 400, 400),
        ("POST", "/compatibility/subjects/a/versions/0", {"schema": '"int"'}, 422, 42202),
        ("POST", "/compatibility/subjects/a/versions/99", {"schema": '"int"'}, 404, 40402),
        ("POST", "/compatibility/subjects/a/versions/latest", {"schema": "nonsense"}, 422, 42201),
        ("GET", "/subjects/a/versions/2147483648", None, 422, 42202),
        ("GET", "/subjects/a/versions/-2", None, 422, 42202),
        ("GET", "/subjects/a/versions/1?format=xml", None, 422, 42201),
        ("GET", "/subjects/a/versions/9/schema", None, 404, 40402),
        ("GET", "/subjects/none/versions/1/referencedby", None, 404, 40401),
        ("GET", "/subjects/none/metadata", None, 404, 40401),
        ("GET", "/subjects/a/metadata?key=k&value=v", None, 404, 40403),
        ("GET", "/schemas/ids/99999999999", None, 404, 404),
        ("GET", "/schemas/ids/-1", None, 404, 40403),
        ("GET", "/schemas/ids/9/subjects", None, 404, 40403),
        ("GET", "/schemas/ids/9/versions", None, 404, 40403),
        ("GET", "/schemas/guids/00000000-0000-0000-0000-000000000000/ids", None, 404, 40403),
        ("GET", "/subjects?offset=x", None, 404, 404),
        ("DELETE", "/subjects/a/versions/0", None, 422, 42202),
        ("DELETE", "/subjects/none/versions/1", None, 404, 40401),
        ("DELETE", "/config/a", None, 404, 40401),
        ("DELETE", "/mode/a", None, 404, 40401),
        ("DELETE", "/contexts/.none", None, 404, 40401),
        ("PUT", "/config", b"5", 400, 400),
        ("PUT", "/config", {"normalize": "yes"}, 400, 400),
        ("PUT", "/config", {"compatibilityPolicy": "KIND"}, 400, 400),
        ("PUT", "/config/a", {"alias": 5}, 400, 400),
        ("PUT", "/config/a", {"defaultRuleSet": {"domainRules": [{"name": "1"}]}}, 422, 42210),
        ("PUT", "/config/%01", {"compatibility": "NONE"}, 422, 42208),
        ("PUT", "/mode", {}, 422, 42204),
        ("PUT", "/mode", {"mode": 5}, 422, 42204),
    ],
)
def test_malformed_request_is_refused(
    unchanged: Http, method: str, path: str, body: Any, status: int, code: int
) -> None:
    http = unchanged
    before = http("GET", "/schemas?deleted=true").body
    answer = http(method, path, body)
    assert (answer.status, answer.body["error_code"]) == (status, code), answer
    assert answer.body["message"]
    assert http("GET", "/schemas?deleted=true").body == before


def test_metadata_and_rules_are_inherited_and_overridden(http: Http) -> None:
    rule = {"name": "check", "type": "CEL", "kind": "CONDITION", "mode": "WRITE", "expr": "true"}
    first = http.register(
        "a", record("x"), metadata={"properties": {"owner": "me"}}, ruleSet={"domainRules": [rule]}
    ).body
    assert first["ruleSet"] == {"domainRules": [rule]}
    second = http.register("a", record("x", "y", default=True)).body
    assert (second["metadata"], second["ruleSet"]) == (first["metadata"], first["ruleSet"])
    http("PUT", "/config/a", {"overrideMetadata": {"properties": {"owner": "them"}}})
    third = http.register("a", record("x", "y", "z", default=True)).body
    assert third["metadata"] == {"properties": {"owner": "them"}}
    assert http("GET", "/subjects/a/metadata?key=owner&value=me").body["version"] == 2
    assert first["guid"] != http.register("b", record("x")).body["guid"]
    same = http("POST", "/subjects/a", {"schema": json.dumps(record("x")), "metadata": first["metadata"]})
    assert same.status == 404, "rules are part of the schema's identity"


def test_schema_is_taken_from_the_previous_version_if_left_out(http: Http) -> None:
    http.register("a", record("x"))
    answer = http("POST", "/subjects/a/versions", {"metadata": {"properties": {"owner": "me"}}})
    assert (answer.body["version"], answer.body["schema"]) == (2, http("GET", "/schemas/ids/1").body["schema"])


def test_alias_leads_to_another_subject(http: Http) -> None:
    http.register("orders-value", record("x"))
    assert http("PUT", "/config/old-name", {"alias": "orders-value"}).body == {"alias": "orders-value"}
    assert http("GET", "/subjects/old-name/versions/latest").body["subject"] == "orders-value"
    assert http.register("old-name", record("x", "y", default=True)).body["version"] == 2
    assert http("GET", "/subjects").body == ["orders-value"]


def test_lenient_policy_accepts_properties_added_to_an_open_model(http: Http) -> None:
    narrow = {"type": "object", "properties": {"a": {"type": "string"}}}
    wide = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    http.register("a", narrow, schemaType="JSON")
    assert http.register("a", wide, schemaType="JSON").status == 409
    http("PUT", "/config/a", {"compatibilityPolicy": "lenient"})
    assert http("GET", "/config/a").body == {"compatibilityLevel": "BACKWARD", "compatibilityPolicy": "LENIENT"}
    assert http.register("a", wide, schemaType="JSON").status == 200


def test_contexts_are_filtered_and_deleted(http: Http) -> None:
    http.register(":.one:a", record("x"))
    http.register(":.two:a", record("x"))
    assert http("GET", "/contexts?contextPrefix=.o").body == [".one"]
    assert http("DELETE", "/contexts/.one").body["error_code"] == 42211
    http("DELETE", "/subjects/:.one:a")
    http("DELETE", "/subjects/:.one:a?permanent=true")
    assert http("DELETE", "/contexts/.one").status == 204
    assert http("GET", "/contexts").body == [".", ".two"]
    assert http.register(":.one:a", record("y")).body["id"] == 2, "ids of a deleted context stay taken"


def test_modes_of_a_context_are_deleted_recursively(http: Http) -> None:
    for subject in (":.one:", ":.one:a", "b"):
        http("PUT", f"/mode/{subject}", {"mode": "READONLY"})
    assert http("DELETE", "/mode/:.one:?recursive=true").body == {"mode": "READONLY"}
    assert http("GET", "/mode/:.one:a").status == 404
    assert http("GET", "/mode/b").body == {"mode": "READONLY"}


def test_protobuf_is_returned_as_a_serialized_descriptor(http: Http) -> None:
    http.register("p", 'syntax = "proto3"; message A { string x = 1; }', schemaType="PROTOBUF")
    text = http("GET", "/schemas/ids/1?format=serialized").body["schema"]
    assert http.register("q", text, schemaType="PROTOBUF").body["id"] == 1


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        ("AVRO", "[" * 5000 + "]" * 5000),
        ("AVRO", json.dumps({"type": "enum", "name": "E", "symbols": ["a" * 900_000, "b" * 200_000]})),
        ("JSON", '{"not":' * 3000 + "{}" + "}" * 3000),
        ("JSON", '{"$ref": "#"}'),
        ("JSON", '{"$ref": "http://169.254.169.254/latest"}'),
        ("JSON", '{"$ref": "file:///etc/passwd"}'),
        ("JSON", '{"type": "string", "pattern": "("}'),
        ("JSON", '{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'),
        ("PROTOBUF", "message A {" * 3000 + "}" * 3000),
        ("PROTOBUF", 'syntax = "proto3"; import "/etc/passwd"; message A {}'),
        ("PROTOBUF", 'syntax = "proto3"; message A { A a = 1; ' + "int32 x = 2;" * 50_000 + " }"),
    ],
    ids=range(11),
)
def test_hostile_schema_is_refused_and_the_registry_goes_on(http: Http, type_: str, schema: str) -> None:
    answer = http.register("a", schema, schemaType=type_)
    assert answer.status in (200, 422), answer
    again = http.register("a", schema, schemaType=type_)
    assert again.status == answer.status
    assert http.register("b", record("x")).status == 200


def test_catastrophic_patterns_are_never_executed(http: Http) -> None:
    evil = {"type": "object", "patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False}
    victim = {**evil, "properties": {"a" * 40 + "!": {"type": "string"}}}
    assert http.register("a", evil, schemaType="JSON").status == 200
    assert http.register("a", victim, schemaType="JSON").status in (200, 409)
