"""Receipts against a plain Python computation, over a schema that evolves and with a driver that dies in between."""

import json

import pytest
from pipeline import READING, WRITING, damaged, receipts

from ottla.client import Client
from ottla.registry.server import RegistryServer
from ottla.schemas.framing import frame
from ottla.schemas.registry_client import RegistryClient
from ottla.schemas.types import parse_schema
from ottla.schemas.values import Codec
from ottla.server.web_options import WebOptions

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "quantity", "type": "int"}, {"name": "price", "type": "int"}],
}
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "string"},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
WITH_NOTE = {**ORDER, "fields": [*FIELDS, {"name": "note", "type": "string", "default": ""}]}


def order(number, **more):
    lines = [{"quantity": index + 1, "price": number} for index in range(number % 3)]
    return {"id": number, "customer": f"c{number % 2}", "lines": lines, **more}


def receipt(value):
    total = sum(line["quantity"] * line["price"] for line in value["lines"])
    return {"id": value["id"], "customer": value["customer"], "total": total}


def send(spark_kafka, registry, schema, values):
    schema_id = registry.register("orders-value", {"schema": json.dumps(schema)})["id"]
    encode = Codec(parse_schema("AVRO", json.dumps(schema))).encode
    spark_kafka.produce_many("orders", [(None, frame(schema_id, encode(value))) for value in values])


def test_receipts_equal_plain_python_while_the_schema_evolves(spark_kafka):
    for topic in ("orders", "receipts", "orders-damaged"):
        spark_kafka.create_topic(topic)
    with RegistryServer(lambda: Client(spark_kafka.bootstrap), WebOptions()) as server:
        registry, url = RegistryClient(server.url), {"schemaRegistryUrl": server.url}

        def stream():
            return spark_kafka.stream("orders", **url, **READING)

        def write(orders, **how):
            sink = receipts(orders).writeStream.format("ottla").options(**spark_kafka.options, **url, **WRITING)
            spark_kafka.run(sink.option("topic", "receipts").option("exactlyOnce", "true"), **how)

        first = [order(number) for number in range(10)]
        send(spark_kafka, registry, ORDER, first)
        spark_kafka.produce("orders", value=b"no Avro")
        write(stream(), killed=True)
        running = stream()
        second = [order(number, note="fragile") for number in range(10, 15)]
        send(spark_kafka, registry, WITH_NOTE, second)
        with pytest.raises(Exception, match="new fields note"):
            write(running)
        write(stream())
        written = spark_kafka.read("receipts", **url, valueFormat="avro").select("value.*").orderBy("id").collect()
        assert [row.asDict() for row in written] == [receipt(value) for value in first + second]

        letters = damaged(stream()).writeStream.format("ottla").options(**spark_kafka.options)
        spark_kafka.run(letters.option("topic", "orders-damaged"), "damaged")
        (letter,) = spark_kafka.read("orders-damaged", includeHeaders="true").collect()
        assert bytes(letter["value"]) == b"no Avro"
        assert b"magic byte" in bytes(letter["headers"][0]["value"])
