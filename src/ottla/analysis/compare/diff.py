"""Compares two topics, directories or clusters record by record: key, value, headers and timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.analysis.compare.topics import Place, read_topic
from ottla.analysis.inputs import InputError
from ottla.analysis.report.model import Finding, Report, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS: Final = ("key", "value", "headers", "timestamp")
SHOWN: Final = 50


def run(spark: SparkSession, first: Place, second: Place, by: str = "offset", ignore: tuple[str, ...] = ()) -> Report:
    """Match records by offset, or by their place in the partition where offsets cannot be the same."""
    from pyspark.sql import functions

    if by not in ("offset", "position"):
        raise InputError(f"--by is offset or position, not {by!r}")
    unknown = set(ignore) - set(FIELDS)
    if unknown:
        raise InputError(f"--ignore is one of {', '.join(FIELDS)}, not {', '.join(sorted(unknown))}")
    fields = [field for field in FIELDS if field not in ignore]
    one_topic = first.topic is not None and second.topic is not None
    left = _hashed(read_topic(spark, first), by, fields, one_topic, "a")
    right = _hashed(read_topic(spark, second), by, fields, one_topic, "b")
    joined = left.join(right, ["topic", "partition", "place"], "full_outer")
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
        .select("topic", "partition", "place", "a_offset", "b_offset", "verdict", "fields")
        .cache()
    )
    counts = compared.groupBy("topic", "partition", "verdict").count().collect()
    samples = compared.where("verdict <> 'same'").orderBy("topic", "partition", "place").limit(SHOWN).collect()
    compared.unpersist()
    return _report(first, second, counts, samples, by)


def _hashed(records: DataFrame, by: str, fields: list[str], one_topic: bool, side: str) -> DataFrame:
    from pyspark.sql import Window, functions

    # A hash passes over nulls, so that each field says beside it whether it is one.
    columns = {
        "key": functions.xxhash64("key", functions.col("key").isNull()),
        "value": functions.xxhash64("value", functions.col("value").isNull()),
        "headers": functions.xxhash64(functions.to_json(functions.coalesce("headers", functions.array()))),
        "timestamp": functions.unix_micros("timestamp"),
    }
    place = functions.col("offset")
    if by == "position":
        place = functions.row_number().over(Window.partitionBy("topic", "partition").orderBy("offset"))
    topic = functions.lit("topic") if one_topic else functions.col("topic")
    return records.select(
        topic.alias("topic"),
        "partition",
        place.alias("place"),
        functions.col("offset").alias(f"{side}_offset"),
        *[columns[field].alias(f"{side}_{field}") for field in fields],
    )


def _report(first: Place, second: Place, counts: list[Any], samples: list[Any], by: str) -> Report:
    names = {"A": _name(first), "B": _name(second)}
    table: dict[tuple[str, int], dict[str, int]] = {}
    totals: dict[str, int] = {}
    for row in counts:
        table.setdefault((row["topic"], row["partition"]), {})[row["verdict"]] = row["count"]
        totals[row["verdict"]] = totals.get(row["verdict"], 0) + row["count"]
    wrong = {what: count for what, count in sorted(totals.items()) if what != "same"}
    shown_topic = f"{first.topic} and {second.topic}" if first.topic and second.topic else None
    findings = []
    seen: set[tuple[str, int, str]] = set()
    for row in samples:
        where = (row["topic"], row["partition"], row["verdict"])
        if where in seen:
            continue  # the first of each kind in each partition; the rest is in the table
        seen.add(where)
        topic = shown_topic or row["topic"]
        at = f"partition {row['partition']} of {topic}, {by} {row['place']}"
        what = f"{', '.join(row['fields'])} differ" if row["verdict"] == "different" else row["verdict"]
        count = table[row["topic"], row["partition"]][row["verdict"]]
        facts = {
            "topic": topic,
            "partition": row["partition"],
            "offset in A": row["a_offset"],
            "offset in B": row["b_offset"],
            "records like this in the partition": count,
        }
        findings.append(Finding(f"{at}: {what}", facts))
    same = totals.get("same", 0)
    if wrong:
        listed = ", ".join(f"{count} {what}" for what, count in wrong.items())
        said = f"A ({names['A']}) and B ({names['B']}) differ: {listed}; {same} records are the same"
    elif same:
        said = f"A ({names['A']}) and B ({names['B']}) hold the same {same} records"
    else:
        said = f"neither A ({names['A']}) nor B ({names['B']}) holds a record"
    columns = ["topic", "partition", "same", "different", "only in A", "only in B"]
    rows = [
        [shown_topic or topic, partition, *[found.get(what, 0) for what in columns[2:]]]
        for (topic, partition), found in sorted(table.items())
    ]
    return Report("diff", said, bool(wrong), findings, [Table("Partitions", columns, rows)])


def _name(place: Place) -> str:
    return f"{place.where}#{place.topic}" if place.topic else place.where
