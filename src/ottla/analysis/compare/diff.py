"""Compare two topics, directories or clusters record by record: key, value, headers and timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.compare.topics import TopicLocation, read_topic
from ottla.analysis.inputs import InputError
from ottla.analysis.report.model import Finding, Report, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS: Final = ("key", "value", "headers", "timestamp")
SHOWN: Final = 50


def run(
    spark: SparkSession, first: TopicLocation, second: TopicLocation, by: str = "offset", ignore: tuple[str, ...] = ()
) -> Report:
    """Compare records matched by offset, or by their position in the partition where offsets differ."""
    from pyspark.sql import functions

    if by not in ("offset", "position"):
        raise InputError(f"--by must be offset or position, not {by!r}")
    unknown = set(ignore) - set(FIELDS)
    if unknown:
        raise InputError(f"--ignore must be one of {', '.join(FIELDS)}, not {', '.join(sorted(unknown))}")
    fields = [field for field in FIELDS if field not in ignore]
    one_topic = first.topic is not None and second.topic is not None
    left = _hashed(read_topic(spark, first), by, fields, one_topic, "a")
    right = _hashed(read_topic(spark, second), by, fields, one_topic, "b")
    joined = left.join(right, ["topic", "partition", "matched_by"], "full_outer")
    differs = [
        functions.when(~functions.col(f"a_{field}").eqNullSafe(functions.col(f"b_{field}")), field) for field in fields
    ]
    verdict = (
        functions.when(functions.col("a_offset").isNull(), "only in B")
        .when(functions.col("b_offset").isNull(), "only in A")
        .when(functions.size(functions.array_compact(functions.array(*differs))) > 0, "different")
        .otherwise("same")
    )
    compared = (
        joined.withColumn("verdict", verdict)
        .withColumn("fields", functions.array_compact(functions.array(*differs)))
        .select("topic", "partition", "matched_by", "a_offset", "b_offset", "verdict", "fields")
        .cache()
    )
    counts = compared.groupBy("topic", "partition", "verdict").count().collect()
    samples = compared.where("verdict <> 'same'").orderBy("topic", "partition", "matched_by").limit(SHOWN).collect()
    compared.unpersist()
    return _report(first, second, counts, samples, by)


def _hashed(records: DataFrame, by: str, fields: list[str], one_topic: bool, side: str) -> DataFrame:
    from pyspark.sql import Window, functions

    # A hash ignores nulls, so that each field is hashed together with whether it is null.
    columns = {
        "key": functions.xxhash64("key", functions.col("key").isNull()),
        "value": functions.xxhash64("value", functions.col("value").isNull()),
        "headers": functions.xxhash64(functions.to_json(functions.coalesce("headers", functions.array()))),
        "timestamp": functions.unix_micros("timestamp"),
    }
    matched_by = functions.col("offset")
    if by == "position":
        matched_by = functions.row_number().over(Window.partitionBy("topic", "partition").orderBy("offset"))
    topic = functions.lit("topic") if one_topic else functions.col("topic")
    return records.select(
        topic.alias("topic"),
        "partition",
        matched_by.alias("matched_by"),
        functions.col("offset").alias(f"{side}_offset"),
        *[columns[field].alias(f"{side}_{field}") for field in fields],
    )


def _report(first: TopicLocation, second: TopicLocation, counts: list[Any], samples: list[Any], by: str) -> Report:
    table: dict[tuple[str, int], dict[str, int]] = {}
    totals: dict[str, int] = {}
    for row in counts:
        table.setdefault((row["topic"], row["partition"]), {})[row["verdict"]] = row["count"]
        totals[row["verdict"]] = totals.get(row["verdict"], 0) + row["count"]
    differences = {verdict: count for verdict, count in sorted(totals.items()) if verdict != "same"}
    shown_topic = f"{first.topic} and {second.topic}" if first.topic and second.topic else None
    findings = []
    seen: set[tuple[str, int, str]] = set()
    for row in samples:
        kind = (row["topic"], row["partition"], row["verdict"])
        if kind in seen:
            continue  # one finding per kind and partition; the table holds the counts
        seen.add(kind)
        topic = shown_topic or row["topic"]
        where = f"partition {row['partition']} of {topic}, {by} {row['matched_by']}"
        what = f"{', '.join(row['fields'])} differ" if row["verdict"] == "different" else row["verdict"]
        count = table[row["topic"], row["partition"]][row["verdict"]]
        facts = {
            "topic": topic,
            "partition": row["partition"],
            "offset in A": row["a_offset"],
            "offset in B": row["b_offset"],
            "records like this in the partition": count,
        }
        findings.append(Finding(f"{where}: {what}", facts))
    same = totals.get("same", 0)
    if differences:
        listed = ", ".join(f"{count} {verdict}" for verdict, count in differences.items())
        verdict = f"A ({first}) and B ({second}) differ: {listed}; {same} records are the same"
    elif same:
        verdict = f"A ({first}) and B ({second}) hold the same {same} records"
    else:
        verdict = f"neither A ({first}) nor B ({second}) holds a record"
    columns = ["topic", "partition", "same", "different", "only in A", "only in B"]
    rows = [
        [shown_topic or topic, partition, *[verdicts.get(column, 0) for column in columns[2:]]]
        for (topic, partition), verdicts in sorted(table.items())
    ]
    return Report("diff", verdict, bool(differences), findings, [Table("Partitions", columns, rows)])
