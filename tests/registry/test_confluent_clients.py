"""confluent-kafka's serializers: every type, references, the schema id in prefix or header, evolution."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ottla.schemas.registry_client import RegistryClient
from ottla.schemas.values import Decoder
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEM = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "item", "type": "shop.Item"}]}
SERIALIZERS = {"prefix": prefix_schema_id_serializer, "header": header_schema_id_serializer}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True) as cluster:
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    cluster.reset()
    return cluster.registry_url


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


def context(headers: list[Any] | None = None) -> SerializationContext:
    return SerializationContext("orders", MessageField.VALUE, headers)


def decode(url: str, data: bytes, headers: list[Any]) -> Any:
    return Decoder(RegistryClient(url)).decode(data, dict(headers))


@pytest.mark.parametrize("place", SERIALIZERS)
def test_avro_with_references(url: str, client: SchemaRegistryClient, place: str) -> None:
    client.register_schema("item", Schema(json.dumps(ITEM), "AVRO"))
    schema = Schema(json.dumps(ORDER), "AVRO", [SchemaReference("shop.Item", "item", 1)])
    serialize = AvroSerializer(client, schema, conf={"schema.id.serializer": SERIALIZERS[place]})
    headers: list[Any] = []
    value = {"item": {"sku": "sku-number-one"}}
    data = serialize(value, context(headers))
    assert data is not None
    assert bool(headers) is (place == "header")
    assert AvroDeserializer(client)(data, context(headers)) == value
    assert decode(url, data, headers) == value


@pytest.mark.parametrize("place", SERIALIZERS)
def test_json_schema_with_references(url: str, client: SchemaRegistryClient, place: str) -> None:
    item = {"$id": "item.json", "type": "object", "properties": {"sku": {"type": "string"}}}
    client.register_schema("item", Schema(json.dumps(item), "JSON"))
    order = {"title": "Order", "type": "object", "properties": {"item": {"$ref": "item.json"}}}
    schema = Schema(json.dumps(order), "JSON", [SchemaReference("item.json", "item", 1)])
    serialize = JSONSerializer(schema, client, conf={"schema.id.serializer": SERIALIZERS[place]})
    headers: list[Any] = []
    value = {"item": {"sku": "sku-number-one"}}
    data = serialize(value, context(headers))
    assert data is not None
    assert JSONDeserializer(schema, schema_registry_client=client)(data, context(headers)) == value
    assert decode(url, data, headers) == value
    with pytest.raises(SerializationError):
        serialize({"item": {"sku": 5}}, context([]))


def message_class() -> Any:
    """Return the class of `shop.Order`, whose file imports `item.proto`."""
    pool = descriptor_pool.DescriptorPool()
    item = descriptor_pb2.FileDescriptorProto(name="item.proto", package="shop", syntax="proto3")
    field = item.message_type.add(name="Item").field.add(name="sku", number=1, type=9, label=1)
    field.json_name = "sku"
    order = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["item.proto"]
    )
    order.message_type.add(name="Order").field.add(name="item", number=1, type=11, label=1, type_name=".shop.Item")
    pool.Add(item)
    pool.Add(order)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


@pytest.mark.parametrize("place", SERIALIZERS)
def test_protobuf_registers_its_imports_as_references(url: str, client: SchemaRegistryClient, place: str) -> None:
    order = message_class()
    serialize = ProtobufSerializer(order, client, conf={"schema.id.serializer": SERIALIZERS[place]})
    headers: list[Any] = []
    message = order()
    message.item.sku = "s-1"
    data = serialize(message, context(headers))
    assert data is not None
    assert client.get_latest_version("orders-value").schema.references[0].subject == "item.proto"
    # Another client, as in a consumer: the producer's has cached the text that registration returned.
    deserialize = ProtobufDeserializer(order, schema_registry_client=SchemaRegistryClient({"url": url}))
    assert deserialize(data, context(headers)) == message
    assert decode(url, data, headers) == {"item": {"sku": "s-1"}}


def test_reader_with_an_older_schema_reads_evolved_records(client: SchemaRegistryClient) -> None:
    wider = {**ITEM, "fields": [*ITEM["fields"], {"name": "price", "type": "double", "default": 0.0}]}
    client.set_compatibility("orders-value", "FULL")
    old = AvroSerializer(client, json.dumps(ITEM))({"sku": "a"}, context())
    new = AvroSerializer(client, json.dumps(wider))({"sku": "b", "price": 2.5}, context())
    assert old is not None
    assert new is not None
    read_old, read_new = AvroDeserializer(client, json.dumps(ITEM)), AvroDeserializer(client, json.dumps(wider))
    assert [read_old(data, context()) for data in (old, new)] == [{"sku": "a"}, {"sku": "b"}]
    assert [read_new(data, context()) for data in (old, new)] == [
        {"sku": "a", "price": 0.0},
        {"sku": "b", "price": 2.5},
    ]
    broken = {**ITEM, "fields": [{"name": "number", "type": "int"}]}
    with pytest.raises(SchemaRegistryError) as refused:
        AvroSerializer(client, json.dumps(broken))({"number": 1}, context())
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert len(client.get_versions("orders-value")) == 2
