"""Check histories of any size with `ottla.history`, partition by partition, in this process or in Spark.

One question needs all partitions and is settled first: an operation with an unknown outcome took effect if another
operation read any of its values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.engine import USED, Analysis, Overview, Row, finish
from ottla.analysis.inputs import SUMMARY
from ottla.analysis.report.model import Finding, Report, Step, Table
from ottla.history import INFO, OK, AnomalyKind, Operation, Poll, Send, check_history, read_history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from ottla.analysis.event import Event

WANTS: Final = frozenset({"history"})
ALL: Final = "history"
MEANING: Final = {
    AnomalyKind.LOST_WRITE.value: "a value that was acknowledged is gone",
    AnomalyKind.DUPLICATE.value: "a value that was sent once was written several times",
    AnomalyKind.ABORTED_READ.value: "a reader saw what was aborted",
}


def rule(key: str, events: Iterable[Event], options: Row) -> Iterator[Row]:
    """Check a small history as a whole."""
    lines = [event.text or "" for event in sorted(events, key=lambda event: (event.file, event.position))]
    yield from _rows(read_history(lines), options)


def _rows(history: list[Operation], options: Row) -> Iterator[Row]:
    report = check_history(history, everything_read=bool(options.get("everything_read")))
    yield {
        "kind": "checked",
        "sent": report.sent,
        "read": report.read,
        "unread": sum(map(len, report.unread.values())),
        "partitions": len(set(_partitions(history))),
    }
    for anomaly in report.anomalies:
        yield {
            "kind": "anomaly",
            "what": anomaly.kind.value,
            "partition": anomaly.partition,
            "detail": anomaly.detail,
            "operations": [
                [operation.index, operation.process, operation.status, str(operation)[:400]]
                for operation in anomaly.operations[:8]
            ],
        }


def _partitions(history: list[Operation]) -> Iterator[str]:
    for operation in history:
        for step in operation.steps:
            if isinstance(step, Send):
                yield step.partition
            elif isinstance(step, Poll):
                yield from step.records


def run_in_spark(spark: SparkSession, paths: list[str], options: Row) -> Report:
    """Check a history partition by partition."""
    from pyspark.sql import functions

    from ottla.analysis.spark_source import read_events

    events = read_events(spark, paths, analysis=ANALYSIS.name, options=options)
    lines = events.where("event = 'history'").select("file", "position", "text").cache()
    flat = lines.mapInArrow(_flatten, "operation string, partition string, value string, sent boolean, status string")
    sends = flat.where(f"sent and status = '{INFO}'").select("operation", "partition", "value")
    reads = flat.where("not sent").select("partition", "value", functions.col("operation").alias("reader"))
    happened = sends.join(reads, ["partition", "value"]).where("operation <> reader").select("operation").distinct()
    with_id = lines.withColumn("operation", functions.concat_ws("@", "file", functions.col("position").cast("string")))
    decided = with_id.join(happened.withColumn("happened", functions.lit(True)), "operation", "left")
    chosen = dict(options)
    parts = decided.mapInArrow(_split, "partition string, file string, position bigint, text string")
    checked = parts.groupBy("partition").applyInArrow(lambda table: _check_part(table, chosen), "row string").collect()
    rows: list[Row] = [json.loads(result.row) for result in checked]
    summaries = events.where(f"event = '{SUMMARY}'").select("text").collect()
    rows += [{"kind": SUMMARY, "text": summary.text} for summary in summaries]
    rows.append({"kind": USED, "events": lines.count()})
    lines.unpersist()
    return finish(ANALYSIS, rows, options)


def _operations(batch: Any) -> Iterator[tuple[str, int, bool, dict[str, Any]]]:
    rows = batch.to_pydict()
    flags = rows.get("happened") or [None] * batch.num_rows
    for file, position, text, flag in zip(rows["file"], rows["position"], rows["text"], flags, strict=True):
        yield file, position, bool(flag), json.loads(text)


def _flatten(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield a row for each value that an operation sent or read."""
    import pyarrow as pa  # type: ignore[import-untyped]

    schema = pa.schema([(name, pa.string()) for name in ("operation", "partition", "value")])
    schema = schema.append(pa.field("sent", pa.bool_())).append(pa.field("status", pa.string()))
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for file, position, _, fields in _operations(batch):
            status = fields.get("status", OK)
            for step in fields.get("steps", []):
                pairs = [(step["send"], step["value"], True)] if "send" in step else []
                pairs += [
                    (partition, value, False)
                    for partition, records in step.get("poll", {}).items()
                    for _, value in records
                ]
                rows += [
                    {"operation": f"{file}@{position}", "partition": str(partition), "value": json.dumps(value),
                     "sent": sent, "status": status}
                    for partition, value, sent in pairs
                ]  # fmt: skip
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _split(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield each operation once for each partition that it used, reduced to its steps there."""
    import pyarrow as pa

    schema = pa.schema(
        [("partition", pa.string()), ("file", pa.string()), ("position", pa.int64()), ("text", pa.string())]
    )
    for batch in batches:
        rows: list[dict[str, Any]] = []
        for file, position, happened, fields in _operations(batch):
            if happened:
                fields["status"] = OK
            for partition in _partitions_used(fields):
                part = dict(fields)
                if "assign" in part:
                    part["assign"] = [partition]
                else:
                    part["steps"] = [kept for step in fields["steps"] for kept in _within(step, partition)]
                rows.append({"partition": partition, "file": file, "position": position, "text": json.dumps(part)})
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _partitions_used(fields: dict[str, Any]) -> list[str]:
    if "assign" in fields:
        return [str(partition) for partition in fields["assign"]]
    partitions: dict[str, None] = {}
    for step in fields["steps"]:
        if "send" in step:
            partitions[str(step["send"])] = None
        else:
            partitions |= dict.fromkeys(map(str, step.get("poll", step.get("assign", []))))
    return list(partitions)


def _within(step: dict[str, Any], partition: str) -> list[dict[str, Any]]:
    """Return what a step did in one partition, as a list of no or one step."""
    if "send" in step:
        return [step] if str(step["send"]) == partition else []
    if "poll" in step:
        return [{"poll": {partition: step["poll"][partition]}}] if partition in step["poll"] else []
    return [{"assign": [partition]}] if partition in step.get("assign", []) else []


def _check_part(table: Any, options: Row) -> Any:
    import pyarrow as pa

    columns = table.to_pydict()
    lines = sorted(zip(columns["file"], columns["position"], columns["text"], strict=True))
    history = read_history(text for _, _, text in lines)
    for operation, (_, position, _) in zip(history, lines, strict=True):
        operation.index = position
    return pa.table({"row": [json.dumps(row) for row in _rows(history, options)]})


def conclude(rows: list[Row], overview: Overview, options: Row) -> Report:
    """Report the anomalies by kind, each with the operations that prove it."""
    checked = [row for row in rows if row["kind"] == "checked"]
    if not checked:
        return Report("anomalies", "the input holds no operation of a history", has_problem=False, conclusive=False)
    anomalies = [row for row in rows if row["kind"] == "anomaly"]
    anomalies.sort(key=lambda row: (row["what"], row["partition"], row["detail"]))
    sent, read = sum(row["sent"] for row in checked), sum(row["read"] for row in checked)
    kinds: dict[str, int] = {}
    findings = []
    for row in anomalies:
        kinds[row["what"]] = kinds.get(row["what"], 0) + 1
        findings.append(
            Finding(
                f"{row['what']} in {row['partition']}: {row['detail']}",
                {"anomaly": row["what"], "partition": row["partition"], "culprit": row["partition"]},
                MEANING.get(row["what"]) or str(row["what"]),
                [
                    Step(None, process, status, text, f"operation at {index}")
                    for index, process, status, text in row["operations"]
                ],
            )
        )
    if findings:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        verdict = f"{len(findings)} anomalies in {sent} values sent and {read} read: {listed}"
    else:
        verdict = f"no anomaly in {sent} values sent and {read} read"
    table = Table("Anomalies", ["kind", "times"], [[kind, count] for kind, count in sorted(kinds.items())])
    return Report("anomalies", verdict, bool(findings), findings, [table] if kinds else [])


def _key(event: Event, options: Row) -> str | None:
    return ALL


ANALYSIS: Final = Analysis("anomalies", WANTS, _key, rule, conclude)
