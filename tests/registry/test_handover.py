"""Topics that Confluent's registry and Karapace wrote: the record shapes of both are read and continued."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Producer

from ottla.client import Client
from ottla.registry.server import RegistryServer
from ottla.server.web_options import WebOptions
from ottla.testing import Cluster

from .http_client import Http

# Confluent 8: empty fields left out, md5 in base64, keys with magic.
CONFLUENT: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"keytype": "NOOP", "magic": 0}, None),
    (
        {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1},
        {"subject": "a", "version": 1, "id": 1, "md5": "71JOobkecxc9k4reNsHbMg==", "schema": '"int"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "p", "version": 1, "magic": 1},
        {
            "subject": "p",
            "version": 1,
            "id": 2,
            "schemaType": "PROTOBUF",
            "references": [],
            "schema": 'syntax = "proto3";\n\nmessage M {\n  string a = 1;\n}\n',
            "deleted": False,
            "offset": 12,
            "ts": 99,
        },
    ),
    (
        {"keytype": "CONFIG", "subject": "a", "magic": 0},
        {"subject": "a", "normalize": True, "compatibilityLevel": "FULL_TRANSITIVE", "compatibilityPolicy": "STRICT"},
    ),
    ({"keytype": "CONFIG", "magic": 0}, {"compatibilityLevel": "NONE"}),
    ({"keytype": "MODE", "subject": "p", "magic": 0}, {"subject": "p", "mode": "READONLY"}),
    (
        {"keytype": "CONTEXT", "tenant": "default", "context": ".test", "magic": 0},
        {"tenant": "default", "context": ".test"},
    ),
    (
        {"keytype": "SCHEMA", "subject": ":.test:a", "version": 1, "magic": 1},
        {"subject": ":.test:a", "version": 1, "id": 1, "schema": '"long"', "deleted": False},
    ),
    ({"keytype": "DELETE_SUBJECT", "subject": "p", "magic": 0}, {"subject": "p", "version": 1}),
    (
        {"keytype": "ASSOC", "tenant": "default", "resourceName": "t", "magic": 0},
        {"resourceName": "t", "subject": "a"},
    ),
    # The second schema with an id is refused by Confluent's registry too.
    (
        {"keytype": "SCHEMA", "subject": "b", "version": 1, "magic": 1},
        {"subject": "b", "version": 1, "id": 1, "schema": '"double"', "deleted": False},
    ),
]
# Karapace: no md5, the subject missing in configs, the type after the schema, deletion as a new value.
KARAPACE: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    (
        {"keytype": "SCHEMA", "subject": "k", "version": 1, "magic": 1},
        {"subject": "k", "version": 1, "id": 6, "schema": '"long"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "k2", "version": 1, "magic": 1},
        {"subject": "k2", "version": 1, "id": 7, "schema": '{"type":"object"}', "deleted": False, "schemaType": "JSON"},
    ),
    ({"keytype": "CONFIG", "subject": "k", "magic": 0}, {"compatibilityLevel": "NONE"}),
    (
        {"keytype": "SCHEMA", "subject": "k", "version": 1, "magic": 1},
        {"subject": "k", "version": 1, "id": 6, "schema": '"long"', "deleted": True},
    ),
    (
        {"keytype": "SCHEMA", "subject": "k", "version": 2, "magic": 1},
        {"subject": "k", "version": 2, "id": 8, "schema": '"string"', "deleted": False},
    ),
]


def write(cluster: Cluster, records: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in records:
        producer.produce("_schemas", key=json.dumps(key), value=None if value is None else json.dumps(value))
    producer.flush()


def test_topic_of_a_confluent_registry_is_served() -> None:
    with Cluster(topics={"_schemas": {"configs": {"cleanup.policy": "compact"}}}) as cluster:
        write(cluster, CONFLUENT)
        with RegistryServer(lambda: Client(cluster.bootstrap), WebOptions()) as registry:
            http = Http(registry.url)
            assert http("GET", "/subjects").body == [":.test:a", "a"]
            assert http("GET", "/subjects?deleted=true").body == [":.test:a", "a", "p"]
            assert http("GET", "/subjects/a/versions/1").body["guid"] == "ef524ea1-b91e-7317-3d93-8ade36c1db32"
            assert http("GET", "/config/a").body["compatibilityLevel"] == "FULL_TRANSITIVE"
            assert http("GET", "/config").body == {"compatibilityLevel": "NONE"}
            assert http("GET", "/mode/p").body == {"mode": "READONLY"}
            assert http("GET", "/contexts/.test/schemas/ids/1").body["schema"] == '"long"'
            assert http("GET", "/subjects/b/versions").status == 404
            assert registry.state.unreadable == 1
            assert http.register("new", '"bytes"').body["id"] == 3


def test_topic_of_karapace_is_served_and_continued() -> None:
    with Cluster(topics={"_schemas": {"configs": {"cleanup.policy": "compact"}}}) as cluster:
        write(cluster, KARAPACE)
        with RegistryServer(lambda: Client(cluster.bootstrap), WebOptions()) as registry:
            http = Http(registry.url)
            assert http("GET", "/subjects").body == ["k", "k2"]
            assert http("GET", "/subjects/k/versions?deleted=true").body == [1, 2]
            assert http("GET", "/config/k").body == {"compatibilityLevel": "NONE"}
            assert http("GET", "/schemas/ids/7").body["schemaType"] == "JSON"
            assert http.register("k", '"bytes"').body == {**http("GET", "/schemas/ids/9").body, "id": 9, "version": 3}
            assert registry.state.unreadable == 0
        records = {record.key: json.loads(record.value or b"null") for record in cluster.records("_schemas")}
        key = b'{"keytype":"SCHEMA","subject":"k","version":3,"magic":1}'
        assert {name: records[key][name] for name in ("subject", "version", "id", "schema", "deleted")} == {
            "subject": "k",
            "version": 3,
            "id": 9,
            "schema": '"bytes"',
            "deleted": False,
        }
