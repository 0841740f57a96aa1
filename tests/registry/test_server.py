"""A running registry: state across restarts, several registries on one topic, damaged records, real clients."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.client import Client
from ottla.registry.schemas_topic import SchemasTopic
from ottla.registry.server import RegistryServer
from ottla.server.web_options import WebOptions
from ottla.testing import Cluster

from .http_client import Http

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def serve(cluster: Cluster) -> RegistryServer:
    return RegistryServer(lambda: Client(cluster.bootstrap), WebOptions())


def test_state_is_the_topic_and_survives_a_restart(cluster: Cluster) -> None:
    with serve(cluster) as registry:
        http = Http(registry.url)
        http.register("a", ORDER)
        http.register("b", '"string"')
        http("PUT", "/config/a", {"compatibility": "FULL"})
        http("DELETE", "/subjects/b")
        before = [http("GET", path).body for path in ("/subjects?deleted=true", "/config/a", "/schemas?deleted=true")]
    keys = [json.loads(record.key or b"{}")["keytype"] for record in cluster.records("_schemas")]
    assert [key for key in keys if key != "NOOP"] == ["SCHEMA", "SCHEMA", "CONFIG", "DELETE_SUBJECT"]
    last = cluster.records("_schemas")[-1]
    assert keys[-1] == "NOOP", "Karapace never starts on a topic that ends with the marker of a transaction"
    assert last.offset + 1 == cluster.partition("_schemas").high_watermark
    first = cluster.records("_schemas")[0]
    assert json.loads(first.key or b"") == {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}
    assert json.loads(first.value or b"")["schema"] == json.dumps(ORDER, separators=(",", ":"))
    with serve(cluster) as registry:
        http = Http(registry.url)
        after = [http("GET", path).body for path in ("/subjects?deleted=true", "/config/a", "/schemas?deleted=true")]
    assert before == after


def test_two_registries_never_give_one_id_to_two_schemas(cluster: Cluster) -> None:
    with serve(cluster) as one, serve(cluster) as other, ThreadPoolExecutor(4) as threads:
        clients = [Http(one.url), Http(other.url)]

        def register(number: int) -> tuple[int, int]:
            schema = {"type": "fixed", "name": f"F{number}", "size": 1}
            return number, clients[number % 2].register(f"s{number}", schema).body["id"]

        provided = dict(threads.map(register, range(40)))
        assert len(set(provided.values())) == 40
        for number, schema_id in provided.items():
            for http in clients:
                versions = http("GET", f"/subjects/s{number}/versions/latest")
                if versions.status == 200:
                    assert versions.body["id"] == schema_id
    with serve(cluster) as third:
        http = Http(third.url)
        assert {number: http("GET", f"/subjects/s{number}/versions/1").body["id"] for number in provided} == provided


def test_unreadable_record_is_reported_and_skipped(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with serve(cluster) as registry:
        Http(registry.url).register("a", ORDER)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, value in [(b"\xff", b"x"), (b'{"keytype":"SCHEMA"}', b"{}"), (b'{"keytype":"NEW"}', b"{}"), (b"[]", None)]:
        producer.produce("_schemas", key=key, value=value)
    producer.flush()
    with caplog.at_level(logging.ERROR), serve(cluster) as registry:
        assert Http(registry.url)("GET", "/subjects").body == ["a"]
        assert registry.state.unreadable == 4
    assert caplog.text.count("_schemas-0: cannot read the record at offset") == 4


def test_topic_with_several_partitions_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("_schemas", 2)
    with pytest.raises(ValueError, match="topic _schemas has 2 partitions"):
        serve(cluster).start()


def test_confluent_client_registers_evolves_and_deletes(cluster: Cluster) -> None:
    with serve(cluster) as registry:
        client = SchemaRegistryClient({"url": registry.url})
        first = client.register_schema("orders-value", Schema(json.dumps(ORDER), "AVRO"))
        wider = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
        assert client.register_schema("orders-value", Schema(json.dumps(wider), "AVRO")) == first + 1
        other = {**ORDER, "fields": [{"name": "q", "type": "int"}]}
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema("orders-value", Schema(json.dumps(other), "AVRO"))
        assert refused.value.http_status_code == 409
        assert client.get_latest_version("orders-value").version == 2
        assert client.lookup_schema("orders-value", Schema(json.dumps(ORDER), "AVRO")).version == 1
        assert client.test_compatibility("orders-value", Schema(json.dumps(ORDER), "AVRO"))
        assert client.set_compatibility("orders-value", "NONE")["compatibility"] == "NONE"
        client.register_schema("item", Schema('syntax = "proto3"; message Item { string sku = 1; }', "PROTOBUF"))
        reference = SchemaReference("item.proto", "item", 1)
        order = 'syntax = "proto3"; import "item.proto"; message Order { Item item = 1; }'
        assert client.register_schema("order", Schema(order, "PROTOBUF", [reference])) == 4
        assert client.delete_subject("orders-value") == [1, 2]
        assert client.get_subjects() == ["item", "order"]


def test_records_go_through_confluents_serializers(cluster: Cluster) -> None:
    cluster.create_topic("orders")
    json_schema = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "string"}}})
    with serve(cluster) as registry:
        client = SchemaRegistryClient({"url": registry.url})
        context = SerializationContext("orders", MessageField.VALUE)
        pairs = [
            (AvroSerializer(client, json.dumps(ORDER)), AvroDeserializer(client), {"id": "o-1", "n": 2}),
            (
                JSONSerializer(json_schema, client, conf={"subject.name.strategy": lambda *_: "orders-json"}),
                JSONDeserializer(json_schema, schema_registry_client=client),
                {"id": "o-2"},
            ),
        ]
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for serializer, _, value in pairs:
            producer.produce("orders", value=serializer(value, context))
        producer.flush()
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        messages = []
        while len(messages) < len(pairs):
            messages += consumer.consume(len(pairs), 1.0)
        consumer.close()
        for message, (_, deserializer, value) in zip(messages, pairs, strict=True):
            assert deserializer(message.value(), context) == value


def test_cluster_reset_empties_the_registry_and_keeps_its_url() -> None:
    with Cluster(registry=True) as cluster:
        url = cluster.registry_url
        Http(url).register("a", ORDER)
        cluster.reset()
        assert cluster.registry_url == url
        assert Http(url)("GET", "/subjects").body == []
        assert Http(url).register("a", ORDER).body["id"] == 1


def test_write_answered_without_offset_is_visible_when_it_returns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka answers a retry of an old batch as a duplicate, without its offset."""
    appended = SchemasTopic._appended
    monkeypatch.setattr(
        SchemasTopic, "_appended", lambda topic, delivered: appended(topic, delivered._replace(base_offset=-1))
    )
    with serve(cluster) as registry:
        http = Http(registry.url)
        for number in range(10):
            assert http.register("a", f'{{"type":"fixed","name":"F","size":{number + 1}}}').status in (200, 409)
            assert http.register(f"s{number}", '"int"').status == 200
            assert http("GET", f"/subjects/s{number}/versions/1").status == 200
