"""Audits that an output topic holds each record of its input once, and which transactions prove it.

Records are matched by key or by a header; only what is committed counts. What a record became is the application's
affair: a filter makes records `missing`, a flat map makes `duplicates`, and the report says how many of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.compare.topics import Place, read_topic
from ottla.analysis.inputs import InputError
from ottla.analysis.report.model import Finding, Report, Step, Table, clock, several
from ottla.analysis.rules.transaction_proof import Proof

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHOWN: Final = 20
COPIES: Final = 5


def run(spark: SparkSession, source: Place, result: Place, by: str = "key", group: str | None = None) -> Report:
    """Compare the input topic with the output topic, and with the transactions of the log directory they are in."""
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
    joined.unpersist()
    (counts,) = written.agg(functions.count("*"), functions.count_if(functions.col("id").isNull())).collect()
    total, nameless = counts[0], counts[1] + inputs.where("id is null").count()
    report = _report(source, result, by, totals, nameless)
    if batches:
        everything = read_topic(spark, result, committed=False, batches=True).withColumn("id", identity)
        undone = _undone(everything, wrong.get("missing", []))
        proof = Proof.read(spark, result.where, source.topic or "", result.topic or "", group, _questions(wrong))
        _witness(report, proof, wrong, undone, result.topic or "output")
        _written_by(report, _producers(written), everything.count() - total)
    else:
        report.findings = [
            _finding(what, row, result.topic or "output") for what, rows in wrong.items() for row in rows
        ]
        report.notes.append(
            "a cluster that runs does not tell who wrote a record: the transactions that prove it are in its log "
            "directory, which can be given instead"
        )
    return report


def _questions(wrong: dict[str, list[Any]]) -> dict[str, Any]:
    """The copies and the missing records that the transactions are to explain."""
    copies: dict[str, list[tuple[int, int]]] = {}
    producers = set()
    for row in [*wrong.get("duplicate", []), *wrong.get("unexpected", [])]:
        for each in row["copies"]:
            copies.setdefault(str(each["partition"]), []).append((each["offset"], each["producerId"]))
            producers.add(each["producerId"])
    missing: dict[str, list[int]] = {}
    for row in wrong.get("missing", []):
        missing.setdefault(str(row["origin"]["partition"]), []).append(row["origin"]["offset"])
    return {"copies": copies, "missing": missing, "producers": sorted(producers)}


def _undone(everything: DataFrame, missing: list[Any]) -> dict[Any, list[Any]]:
    """Copies of missing records that are there and were aborted."""
    from pyspark.sql import functions

    if not missing:
        return {}
    ids = [row["id"] for row in missing]
    rows = everything.where(functions.col("id").isin(ids)).limit(SHOWN * COPIES).collect()
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(_text(row["id"]), []).append(row)
    return found


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


def _report(source: Place, result: Place, by: str, totals: dict[str, int], nameless: int) -> Report:
    once = totals.get("once", 0)
    bad = {what: totals[what] for what in ("duplicate", "missing", "unexpected") if totals.get(what)}
    if bad:
        listed = ", ".join(f"{count} {what}" for what, count in bad.items())
        said = f"{result.topic} does not hold each record of {source.topic} once: {listed}; {once} are there once"
    elif once:
        said = f"{result.topic} holds each of the {once} records of {source.topic} exactly once"
    else:
        said = f"there is nothing to compare: {source.topic} and {result.topic} have no record with a {by}"
    report = Report("exactly-once", said, bool(bad))
    rows = [[what, totals.get(what, 0)] for what in ("once", "duplicate", "missing", "unexpected")]
    report.tables.append(Table(f"Records of {source.topic} in {result.topic}, by {by}", ["verdict", "ids"], rows))
    if nameless:
        report.notes.append(f"{several(nameless, 'record has', 'records have')} no {by} and were left out")
    return report


def _witness(
    report: Report, proof: Proof, wrong: dict[str, list[Any]], undone: dict[Any, list[Any]], topic: str
) -> None:
    """What the transactions say: of each record that is wrong, and of offsets that were committed without them."""
    for what, rows in wrong.items():
        for row in rows:
            finding = _finding(what, row, topic)
            report.findings.append(finding)
            for step, each in zip(finding.steps, row["copies"] or [], strict=False):
                known = proof.transaction(each["partition"], each["offset"])
                step.what += f", in the {known}" if known else ""
            if what == "missing":
                _explain(finding, row, proof, undone.get(_text(row["id"]), []), topic)
    outside = proof.outside()
    if outside:
        report.findings += outside
        report.verdict += f"; {outside[0].title}" if report.found else f", but {outside[0].title}"
        report.found = True
    report.tables += proof.tables()
    report.spans = proof.spans()
    report.notes += proof.notes()


def _explain(finding: Finding, row: Any, proof: Proof, undone: list[Any], topic: str) -> None:
    """Why a record is missing: who went past it."""
    passed = proof.passed(row["origin"]["partition"], row["origin"]["offset"])
    there = {(each["partition"], each["offset"]) for each in row["copies"] or []}
    undone = [each for each in undone if (each["partition"], each["offset"]) not in there]
    aborted = [f"{topic}-{each['partition']} offset {each['offset']} by producer {each['producerId']}/"
               f"{each['producerEpoch']}" for each in undone]  # fmt: skip
    if aborted:
        finding.facts["aborted copies"] = aborted
    if passed is None:
        finding.cause = "no group has committed an offset behind it: it may not have been read yet"
        finding.facts["culprit"] = "nobody yet"
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


def _written_by(report: Report, producers: list[list[Any]], aborted: int) -> None:
    if producers:
        columns = ["producer id", "epochs", "transactional", "partitions", "committed records"]
        report.tables.append(Table("Who wrote them", columns, producers))
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
        known = producers != [(-1, -1)]
        facts["culprit"] = (
            ", ".join(f"producer {number}/{epoch}" for number, epoch in producers) if known else "unknown"
        )
        if outside:
            cause = "a copy was written outside a transaction"
        elif len(producers) > 1:
            cause = "several producers, or lives of one, each committed a copy: the second read its input again"
        elif known:
            cause = "one producer committed it more than once"
        else:
            cause = "it was written more than once"
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
