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
