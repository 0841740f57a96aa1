"""Export a topic to a folder of Parquet, a Delta table or an Iceberg table, incrementally.

A run continues where the last one ended. It reads, decodes and writes with Spark into a staging folder, moves the files
into place and then adds an entry to the journal. A run that was killed before its entry does not count: the next one
deletes its files and does it again. Delta and Iceberg tables cannot undo an append, so there the entry is prepared
before the append, and the next run repeats an append of unknown outcome from the same staged files; the table accepts
it once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.export.files import Entry, ExportError, Files, Journal, clean_up, loadable, publish
from ottla.spark.export.iceberg import append_to_iceberg, check_iceberg
from ottla.spark.export.values import VALUE_FORMATS, ValueDecoder
from ottla.spark.log.files import LAST_BATCH, find_log_directories, find_logs
from ottla.spark.offsets import EARLIEST, Selection

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = ("parquet", "delta", "iceberg")
PARTITIONINGS: Final = {"none": (), "date": ("date",), "hour": ("date", "hour")}
_SMALLEST_TARGET: Final = 64 * 1024
_FAR_FUTURE: Final = str(2**53)  # in ms, behind every record


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The requested export."""

    topic: str
    target: str
    bootstrap: str | None = None
    log_dir: str | None = None
    format: str = "parquet"
    by: str = "date"
    value: str = "string"
    schema_file: str | None = None
    message: str | None = None
    target_bytes: int = 128 * 1024 * 1024
    starting: str = "earliest"
    read_committed: bool = True
    skip_lost: bool = False
    compact: bool = False
    registry: str | None = None
    registry_ca: str | None = None
    subject: str | None = None
    options: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ExportError` for contradictory options, `SchemaFileError` for an invalid schema file."""
        if (self.bootstrap is None) == (self.log_dir is None):
            raise ExportError("read from brokers (--bootstrap) or from a log directory (--log-dir): use one of them")
        if self.format not in FORMATS:
            raise ExportError(f"--format must be one of {', '.join(FORMATS)}, not {self.format}")
        if self.by not in PARTITIONINGS:
            raise ExportError(f"--by must be one of {', '.join(PARTITIONINGS)}, not {self.by}")
        if self.value not in VALUE_FORMATS:
            raise ExportError(f"--value must be one of {', '.join(VALUE_FORMATS)}, not {self.value}")
        if self.value in ("avro", "protobuf") and self.schema_file is None:
            raise ExportError(f"--value {self.value} needs --schema, the file with its schema")
        if self.schema_file is not None and not os.path.isfile(self.schema_file):
            raise ExportError(f"--schema {self.schema_file}: there is no such file")
        if self.schema_file is not None and self.value in ("string", "binary", "registry"):
            raise ExportError(f"--schema is for values of json, avro or protobuf files, and --value is {self.value}")
        if self.value == "protobuf" and self.message is None:
            raise ExportError("--value protobuf needs --message, the full name of the message in the descriptor set")
        if self.value == "registry" and self.registry is None:
            raise ExportError("--value registry needs --registry, the URL of the schema registry")
        if self.value != "registry" and self.subject is not None:
            raise ExportError(f"--subject is for values of a registry, and --value is {self.value}")
        if self.target_bytes < _SMALLEST_TARGET:
            raise ExportError(f"--target-size must be at least 64k, not {self.target_bytes} bytes")
        if self.compact and self.format != "parquet":
            raise ExportError("--compact is for Parquet; Delta has OPTIMIZE and Iceberg has rewrite_data_files")
        self.decoder.check()

    @property
    def decoder(self) -> ValueDecoder:
        """Return the decoder of values."""
        return ValueDecoder(self.value, self.schema_file, self.message)

    @property
    def value_options(self) -> dict[str, str]:
        """Return the options that make the reader decode values."""
        if self.value != "registry" or self.registry is None:
            return {}
        options = {"valueFormat": "registry", "valueErrors": "column", "schemaRegistryUrl": self.registry}
        options["valueSubject"] = self.subject or f"{self.topic}-value"
        return options | ({"schemaRegistryCa": self.registry_ca} if self.registry_ca else {})

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that all runs into one folder must share."""
        return {"format": self.format, "by": self.by, "value": self.value}


@dataclass(slots=True)
class ExportResult:
    """What a run wrote."""

    run: int
    rows: int
    files: int
    bytes: int
    corrupt: int
    offsets: dict[str, int]
    compacted: int = 0


def export(spark: SparkSession, plan: ExportPlan, *, step: Callable[[str], None] = lambda _: None) -> ExportResult:
    """Export what is new; call `step` with each phase."""
    plan.check()
    _check_format(spark, plan.format)
    files = Files(spark, plan.target)
    journal = Journal(files)
    prepared = journal.prepared()
    last = prepared or journal.last()
    _check_same(plan, last)
    step("cleaning up")
    if prepared is not None:
        _publish(spark, plan, files, journal, prepared)
    clean_up(files, journal, last)
    run = 1 if last is None else last.run + 1
    topic_id, first_offsets = _find_topic(plan)
    if last is not None and topic_id and last.topic_id and topic_id != last.topic_id:
        raise ExportError(
            f"topic {plan.topic} was deleted and recreated since the last run (its id was {last.topic_id}, is "
            f"{topic_id}): export it to another folder"
        )
    step("reading")
    records = _read(spark, plan, {} if last is None else _starts(plan, last.offsets, first_offsets))
    frame, schema = plan.decoder.decode(records, None if last is None else last.schema)
    staging = journal.staging(run)
    step("writing")
    _write(frame, plan, staging)
    staged = spark.read.parquet(staging) if files.files(staging, ".parquet") else None
    offsets, rows, corrupt = _summarize(staged, last, plan.decoder.corrupt_column)
    result = ExportResult(run, rows, 0, 0, corrupt, offsets)
    if rows:
        step("publishing")
        written = files.files(staging, ".parquet")
        result.files, result.bytes = len(written), sum(size for _, size in written)
        entry = Entry(run, "export", plan.topic, topic_id, offsets, rows, schema, plan.settings, [])
        if plan.format != "parquet":
            journal.prepare(entry)
        _publish(spark, plan, files, journal, entry)
    if prepared is not None:
        result.rows += prepared.rows
    files.delete(staging)
    if plan.compact:
        step("compacting")
        result.compacted = compact(spark, plan, files, journal)
    return result


def _publish(spark: SparkSession, plan: ExportPlan, files: Files, journal: Journal, entry: Entry) -> None:
    """Move what a run has staged to its target, and record the run."""
    staging = journal.staging(entry.run)
    if plan.format == "delta":
        _append_to_delta(spark.read.parquet(staging), plan, files, entry.run)
    elif plan.format == "iceberg":
        append_to_iceberg(spark.read.parquet(staging), files.root, PARTITIONINGS[plan.by], entry.run)
    else:
        publish(files, staging, entry.run)
    journal.add(entry)


def compact(spark: SparkSession, plan: ExportPlan, files: Files, journal: Journal) -> int:
    """Merge the small files of each partition of the table; return how many files that removed."""
    last = journal.last()
    if last is None:
        return 0
    small: dict[str, list[tuple[str, int]]] = {}
    for path, size in files.files(files.root, ".parquet"):
        if size < plan.target_bytes // 2:
            small.setdefault(path.rsplit("/", 1)[0], []).append((path, size))
    chosen = {folder: paths for folder, paths in small.items() if len(paths) > 1}
    if not chosen:
        return 0
    run = last.run + 1
    staging = journal.staging(run)
    for folder, paths in sorted(chosen.items()):
        parts = max(1, -(-sum(size for _, size in paths) // plan.target_bytes))
        frame = spark.read.option("mergeSchema", "true").parquet(*[path for path, _ in paths])
        frame.coalesce(parts).write.mode("overwrite").parquet(f"{staging}{folder[len(files.root) :]}")
    replaced = [path[len(files.root) + 1 :] for paths in chosen.values() for path, _ in paths]
    added = publish(files, staging, run)
    journal.add(
        Entry(run, "compact", last.topic, last.topic_id, last.offsets, last.rows, last.schema, last.settings, replaced)
    )
    clean_up(files, journal, journal.last())
    return len(replaced) - added


def _check_format(spark: SparkSession, name: str) -> None:
    if name == "iceberg":
        check_iceberg(spark)
    if name == "delta" and not loadable(spark, "org.apache.spark.sql.delta.sources.DeltaDataSource"):
        raise ExportError(
            "Delta is not on Spark's class path: give --packages io.delta:delta-spark_4.2_2.13:4.4.0 "
            "(for pyspark 4.2), or its jars by --conf spark.jars=..."
        )


def _check_same(plan: ExportPlan, last: Entry | None) -> None:
    if last is None:
        return
    if last.topic != plan.topic:
        raise ExportError(f"{plan.target} holds an export of topic {last.topic}: use another folder for {plan.topic}")
    for name, value in plan.settings.items():
        if last.settings.get(name) != value:
            raise ExportError(
                f"{plan.target} was begun with --{name} {last.settings.get(name)}, not {value}: keep that, or "
                "export to another folder"
            )


def _starts(plan: ExportPlan, ended: dict[str, int], first_offsets: dict[str, int]) -> dict[str, int]:
    """Return where each partition continues: where the last run ended, or at its start offset."""
    for partition, first in first_offsets.items():
        if ended.get(partition, first) < first and not plan.skip_lost:
            raise ExportError(
                f"{plan.topic}-{partition} begins at offset {first} now and the last run ended at {ended[partition]}: "
                "records in between were deleted before they were exported; --skip-lost continues with what is there"
            )
    later = {partition: max(first, ended.get(partition, first)) for partition, first in first_offsets.items()}
    return ended | later


def _find_topic(plan: ExportPlan) -> tuple[str | None, dict[str, int]]:
    """Return the topic's id, if a broker tells it, and the start offset of each partition."""
    if plan.bootstrap is None:
        assert plan.log_dir is not None
        logs = find_logs(find_log_directories(plan.log_dir), Selection(names=(plan.topic,)), LAST_BATCH)
        return None, {str(log.partition.partition): log.start_offset for log in logs}
    from ottla.spark.connect import open_client, reachable, security_settings

    with (
        reachable(plan.bootstrap),
        open_client(plan.bootstrap, security_settings(plan.options), client_id="ottla-export", timeout=30.0) as client,
    ):
        topic = client.topics([plan.topic])[0]
        begins = client.list_offsets(plan.topic, list(topic.partitions), EARLIEST)
        return str(topic.id), {str(partition): offset for partition, (offset, _) in begins.items()}


def _read(spark: SparkSession, plan: ExportPlan, offsets: dict[str, int]) -> DataFrame:
    starting = json.dumps({plan.topic: offsets}) if offsets else plan.starting
    reader = (
        spark.read.options(**plan.options, **plan.value_options)
        .option("subscribe", plan.topic)
        .option("includeHeaders", "true")
    )
    reader = reader.option("kafka.isolation.level", "read_committed" if plan.read_committed else "read_uncommitted")
    if starting == "latest":  # which a batch read refuses, because it is empty
        strategy = {"startingTimestamp": _FAR_FUTURE, "startingOffsetsByTimestampStrategy": "latest"}
        reader = reader.options(**strategy)
    else:
        reader = reader.option("startingOffsets", starting)
    if plan.bootstrap is not None:
        return reader.format("ottla").option("kafka.bootstrap.servers", plan.bootstrap).load()
    return reader.format("ottla-log").load(plan.log_dir)


def _write(frame: DataFrame, plan: ExportPlan, staging: str) -> None:
    """Write few files of about the target size: Spark's rebalancing merges and splits the rows of a date or hour."""
    from pyspark.sql import functions as f

    columns = PARTITIONINGS[plan.by]
    spark = frame.sparkSession
    if "date" in columns:
        frame = frame.withColumn("date", f.to_date("timestamp"))
    if "hour" in columns:
        frame = frame.withColumn("hour", f.hour("timestamp"))
    previous = spark.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes", None)
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(plan.target_bytes))
    try:
        balanced = frame.hint("rebalance", *columns).sortWithinPartitions(*columns, "partition", "offset")
        balanced.write.mode("overwrite").partitionBy(*columns).parquet(staging)
    finally:
        if previous is None:
            spark.conf.unset("spark.sql.adaptive.advisoryPartitionSizeInBytes")
        else:
            spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", previous)


def _summarize(staged: DataFrame | None, last: Entry | None, corrupt: str | None) -> tuple[dict[str, int], int, int]:
    """Return where the next run begins, how many rows there are, and how many could not be decoded."""
    from pyspark.sql import functions as f

    offsets = {} if last is None else dict(last.offsets)
    if staged is None:
        return offsets, 0, 0
    bad = f.sum(f.col(corrupt).isNotNull().cast("int")) if corrupt else f.lit(0)
    rows = wrong = 0
    counted = staged.groupBy("partition").agg(f.max("offset").alias("last"), f.count("*").alias("n"), bad.alias("bad"))
    for row in counted.collect():
        offsets[str(row["partition"])] = row["last"] + 1
        rows += row["n"]
        wrong += row["bad"] or 0
    return offsets, rows, wrong


def _append_to_delta(staged: DataFrame, plan: ExportPlan, files: Files, run: int) -> None:
    """Append in one Delta transaction, which accepts a run's number only once."""
    writer = staged.write.format("delta").mode("append").option("mergeSchema", "true")
    writer = writer.option("txnAppId", f"ottla-export-{plan.topic}").option("txnVersion", str(run))
    writer.partitionBy(*PARTITIONINGS[plan.by]).save(files.root)
