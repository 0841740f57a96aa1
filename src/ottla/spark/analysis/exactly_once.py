"""Audits that an output topic holds each record of its input once, and which transactions prove it.

Records are matched by key or by a header; only what is committed counts. What a record became is the application's
affair: a filter makes records `missing`, a flat map makes `duplicates`, and the report says how many of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.spark.analysis.inputs import InputError
from ottla.spark.analysis.report import Finding, Report, Step, Table
from ottla.spark.analysis.topics import Place, read_topic

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN: Final = 20
COPIES: Final = 5


def run(spark: SparkSession, source: Place, result: Place, by: str = "key") -> Report:
    """Compare the input topic with the output topic."""
    from pyspark.sql import functions

    identity = _identity(by)
    batches = not result.live
    inputs = read_topic(spark, source).select(identity.alias("id"), "partition", "offset")
    written = read_topic(spark, result, batches=batches).withColumn("id", identity)
    if not batches:
        written = written.selectExpr(
            "*",
            "cast(-1 as bigint) producerId",
            "cast(-1 as smallint) producerEpoch",
            "cast(null as boolean) transactional",
        )
    copies = functions.slice(
        functions.sort_array(
            functions.collect_list(
                functions.struct("partition", "offset", "producerId", "producerEpoch", "transactional")
            )
        ),
        1,
        COPIES,
    )
    counted = (
        inputs.where("id is not null")
        .groupBy("id")
        .agg(
            functions.count("*").alias("expected"),
            functions.min(functions.struct("partition", "offset")).alias("origin"),
        )
    )
    outputs = (
        written.where("id is not null").groupBy("id").agg(functions.count("*").alias("found"), copies.alias("copies"))
    )
    verdict = (
        functions.when(functions.col("found").isNull(), "missing")
        .when(functions.col("expected").isNull(), "unexpected")
        .when(functions.col("found") > functions.col("expected"), "duplicate")
        .when(functions.col("found") < functions.col("expected"), "missing")
        .otherwise("once")
    )
    joined = counted.join(outputs, "id", "full_outer").withColumn("verdict", verdict).cache()
    totals = {row["verdict"]: row["count"] for row in joined.groupBy("verdict").count().collect()}
    wrong = {
        what: joined.where(functions.col("verdict") == what).orderBy("id").limit(SHOWN).collect()
        for what in ("duplicate", "missing", "unexpected")
        if totals.get(what)
    }
    nameless = inputs.where("id is null").count() + written.where("id is null").count()
    producers = _producers(written) if batches else []
    joined.unpersist()
    aborted = 0
    if batches:
        everything = read_topic(spark, result, committed=False).count()
        aborted = everything - written.count()
    return _report(source, result, by, totals, wrong, nameless, producers, aborted)


def _identity(by: str) -> Column:
    from pyspark.sql import functions

    if by == "key":
        return functions.col("key")
    if by == "value":
        return functions.sha2(functions.col("value"), 256)
    kind, _, name = by.partition(":")
    if kind == "header" and name:
        matching = functions.filter("headers", lambda header: header["key"] == functions.lit(name))
        return functions.get(matching, functions.lit(0))["value"]
    raise InputError(f"--by is key, value or header:NAME, not {by!r}")


def _producers(written: DataFrame) -> list[list[Any]]:
    rows = (
        written.groupBy("producerId", "producerEpoch", "transactional", "partition")
        .agg({"offset": "min", "*": "count"})
        .orderBy("producerId", "producerEpoch", "partition")
        .limit(500)
        .collect()
    )
    return [
        [row["producerId"], row["producerEpoch"], "yes" if row["transactional"] else "no", row["partition"],
         row["count(1)"], row["min(offset)"]]
        for row in rows
    ]  # fmt: skip


def _report(
    source: Place,
    result: Place,
    by: str,
    totals: dict[str, int],
    wrong: dict[str, list[Any]],
    nameless: int,
    producers: list[list[Any]],
    aborted: int,
) -> Report:
    findings = [_finding(what, row, result.topic or "output") for what, rows in wrong.items() for row in rows]
    once = totals.get("once", 0)
    bad = {what: totals[what] for what in ("duplicate", "missing", "unexpected") if totals.get(what)}
    if bad:
        listed = ", ".join(f"{count} {what}" for what, count in bad.items())
        said = f"{result.topic} does not hold each record of {source.topic} once: {listed}; {once} are there once"
    elif once:
        said = f"{result.topic} holds each of the {once} records of {source.topic} exactly once"
    else:
        said = f"there is nothing to compare: {source.topic} and {result.topic} have no record with a {by}"
    report = Report("exactly-once", said, bool(bad), findings)
    rows = [[what, totals.get(what, 0)] for what in ("once", "duplicate", "missing", "unexpected")]
    report.tables.append(Table(f"Records of {source.topic} in {result.topic}, by {by}", ["verdict", "ids"], rows))
    if producers:
        columns = ["producer id", "epoch", "transactional", "partition", "committed records", "first offset"]
        report.tables.append(Table("Who wrote them, in committed transactions", columns, producers))
        outside = sum(row[4] for row in producers if row[2] == "no")
        if outside:
            report.notes.append(f"{outside} records of {result.topic} were written outside transactions")
    if aborted > 0:
        report.notes.append(f"{aborted} more records of {result.topic} were aborted, and rightly do not count")
    if nameless:
        report.notes.append(f"{nameless} records have no {by} and were left out")
    return report


def _finding(what: str, row: Any, topic: str) -> Finding:
    name = _text(row["id"])
    copies = row["copies"] or []
    steps = [
        Step(
            None,
            f"producer {each['producerId']}/{each['producerEpoch']}",
            "committed" if each["transactional"] else "written",
            f"{topic}-{each['partition']} offset {each['offset']}",
        )
        for each in copies
    ]
    origin = row["origin"]
    facts: dict[str, Any] = {
        "id": name,
        "expected": row["expected"] or 0,
        "found": row["found"] or 0,
        "in the input at": f"partition {origin['partition']} offset {origin['offset']}" if origin else None,
    }
    if what == "duplicate":
        producers = sorted({(each["producerId"], each["producerEpoch"]) for each in copies})
        outside = [each for each in copies if each["transactional"] is False]
        facts["culprit"] = ", ".join(f"producer {number}/{epoch}" for number, epoch in producers)
        if outside:
            cause = "a copy was written outside a transaction"
        elif len(producers) > 1:
            cause = "several producers, or lives of one, each committed a copy: the second read its input again"
        else:
            cause = "one producer committed it more than once"
        return Finding(f"{name} is there {row['found']} times", facts, cause, steps)
    if what == "missing":
        facts["culprit"] = "the application, or an aborted transaction"
        return Finding(f"{name} is missing", facts, "no committed record of the output has it", steps)
    facts["culprit"] = steps[0].lane if steps else "unknown"
    return Finding(f"{name} is in the output and not in the input", facts, "nothing in the input explains it", steps)


def _text(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            return "0x" + bytes(value).hex()
    return str(value)
