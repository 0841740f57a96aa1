"""Batches compared with independent implementations: Apache Kafka, kio, kafka-python and aiokafka."""

from __future__ import annotations

import io
import json
import struct
from base64 import b64decode
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords as AioMemoryRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as PythonMemoryRecords
from kafka.record.memory_records import MemoryRecordsBuilder as PythonBuilder
from kio.records.readers import read_batch
from kio.records.writers import write_batch

from ottla.records.batch import TimestampType, check_crc, iter_batches, read_header
from ottla.records.builder import BatchBuilder, build_batch
from ottla.records.columnar import AbortedTransaction, to_arrow
from ottla.records.iterate import Record, iter_all_records, iter_records
from ottla.records.validate import LogRules, validate

from .strategies import record_lists

DATA = Path(__file__).parents[1] / "fixtures" / "kafka" / "4.3.1" / "data"
LOGS = sorted(path for path in DATA.glob("*/*.log") if path.stat().st_size)
KAFKA_LOGS = pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")

pytestmark = pytest.mark.usefixtures("either_kernel")


@KAFKA_LOGS
def test_kafkas_batches_are_complete_with_valid_crcs(path: Path) -> None:
    log = path.read_bytes()
    headers = list(iter_batches(log))
    assert headers[-1].end == len(log)
    assert all(check_crc(log, header) for header in headers)


@KAFKA_LOGS
def test_built_batches_equal_kafkas_uncompressed_batches(path: Path) -> None:
    log = path.read_bytes()
    for header in iter_batches(log):
        if header.compression:
            continue
        stamped = header.timestamp_type == TimestampType.LOG_APPEND_TIME
        builder = BatchBuilder(
            header.base_offset,
            partition_leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
            delete_horizon_ms=header.delete_horizon_ms,
        )
        # Records keep the time of their creation where the batch has the log's: take the type away to see it.
        for record in iter_records(log, header._replace(attributes=header.attributes & ~8)):
            builder.append(record.key, record.value, record.headers, record.timestamp, record.offset)
        if stamped:
            builder.log_append_time = header.max_timestamp
        if header.record_count == 0:
            builder.max_timestamp = header.max_timestamp  # an emptied batch keeps the one that it had
        assert builder.build(header.last_offset) == log[header.position : header.end]


def consumed() -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the records that Kafka's consumer read of each partition."""
    records = defaultdict(list)
    for line in (DATA.parent / "records.jsonl").read_text().splitlines():
        row = json.loads(line)
        records[row["topic"], row["partition"]].append(row)
    return records


def as_record(row: dict[str, Any]) -> Record:
    def content(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text)

    headers = tuple((name, content(value)) for name, value in row["headers"])
    return Record(row["offset"], row["timestamp"], content(row["key"]), content(row["value"]), headers)


def partition_log(topic: str, partition: int) -> tuple[bytes, list[AbortedTransaction]]:
    folder = DATA / f"{topic}-{partition}"
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    aborted = [
        AbortedTransaction(producer_id, first, last)
        for path in sorted(folder.glob("*.txnindex"))
        for _, producer_id, first, last, _ in struct.iter_unpack(">hqqqq", path.read_bytes())
    ]
    return log, aborted


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    raw = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Record(row["offset"], at, row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"]))
        for row, at in zip(batch.drop_columns("timestamp").to_pylist(), raw, strict=True)
    ]


@pytest.mark.parametrize("partition", sorted(consumed()), ids=lambda partition: "-".join(map(str, partition)))
def test_records_and_columns_equal_kafkas_consumer(partition: tuple[str, int]) -> None:
    expected = consumed()[partition]
    log, aborted = partition_log(*partition)
    start = expected[0]["offset"]
    assert [r for _, r in iter_all_records(log) if r.offset >= start] == [as_record(row) for row in expected]
    assert rows_of(to_arrow(log, first_offset=start)) == [as_record(row) for row in expected]
    committed = [as_record(row) for row in expected if row["committed"]]
    if committed:
        # An open transaction is not in the index; what follows its start waits for its end.
        last = max(r.offset for r in committed)
        assert rows_of(to_arrow(log, first_offset=start, last_offset=last, aborted=aborted)) == committed
        unended = [transaction._replace(last_offset=None) for transaction in aborted]
        assert rows_of(to_arrow(log, first_offset=start, last_offset=last, aborted=unended)) == committed
    stamped = {row["offset"] for row in expected if row["timestamp_type"] == "LogAppendTime"}
    table = to_arrow(log, first_offset=start)
    for offset, kind in zip(table["offset"].to_pylist(), table["timestamp_type"].to_pylist(), strict=True):
        assert (kind == 1) is (offset in stamped)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafkas_producers_batches_are_valid(codec: str) -> None:
    log, _ = partition_log(f"codec-{codec}", 0)
    for header in iter_batches(log):
        sent = bytearray(log[header.position : header.end])
        sent[:8] = bytes(8)
        valid = validate(sent, LogRules(), header.max_timestamp)
        assert valid.stamp(header.base_offset, header.partition_leader_epoch) == log[header.position : header.end]


# kio turns timestamps into floats on the way; whole seconds survive that.
whole_seconds = record_lists.map(
    lambda records: [r._replace(timestamp=max(0, r.timestamp) % 2_000_000_000 * 1000) for r in records]
)


@given(whole_seconds, st.integers(0, 2**40))
def test_kio_reads_and_writes_same_bytes(records: list[Record], base_offset: int) -> None:
    data = build_batch(records, base_offset, producer_id=7, producer_epoch=1, base_sequence=3, partition_leader_epoch=2)
    theirs, size = read_batch(bytes(data), 0)
    assert size == len(data)
    assert [
        (r.offset, int(r.timestamp.timestamp() * 1000), r.key, r.value, tuple((h.key, h.value) for h in r.headers))
        for r in theirs.records
    ] == [
        (base_offset + i, r.timestamp, r.key, r.value, tuple((name.encode(), value) for name, value in r.headers))
        for i, r in enumerate(records)
    ]
    written = io.BytesIO()
    write_batch(written, theirs)
    assert written.getvalue() == data


@pytest.mark.parametrize("codec", range(5))
def test_batches_are_exchanged_with_aiokafka(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    sent = []
    for i in range(40):
        sent.append(Record(i, 1_700_000_000_000 + i, b"k%d" % i if i % 3 else None, b"v" * i, (("h", b"x"),) * (i % 2)))
        builder.append(i, sent[-1].timestamp, sent[-1].key, sent[-1].value, list(sent[-1].headers))
    theirs = builder.build()
    assert check_crc(theirs, read_header(theirs))
    assert read_header(theirs).compression == codec
    assert list(iter_records(theirs)) == sent

    batch = AioMemoryRecords(bytes(build_batch(sent, compression=codec))).next_batch()
    assert batch.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == sent


@pytest.mark.parametrize("codec", [0, 1, 3, 4])  # it needs another package for snappy
def test_batches_are_exchanged_with_kafka_python(codec: int) -> None:
    builder = PythonBuilder(magic=2, compression_type=codec, batch_size=1 << 20)
    sent = []
    for i in range(40):
        sent.append(Record(i, 1_700_000_000_000 + i, b"k%d" % i if i % 3 else None, b"v" * i, (("h", b"x"),) * (i % 2)))
        builder.append(sent[-1].timestamp, sent[-1].key, sent[-1].value, list(sent[-1].headers))
    builder.close()
    theirs = builder.buffer()
    assert check_crc(theirs, read_header(theirs))
    assert read_header(theirs).compression == codec
    assert list(iter_records(theirs)) == sent

    batch = PythonMemoryRecords(bytes(build_batch(sent, compression=codec))).next_batch()
    assert batch.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == sent
