"""`cluster.records(decode=True)`, and the schema ids in the event log and in explained frames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.records.builder import build_batch
from ottla.records.inspect import batch_lines
from ottla.records.iterate import Record
from ottla.testing import Cluster
from ottla.testing.decoding import UndecodableRecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(registry=True, topics=["orders"]) as cluster:
        yield cluster


def produce(cluster: Cluster, *records: tuple[Any, Any, Any]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key, value, headers in records:
        producer.produce("orders", key=key, value=value, headers=headers)
    producer.flush()


def test_records_are_decoded_with_the_id_in_prefix_or_header(cluster: Cluster) -> None:
    cluster.reset()
    client = SchemaRegistryClient({"url": cluster.registry_url})
    prefixed = AvroSerializer(client, ORDER)(  # the framing that clients use by default
        {"id": "o-1"}, SerializationContext("orders", MessageField.VALUE)
    )
    headers: list[Any] = []
    in_header = AvroSerializer(client, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})(
        {"id": "o-2"}, SerializationContext("orders", MessageField.VALUE, headers)
    )
    produce(cluster, (b"k", prefixed, None), (None, in_header, headers), (b"plain", None, None))
    first, second, third = cluster.records("orders", decode=True)
    assert (first.key, first.value, first.key_schema, first.value_schema) == (b"k", {"id": "o-1"}, None, 1)
    assert second.value == {"id": "o-2"}
    guid = client.get_schema(1).to_dict().get("guid") or second.value_schema
    assert second.value_schema == guid
    assert (third.key, third.value) == (b"plain", None)
    assert cluster.records("orders", decode=cluster.registry_url)[0].value == {"id": "o-1"}
    named = [event["schemas"] for event in cluster.events("request", api="Produce") if "schemas" in event]
    assert {name for names in named for name in names} == {"1", str(second.value_schema)}


def test_value_with_an_unknown_schema_is_named(cluster: Cluster) -> None:
    cluster.reset()
    produce(cluster, (None, b"\0\0\0\0\x09x", None))
    with pytest.raises(UndecodableRecordError, match=r"orders-0 offset 0: cannot decode the value with schema 9"):
        cluster.records("orders", decode=True)


def test_decoding_without_a_registry_is_refused() -> None:
    with Cluster(topics=["t"]) as cluster, pytest.raises(RuntimeError, match="registry=True"):
        cluster.records("t", decode=True)


def test_event_log_names_no_schemas_without_a_registry() -> None:
    with Cluster(topics=["orders"]) as cluster:
        produce(cluster, (None, b"\0\0\0\0\x09x", None))
        assert all("schemas" not in event for event in cluster.events("request", api="Produce"))


def test_explained_batch_names_schema_ids() -> None:
    guid = b"\1" + bytes(range(16))
    batch = build_batch(
        [
            Record(0, 0, b"\0\0\0\0\2k", b"\0\0\0\0\7v", ()),
            Record(1, 0, None, b"v", (("__value_schema_id", guid),)),
            Record(2, 0, b"\0\0\0\0\0\0\0\5", b"\0\1", ()),
        ]
    )
    lines = {line.label: str(line.value) for line in batch_lines(bytes(batch), 0, len(batch))}
    assert lines["key_schema_id"].startswith("2, if")
    assert lines["value_schema_id"].startswith("7, if")
    assert lines["schema"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
