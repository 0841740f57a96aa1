"""System tables of a log directory: cluster metadata, group commits, groups and transactions, record by record.

Each is one of Kafka's internal topics, read as "ottla-log" reads any topic, with decoded records.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.protocol.errors import ProtocolError
from ottla.protocol.internal_records import TRANSACTION_STATES, explain
from ottla.protocol.record_schemas.group import LegacyOffsetCommitKey, OffsetCommitKey, OffsetCommitValue
from ottla.protocol.record_schemas.transaction import TransactionLogKey, TransactionLogValue
from ottla.protocol.record_values import (
    decode_offsets_key,
    decode_offsets_value,
    decode_transaction_key,
    decode_transaction_value,
)
from ottla.records.errors import InvalidRecords
from ottla.records.iterate import iter_records
from ottla.spark.columns import Columns, spark_schema
from ottla.spark.log.disk import disk_of
from ottla.spark.log.files import find_log_directories
from ottla.spark.log.plan import DECIDED
from ottla.spark.log.source import KNOWN, LogReader, Plan
from ottla.spark.offsets import SELECTIONS, Selection
from ottla.spark.options import OptionError, Options
from ottla.storage.check.scan import METADATA_SNAPSHOT_SUFFIX, read_folder, scan_batches
from ottla.storage.errors import CorruptLogError
from ottla.storage.names import METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_PLACE: Final = (
    pa.field("logPartition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", _TIMESTAMP),
)
_READ: Final = Columns(
    (
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIMESTAMP),
        pa.field("leaderEpoch", pa.int32()),
        pa.field("producerId", pa.int64()),
        pa.field("transactional", pa.bool_()),
    )
)
# The options of ottla-log that apply here.
_KNOWN: Final = tuple(
    name
    for name in KNOWN
    if name not in (*SELECTIONS, "columns", "includeHeaders", "includeBatch", "includeControl", "filterPushdown")
)
Row = dict[str, Any]


class RecordTable(DataSource):
    """A table of one of Kafka's internal topics."""

    topic: ClassVar[str]
    fields: ClassVar[tuple[pa.Field, ...]]

    @classmethod
    def decode(cls, row: Row) -> Row | None:
        """Return the row of a record, or None if it belongs to another table."""
        raise NotImplementedError

    @classmethod
    def arrow(cls) -> pa.Schema:
        """Return the columns."""
        return pa.schema([*_PLACE, *cls.fields])

    def schema(self) -> StructType:
        """Return the columns; wrong options and a wrong path raise here, at load()."""
        self._plan()
        return spark_schema(self.arrow())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the whole table."""
        if schema != spark_schema(self.arrow()):
            raise OptionError(f"{self.name()} has fixed columns: remove .schema(...)")
        return RecordTableReader(type(self), self._plan())

    def _plan(self) -> Plan:
        options = Options(self.name(), self.options, _KNOWN)
        if not options.text("path"):
            raise OptionError(
                f'{self.name()} needs a log directory: spark.read.format("{self.name()}").load("/path/to/log.dirs")'
            )
        plan = Plan.parse(self.options, DECIDED)
        find_log_directories(plan.path)
        return replace(
            plan,
            selection=Selection(names=(self.topic,), may_lack=True),
            settings=replace(plan.settings, columns=_READ),
        )


class RecordTableReader(DataSourceReader):
    """Read a topic and decode its records."""

    def __init__(self, table: type[RecordTable], plan: Plan) -> None:
        self._table = table
        self._log = LogReader(plan)
        self._path = plan.path

    def partitions(self) -> list[InputPartition]:
        """Return the topic's tasks, and a metadata snapshot if the log lacks its first records."""
        tasks = self._log.partitions()
        if self._table.topic == METADATA_TOPIC:
            tasks = [*(SnapshotTask(path) for path in _needed_snapshots(self._path)), *tasks]
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, SnapshotTask):
            rows = [self._table.decode(row) for row in _snapshot_rows(partition.path)]
            yield pa.RecordBatch.from_pylist([row for row in rows if row is not None], schema=self._table.arrow())
            return
        for batch in self._log.read(partition):
            rows = []
            for row in batch.to_pylist():
                decoded = self._table.decode(row)
                if decoded is not None:
                    position = {
                        "logPartition": row["partition"],
                        "offset": row["offset"],
                        "timestamp": row["timestamp"],
                    }
                    rows.append(position | decoded)
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=self._table.arrow())


class SnapshotTask(InputPartition):
    """A snapshot of the metadata log to read."""

    def __init__(self, path: str) -> None:
        super().__init__(None)
        self.path = path


def _needed_snapshots(path: str) -> list[str]:
    """Return the newest snapshot of each metadata log whose first records are deleted."""
    snapshots = []
    for directory in find_log_directories(path):
        try:
            folder = read_folder(disk_of(directory.path), f"{directory.path}/{METADATA_TOPIC}-0")
        except FileNotFoundError:
            continue
        names = sorted(name for name in folder.others if name.endswith(METADATA_SNAPSHOT_SUFFIX))
        if names and (not folder.segments or folder.segments[0].base_offset > 0):
            snapshots.append(f"{folder.path}/{names[-1]}")
    return snapshots


def _snapshot_rows(path: str) -> Iterator[Row]:
    try:
        for header, data in scan_batches(disk_of(path), path):
            if not header.is_control:
                for record in iter_records(data, header._replace(position=0)):
                    yield {"key": record.key, "value": record.value, "leaderEpoch": None, "snapshot": True}
    except (CorruptLogError, InvalidRecords) as error:
        raise OptionError(f"{path} is damaged: {error}") from error


def _as_json(content: Any) -> str | None:
    return None if content is None else json.dumps(content, ensure_ascii=False, separators=(",", ":"))


class MetadataTable(RecordTable):
    """`ottla-metadata`: every change of the cluster metadata."""

    topic = METADATA_TOPIC
    fields = (
        pa.field("leaderEpoch", pa.int32()),
        pa.field("snapshot", pa.bool_()),
        pa.field("type", pa.string()),
        pa.field("version", pa.int32()),
        pa.field("record", pa.string()),
        pa.field("error", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-metadata"

    @classmethod
    def decode(cls, row: Row) -> Row | None:
        """Return any record, without secrets."""
        explained = explain("metadata", row["key"], row["value"])
        return {
            "leaderEpoch": row["leaderEpoch"],
            "snapshot": row.get("snapshot", False),
            "type": explained.get("type"),
            "version": explained.get("version"),
            "record": _as_json(explained.get("value")),
            "error": explained.get("error"),
        }


class OffsetsTable(RecordTable):
    """`ottla-offsets`: every commit of a group, and every tombstone of an offset."""

    topic = "__consumer_offsets"
    fields = (
        pa.field("group", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("committedOffset", pa.int64()),
        pa.field("committedLeaderEpoch", pa.int32()),
        pa.field("metadata", pa.string()),
        pa.field("commitTimestamp", _TIMESTAMP),
        pa.field("deleted", pa.bool_()),
        pa.field("transactional", pa.bool_()),
        pa.field("producerId", pa.int64()),
        pa.field("error", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-offsets"

    @classmethod
    def decode(cls, row: Row) -> Row | None:
        """Return a commit."""
        same = {"transactional": row["transactional"], "producerId": row["producerId"]}
        try:
            key = decode_offsets_key(row["key"] or b"")
            if not isinstance(key, OffsetCommitKey | LegacyOffsetCommitKey):
                return None
            same |= {"group": key.group, "topic": key.topic, "partition": key.partition}
            if row["value"] is None:
                return same | {"deleted": True}
            value: Any = decode_offsets_value(key, row["value"])
            epoch = value.leader_epoch if isinstance(value, OffsetCommitValue) else -1
            return same | {
                "committedOffset": value.offset,
                "committedLeaderEpoch": epoch if epoch >= 0 else None,
                "metadata": value.metadata,
                "commitTimestamp": _microseconds(value.commit_timestamp),
                "deleted": False,
            }
        except (ProtocolError, AttributeError) as error:
            return same | {"error": str(error)}


class GroupsTable(RecordTable):
    """`ottla-groups`: every change of a group and its members, in all group protocols."""

    topic = "__consumer_offsets"
    fields = (
        pa.field("group", pa.string()),
        pa.field("groupType", pa.string()),
        pa.field("recordType", pa.string()),
        pa.field("memberId", pa.string()),
        pa.field("epoch", pa.int32()),
        pa.field("deleted", pa.bool_()),
        pa.field("version", pa.int32()),
        pa.field("record", pa.string()),
        pa.field("error", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-groups"

    @classmethod
    def decode(cls, row: Row) -> Row | None:
        """Return a group record that is not a commit."""
        explained = explain("offsets", row["key"], row["value"])
        kind = explained.get("type", "")
        if kind.endswith("OffsetCommit"):
            return None
        key, value = explained.get("key") or {}, explained.get("value") or {}
        epochs = (value.get(name) for name in ("generation", "epoch", "assignment_epoch", "member_epoch"))
        return {
            "group": key.get("group", key.get("group_id")),
            "groupType": "classic" if kind == "GroupMetadata" else kind.partition("Group")[0].lower() or None,
            "recordType": kind or None,
            "memberId": key.get("member_id"),
            "epoch": next((epoch for epoch in epochs if epoch is not None), None),
            "deleted": row["value"] is None,
            "version": explained.get("version"),
            "record": _as_json(explained.get("value")),
            "error": explained.get("error"),
        }


class TransactionsTable(RecordTable):
    """`ottla-transactions`: every change of a transaction's state."""

    topic = "__transaction_state"
    fields = (
        pa.field("transactionalId", pa.string()),
        pa.field("state", pa.string()),
        pa.field("producerId", pa.int64()),
        pa.field("producerEpoch", pa.int16()),
        pa.field("previousProducerId", pa.int64()),
        pa.field("nextProducerId", pa.int64()),
        pa.field("timeoutMs", pa.int32()),
        pa.field(
            "partitions",
            pa.list_(
                pa.field("element", pa.struct([pa.field("topic", pa.string()), pa.field("partition", pa.int32())]))
            ),
        ),
        pa.field("startTimestamp", _TIMESTAMP),
        pa.field("updateTimestamp", _TIMESTAMP),
        pa.field("deleted", pa.bool_()),
        pa.field("error", pa.string()),
    )

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ottla-transactions"

    @classmethod
    def decode(cls, row: Row) -> Row | None:
        """Return a transaction state."""
        try:
            key = decode_transaction_key(row["key"] or b"")
            if not isinstance(key, TransactionLogKey):
                return {"error": f"a key of type {key}"}
            if row["value"] is None:
                return {"transactionalId": key.transactional_id, "deleted": True}
            value = decode_transaction_value(row["value"])
        except ProtocolError as error:
            return {"error": str(error)}
        if not isinstance(value, TransactionLogValue):
            return {"transactionalId": key.transactional_id, "error": f"a value of type {value}"}
        status = value.transaction_status
        return {
            "transactionalId": key.transactional_id,
            "state": TRANSACTION_STATES[status] if 0 <= status < len(TRANSACTION_STATES) else f"unknown ({status})",
            "producerId": value.producer_id,
            "producerEpoch": value.producer_epoch,
            "previousProducerId": value.previous_producer_id if value.previous_producer_id >= 0 else None,
            "nextProducerId": value.next_producer_id if value.next_producer_id >= 0 else None,
            "timeoutMs": value.transaction_timeout_ms,
            "partitions": [
                {"topic": topic.topic, "partition": number}
                for topic in value.transaction_partitions or ()
                for number in topic.partition_ids
            ],
            "startTimestamp": _microseconds(value.transaction_start_timestamp_ms),
            "updateTimestamp": _microseconds(value.transaction_last_update_timestamp_ms),
            "deleted": False,
        }


def _microseconds(milliseconds: int) -> int | None:
    return None if milliseconds < 0 else milliseconds * 1000
