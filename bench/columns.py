"""Avro values as typed columns: Spark's `from_avro`, and the option valueFormat of `ottla-log` and `ottla`.

    python bench/columns.py [--records 1000000] [--rounds 3]

All read the same records, written with one schema of ten fields. `from_avro` runs on the bytes that the same source
returns, with the registry's prefix cut off, and on those of Spark's own Kafka connector. The query reads every field.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fastavro
from tests.interop.spark_jars import avro_jars, connector_jars

from bench.peers import Peer, start_apache_kafka
from bench.spark_compare import PARTITIONS, Cost, best
from ottla.client.client import Client
from ottla.client.producer import Producer
from ottla.schemas.registry_client import RegistryClient
from ottla.spark import session
from ottla.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "orders"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "attributes", "type": {"type": "map", "values": "int"}},
    ],
}
STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
JSON = {
    "type": "object",
    "properties": {
        "id": INTEGER,
        "customer": STRING,
        "amount": NUMBER,
        "quantity": INTEGER,
        "note": STRING,
        "at": INTEGER,
        "status": STRING,
        "price": STRING,
        "tags": {"type": "array", "items": STRING},
    },
}
PROTOBUF = """syntax = "proto3";
message Order {
  int64 id = 1; string customer = 2; double amount = 3; int32 quantity = 4; optional string note = 5; int64 at = 6;
  string status = 7; string price = 8; repeated string tags = 9; repeated int32 attributes = 10;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="records in the topic")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the first")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder, Cluster(registry=True) as cluster:
        work = Path(folder)
        load = os.getloadavg()[0]
        schema_id = register(cluster, "orders-value", json.dumps(AVRO), "AVRO")
        values = list(encoded(schema_id, min(args.records, 20_000)))
        registry = cluster.registry_url
        print(
            f"On {os.cpu_count()} cores with a load of {load:.1f} before the start; {args.records:,} records, "
            f"{sum(map(len, values)) // len(values)} bytes each. Processor time is that of driver, JVM and workers."
        )
        alone(values, registry, schema_id)
        jars = ",".join((avro_jars(), connector_jars()))
        settings = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2", "spark.jars": jars}
        peer = start_apache_kafka(work)
        try:
            fill(peer, values, args.records)
            spark = session("bench", master="local[2]", config=settings)
            spark.sparkContext.setLogLevel("ERROR")
            print("\n| | thousand records/s | processor µs a record |\n|---|---|---|")
            reads = Reads(spark, peer, work, registry)
            costs: dict[str, Cost] = {}
            for name, read in reads.all().items():
                costs[name] = best(args.rounds, write_nowhere, read, peer=peer)
                show(name, costs[name], args.records)
            spark.stop()
        finally:
            peer.stop()


def register(cluster: Cluster, subject: str, schema: str, kind: str) -> int:
    client = RegistryClient(cluster.registry_url)
    schema_id: int = client.register(subject, {"schema": schema, "schemaType": kind})["id"]
    return schema_id


def encoded(schema_id: int, count: int) -> Iterator[bytes]:
    parsed = fastavro.parse_schema(AVRO)
    for number in range(count):
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, order(number))
        yield b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"customer-{number % 5000}",
        "amount": number / 4,
        "quantity": number % 10,
        "note": None if number % 2 else "leave at the door",
        "at": 1_700_000_000_000 + number,
        "status": ("NEW", "PAID", "SENT")[number % 3],
        "price": Decimal(number % 100_000) / 100,
        "tags": ["a", "b", "c"][: number % 4],
        "attributes": {"weight": number % 100},
    }


def plain_order(number: int, kind: str) -> dict[str, Any]:
    """An order of JSON types; Protobuf has the weight in a list."""
    row = {name: value for name, value in order(number).items() if value is not None}
    attributes = {"attributes": [number % 100]} if kind == "PROTOBUF" else {}
    return {**row, "price": str(row["price"]), "attributes": {}, **attributes}


def alone(values: list[bytes], registry: str, schema_id: int) -> None:
    """Print what decoding costs without Spark: the kernel, the kernel uncompiled, and fastavro record by record."""
    import pyarrow as pa

    from ottla.schemas import kernel
    from ottla.schemas.avro import AvroSchema
    from ottla.schemas.avro_columns import AvroDecoder, column_type
    from ottla.schemas.column_types import make_column
    from ottla.spark.values.arrow import take_array

    array = pa.array(values, pa.binary())
    schema = AvroSchema.parse(json.dumps(AVRO))
    type_ = column_type(schema)

    def with_kernel(form: Any) -> None:
        column = make_column(type_, form)
        decoder = AvroDecoder(schema, schema, column, kernel=form)
        validity, offsets, data = array.buffers()
        rows = form.FramedRows(data, offsets, validity, 0, len(array))
        assert rows.decode(decoder.step, column, schema_id) == form.DONE
        take_array(column, type_)

    def with_fastavro() -> None:
        parsed = fastavro.parse_schema(AVRO)
        for value in values:
            fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None)

    def with_columns(kind: str, format_: str, text: str) -> Any:
        """Return a function that decodes values of another format, as a task does."""
        from ottla.schemas.framing import frame
        from ottla.schemas.types import parse_schema
        from ottla.schemas.values import Codec
        from ottla.spark.values import writers
        from ottla.spark.values.decode import ColumnDecoder
        from ottla.spark.values.options import ColumnFormat, ReaderSchema, RegistrySettings

        settings = RegistrySettings(registry)
        identifier = 1000 + len(kind)  # one for each type
        writers._schemas[settings, identifier] = parse_schema(kind, text)
        codec = Codec(writers._schemas[settings, identifier])
        rows = pa.array(
            [frame(identifier, codec.encode(plain_order(number, kind))) for number in range(len(values))], pa.binary()
        )
        reader = ReaderSchema(kind, text, schema_id=identifier)
        decoder = ColumnDecoder(ColumnFormat("value", format_, settings, reader=reader), "orders-0")
        return lambda: decoder.decode(rows, rows)

    print("\n| decoding alone, one core | processor µs a record | thousand records/s |\n|---|---|---|")
    for name, act in (
        ("kernel, compiled" if kernel.COMPILED else "kernel", lambda: with_kernel(kernel.compiled())),
        ("kernel, uncompiled", lambda: with_kernel(kernel.uncompiled())),
        ("fastavro to Python objects", with_fastavro),
        ("JSON Schema: Arrow's parser", with_columns("JSON", "json-schema", json.dumps(JSON))),
        ("Protobuf: kernel", with_columns("PROTOBUF", "protobuf", PROTOBUF)),
    ):
        costs = []
        for _ in range(3):
            began = time.process_time()
            act()
            costs.append(time.process_time() - began)
        print(f"| {name} | {min(costs) / len(values) * 1e6:.2f} | {len(values) / min(costs) / 1000:,.0f} |", flush=True)


def fill(peer: Peer, values: list[bytes], records: int) -> None:
    with Client(peer.bootstrap, timeout=60) as client:
        _create(peer)
        producer = Producer(client, batch_bytes=256 * 1024)
        for number in range(records):
            producer.send(TOPIC, None, values[number % len(values)], (), number % PARTITIONS)
        producer.flush()


def _create(peer: Peer) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(120)


class Reads:
    """The same rows, read in different ways."""

    def __init__(self, spark: Any, peer: Peer, work: Path, registry: str) -> None:
        self._work = work
        self._spark = spark
        self._peer = peer
        self._registry = registry

    def all(self) -> dict[str, Any]:
        return {
            "ottla-log: bytes alone": self._log(),
            "ottla-log, then from_avro": self._from_avro(self._log()),
            "ottla-log with valueFormat": self._log(valueFormat="avro").select("value.*"),
            "connector, then from_avro": self._from_avro(self._network("kafka")),
            "ottla, then from_avro": self._from_avro(self._network("ottla")),
            "ottla with valueFormat": self._network("ottla", valueFormat="avro").select("value.*"),
        }

    def _log(self, **options: str) -> Any:
        if options:
            options["schemaRegistryUrl"] = self._registry
        frame = self._spark.read.format("ottla-log").option("subscribe", TOPIC).options(**options)
        return frame.load(str(self._work / "kafka")).select("value")

    def _network(self, kind: str, **options: str) -> Any:
        if options:
            options["schemaRegistryUrl"] = self._registry
        frame = self._spark.read.format(kind).option("subscribe", TOPIC).options(**options)
        frame = frame.option("kafka.bootstrap.servers", self._peer.bootstrap)
        frame = frame.option("kafka.max.partition.fetch.bytes", str(8 << 20)).option("kafka.max.poll.records", "20000")
        return frame.load().select("value")

    def _from_avro(self, frame: Any) -> Any:
        from pyspark.sql import functions
        from pyspark.sql.avro.functions import from_avro

        data = functions.expr("substring(value, 6)")
        return frame.select(from_avro(data, json.dumps(AVRO)).alias("value")).select("value.*")


def write_nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def show(name: str, cost: Cost, records: int) -> None:
    print(f"| {name} | {records / cost.wall / 1000:,.0f} | {cost.processor / records * 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
