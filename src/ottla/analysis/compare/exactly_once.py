"""Check that an output topic holds each record of its input topic once, and which transactions prove it.

Records are matched by key, value or a header, and only committed records count. Whether a difference is a fault depends
on the application: one that filters has `missing` records, one that expands has `duplicates`; the report counts each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.compare.topics import TopicLocation, read_topic
from ottla.analysis.inputs import InputError
from ottla.analysis.report.model import Finding, Report, Step, Table, clock, several
from ottla.analysis.rules.transaction_proof import Proof

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN: Final = 20
COPIES: Final = 5


def run(
    spark: SparkSession, source: TopicLocation, result: TopicLocation, by: str = "key", group: str | None = None
) -> Report:
    """Compare the input topic with the output topic, and explain differences by the transactions of a log directory."""
    from pyspark.sql import functions

    identity = _identity(by)
    batches = not result.is_cluster
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
        written.where("id is not null")
        .groupBy("id")
        .agg(functions.count("*").alias("copies_found"), copies.alias("copies"))
    )
    verdict = (
        functions.when(functions.col("copies_found").isNull(), "missing")
        .when(functions.col("expected").isNull(), "unexpected")
        .when(functions.col("copies_found") > functions.col("expected"), "duplicate")
        .when(functions.col("copies_found") < functions.col("expected"), "missing")
        .otherwise("once")
    )
    joined = counted.join(outputs, "id", "full_outer").withColumn("verdict", verdict).cache()
    totals = {row["verdict"]: row["count"] for row in joined.groupBy("verdict").count().collect()}
    wrong = {
        what: joined.where(functions.col("verdict") == what).orderBy("id").limit(SHOWN).collect()
        for what in ("duplicate", "missing", "unexpected")
        if totals.get(what)
    }
    joined.unpersist()
    (counts,) = written.agg(functions.count("*"), functions.count_if(functions.col("id").isNull())).collect()
    total, without_id = counts[0], counts[1] + inputs.where("id is null").count()
    report = _report(source, result, by, totals, without_id)
    if batches:
        everything = read_topic(spark, result, committed=False, batches=True).withColumn("id", identity)
        aborted = _aborted_copies(everything, wrong.get("missing", []))
        proof = Proof.read(spark, result.where, source.topic or "", result.topic or "", group, _questions(wrong))
        _add_transactions(report, proof, wrong, aborted, result.topic or "output")
        _add_producers(report, _producers(written), everything.count() - total)
    else:
        report.findings = [
            _finding(what, row, result.topic or "output") for what, rows in wrong.items() for row in rows
        ]
        report.notes.append(
            "a running cluster does not expose the producer of a record; pass its log directory to see the "
            "transactions that prove it"
        )
    return report


def _questions(wrong: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the copies and the missing records that the transactions must explain."""
    copies: dict[str, list[tuple[int, int]]] = {}
    producers = set()
    for row in [*wrong.get("duplicate", []), *wrong.get("unexpected", [])]:
        for copy in row["copies"]:
            copies.setdefault(str(copy["partition"]), []).append((copy["offset"], copy["producerId"]))
            producers.add(copy["producerId"])
    missing: dict[str, list[int]] = {}
    for row in wrong.get("missing", []):
        missing.setdefault(str(row["origin"]["partition"]), []).append(row["origin"]["offset"])
    return {"copies": copies, "missing": missing, "producers": sorted(producers)}


def _aborted_copies(everything: DataFrame, missing: list[Any]) -> dict[Any, list[Any]]:
    """Return the copies of missing records that were written and aborted, by id."""
    from pyspark.sql import functions

    if not missing:
        return {}
    ids = [row["id"] for row in missing]
    rows = everything.where(functions.col("id").isin(ids)).limit(SHOWN * COPIES).collect()
    copies: dict[Any, list[Any]] = {}
    for row in rows:
        copies.setdefault(_text(row["id"]), []).append(row)
    return copies


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
    raise InputError(f"--by must be key, value or header:NAME, not {by!r}")


def _producers(written: DataFrame) -> list[list[Any]]:
    from pyspark.sql import functions

    rows = (
        written.groupBy("producerId", "transactional")
        .agg(
            functions.min("producerEpoch").alias("first"),
            functions.max("producerEpoch").alias("last"),
            functions.count_distinct("partition").alias("partitions"),
            functions.count("*").alias("records"),
        )
        .orderBy("producerId")
        .limit(500)
        .collect()
    )
    return [
        [row["producerId"], str(row["first"]) if row["first"] == row["last"] else f"{row['first']} to {row['last']}",
         "yes" if row["transactional"] else "no", row["partitions"], row["records"]]
        for row in rows
    ]  # fmt: skip


def _report(source: TopicLocation, result: TopicLocation, by: str, totals: dict[str, int], without_id: int) -> Report:
    once = totals.get("once", 0)
    bad = {what: totals[what] for what in ("duplicate", "missing", "unexpected") if totals.get(what)}
    if bad:
        listed = ", ".join(f"{count} {what}" for what, count in bad.items())
        verdict = f"{result.topic} does not hold each record of {source.topic} once: {listed}; {once} are there once"
    elif once:
        verdict = f"{result.topic} holds each of the {once} records of {source.topic} exactly once"
    else:
        verdict = f"there is nothing to compare: {source.topic} and {result.topic} have no record with a {by}"
    report = Report("exactly-once", verdict, bool(bad), conclusive=bool(bad or once))
    rows = [[what, totals.get(what, 0)] for what in ("once", "duplicate", "missing", "unexpected")]
    report.tables.append(Table(f"Records of {source.topic} in {result.topic}, by {by}", ["verdict", "ids"], rows))
    if without_id:
        report.notes.append(f"{several(without_id, 'record has', 'records have')} no {by} and were left out")
    return report


def _add_transactions(
    report: Report, proof: Proof, wrong: dict[str, list[Any]], aborted: dict[Any, list[Any]], topic: str
) -> None:
    """Add the transactions of each wrong record, and the offsets committed outside transactions."""
    for what, rows in wrong.items():
        for row in rows:
            finding = _finding(what, row, topic)
            report.findings.append(finding)
            for step, copy in zip(finding.steps, row["copies"] or [], strict=False):
                known = proof.transaction(copy["partition"], copy["offset"])
                step.what += f", in the {known}" if known else ""
            if what == "missing":
                _explain_missing(finding, row, proof, aborted.get(_text(row["id"]), []), topic)
    outside = proof.outside()
    if outside:
        report.findings += outside
        report.verdict += f"; {outside[0].title}" if report.has_problem else f", but {outside[0].title}"
        report.has_problem = True
    report.tables += proof.tables()
    report.spans = proof.spans()
    report.notes += proof.notes()


def _explain_missing(finding: Finding, row: Any, proof: Proof, aborted_copies: list[Any], topic: str) -> None:
    """Add why a record is missing: the commit that passed it, and its aborted copies."""
    passed = proof.passed(row["origin"]["partition"], row["origin"]["offset"])
    committed = {(copy["partition"], copy["offset"]) for copy in row["copies"] or []}
    aborted = [
        f"{topic}-{copy['partition']} offset {copy['offset']} by producer {copy['producerId']}/{copy['producerEpoch']}"
        for copy in aborted_copies
        if (copy["partition"], copy["offset"]) not in committed
    ]
    if aborted:
        finding.facts["aborted copies"] = aborted
    if passed is None:
        finding.cause = "no group has committed an offset beyond it: it may not have been read yet"
        finding.facts["culprit"] = "none yet"
        return
    inside = passed["producer"] is not None
    who = f"producer {passed['producer']}/{passed['epoch']}" if inside else f"group {passed['group']}"
    how = "in its transaction" if inside else "outside a transaction"
    finding.facts["culprit"] = who
    finding.facts["passed by"] = f"{passed['group']}, offset {passed['offset']} at {clock(passed['time_ms'])}"
    finding.cause = f"{who} committed offset {passed['offset']} of the input {how}, and no committed record has it" + (
        ": the transaction that had it was aborted" if aborted else ""
    )
    finding.steps.append(Step(passed["time_ms"], who, "commit", f"offset {passed['offset']} {how}"))


def _add_producers(report: Report, producers: list[list[Any]], aborted: int) -> None:
    """Add the table of producers, and notes on records outside transactions and in aborted ones."""
    if producers:
        columns = ["producer id", "epochs", "transactional", "partitions", "committed records"]
        report.tables.append(Table("Producers", columns, producers))
        outside = sum(row[4] for row in producers if row[2] == "no")
        if outside:
            report.notes.append(f"{several(outside, 'record was', 'records were')} written outside transactions")
    if aborted > 0:
        report.notes.append(f"{several(aborted, 'more record was', 'more records were')} aborted, and do not count")


def _finding(what: str, row: Any, topic: str) -> Finding:
    name = _text(row["id"])
    copies = row["copies"] or []
    steps = [
        Step(
            None,
            f"producer {copy['producerId']}/{copy['producerEpoch']}",
            "committed" if copy["transactional"] else "written",
            f"{topic}-{copy['partition']} offset {copy['offset']}",
        )
        for copy in copies
    ]
    origin = row["origin"]
    facts: dict[str, Any] = {
        "id": name,
        "expected": row["expected"] or 0,
        "found": row["copies_found"] or 0,
        "in the input at": f"partition {origin['partition']} offset {origin['offset']}" if origin else None,
    }
    if what == "duplicate":
        producers = sorted({(copy["producerId"], copy["producerEpoch"]) for copy in copies})
        outside = [copy for copy in copies if copy["transactional"] is False]
        known = producers != [(-1, -1)]
        facts["culprit"] = (
            ", ".join(f"producer {number}/{epoch}" for number, epoch in producers) if known else "unknown"
        )
        if outside:
            cause = "a copy was written outside a transaction"
        elif len(producers) > 1:
            cause = "several producers, or epochs of one, each committed a copy: the second read its input again"
        elif known:
            cause = "one producer committed it more than once"
        else:
            cause = "it was written more than once"
        return Finding(f"{name} occurs {row['copies_found']} times", facts, cause, steps)
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
