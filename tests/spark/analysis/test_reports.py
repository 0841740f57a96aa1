"""Analyses in Spark: reports equal those of one process; `exactly-once` and `diff` run only in Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ottla.analysis.analyses import ANALYSES
from ottla.analysis.compare import diff, exactly_once
from ottla.analysis.compare.topics import TopicLocation
from ottla.analysis.engine import find_pieces, run_here, run_in_spark
from ottla.analysis.inputs import InputError
from ottla.analysis.rules import anomalies
from ottla.history import AnomalyKind, Operation, Poll, Send, check_history, write_history
from tests.analysis.directories import Writer

pytestmark = pytest.mark.xdist_group("spark")
FIXTURES = Path(__file__).parents[2] / "fixtures"
KAFKA = FIXTURES / "kafka" / "4.3.1" / "data"
LOGS = FIXTURES / "analysis"
CASES = FIXTURES.parent.parent / "docs" / "debugging"


@pytest.mark.parametrize(
    ("name", "paths", "options"),
    [
        ("dual-assign", [LOGS / "kgo.log", LOGS / "librdkafka.log", KAFKA], {}),
        ("client-trace", [LOGS / "kgo.log"], {"partition": 2}),
        ("dual-assign", [CASES / "two-owners.jsonl"], {}),
        ("txn-timeout", [CASES / "timed-out.jsonl", KAFKA], {"now_ms": 1794744000000}),
        ("lag", [KAFKA], {}),
    ],
)
def test_spark_and_local_reports_are_equal(spark, name, paths, options):
    texts = [str(path) for path in paths]
    here = run_here(ANALYSES[name], find_pieces(texts), options)
    there = run_in_spark(ANALYSES[name], spark, texts, options)
    assert there.verdict == here.verdict
    assert there.tables == here.tables
    assert there.findings == here.findings
    assert [source.events for source in there.inputs] == [source.events for source in here.inputs]


def test_split_file_is_read_once(spark):
    path = LOGS / "kgo.log"
    pieces = spark.read.format("ottla-analysis").option("pieceBytes", "20000").load(str(path))
    assert pieces.select("position").distinct().count() == sum(1 for line in path.open() if line.strip())


def test_events_are_queried_with_sql(spark):
    from ottla.analysis.spark_source import read_events

    read_events(spark, [str(LOGS / "kgo.log")]).createOrReplaceTempView("events")
    (row,) = spark.sql("select count(distinct client) as clients from events where event = 'group.added'").collect()
    assert row.clients == 5


def history(seed: int) -> list[Operation]:
    operations = []
    for value in range(60):
        partition = f"t-{value % 3}"
        status = "info" if value == 7 else "ok"
        operations.append(Operation(f"p{value % 2}", status, [Send(partition, value, value // 3)]))
    for number in range(3):
        records = [(value // 3, value) for value in range(number, 60, 3)]
        if number == seed % 3:
            records = [pair for pair in records if pair[1] != 30 + number]
        operations.append(Operation("c", "ok", [Poll({f"t-{number}": records})]))
    return operations


@pytest.mark.parametrize("seed", [0, 1])
def test_partitioned_history_has_same_anomalies(spark, tmp_path, seed):
    path = tmp_path / "history.jsonl"
    path.write_text("".join(write_history(history(seed))))
    expected = check_history(history(seed))
    assert expected.kinds() == {AnomalyKind.LOST_WRITE, AnomalyKind.INTERNAL_POLL_SKIP}
    report = anomalies.run_in_spark(spark, [str(path)], {})
    reported = sorted((finding.facts["anomaly"], finding.facts["partition"]) for finding in report.findings)
    assert reported == sorted((anomaly.kind.value, anomaly.partition) for anomaly in expected.anomalies)
    here = run_here(anomalies.ANALYSIS, find_pieces([str(path)]), {})
    assert here.verdict == report.verdict


def test_exactly_once_accepts_each_input_once(spark, tmp_path):
    writer = Writer(tmp_path / "logs")
    keys = [f"k{number}" for number in range(40)]
    writer.write("orders", 0, keys)
    writer.write("bills", 0, keys[:20], producer=7)
    writer.end("bills", 0, 7, committed=True)
    writer.write("bills", 1, keys[20:], producer=7)
    writer.end("bills", 1, 7, committed=False)
    writer.write("bills", 1, keys[20:], producer=8)
    writer.end("bills", 1, 8, committed=True)
    writer.close()
    orders, bills = TopicLocation(str(writer.path), "orders"), TopicLocation(str(writer.path), "bills")
    report = exactly_once.run(spark, orders, bills)
    assert not report.has_problem
    assert "exactly once" in report.verdict
    assert any("20 more records were aborted" in note for note in report.notes)
    (producers,) = [table for table in report.tables if table.title == "Producers"]
    assert [row[:3] for row in producers.rows] == [[7, "0", "yes"], [8, "0", "yes"]]
    assert any("no group committed offsets of orders in a transaction" in note for note in report.notes)
    by_header = exactly_once.run(spark, orders, bills, "header:id")
    assert not by_header.has_problem


def test_exactly_once_finds_duplicates_and_missing_with_producers(spark, tmp_path):
    writer = Writer(tmp_path / "logs")
    writer.write("orders", 0, ["a", "b", "c", "d"])
    writer.write("bills", 0, ["a", "b"], producer=7)
    writer.end("bills", 0, 7, committed=True)
    writer.write("bills", 0, ["b", "c", "x"], producer=9)
    writer.end("bills", 0, 9, committed=True)
    writer.close()
    report = exactly_once.run(
        spark, TopicLocation(str(writer.path), "orders"), TopicLocation(str(writer.path), "bills")
    )
    assert report.has_problem
    by_id = {finding.facts["id"]: finding for finding in report.findings}
    assert by_id.keys() == {"b", "d", "x"}
    assert by_id["b"].facts["culprit"] == "producer 7/0, producer 9/0"
    assert "several producers" in by_id["b"].cause
    with pytest.raises(InputError, match="header:NAME"):
        exactly_once.run(
            spark, TopicLocation(str(writer.path), "orders"), TopicLocation(str(writer.path), "bills"), "headers"
        )


def test_exactly_once_ignores_other_applications(spark, tmp_path):
    writer = Writer(tmp_path / "logs")
    writer.write("orders", 0, ["a", "b", "c", "d"])
    for group, topic, producer, keys in (("billing", "bills", 7, "abd"), ("mailing", "mails", 8, "abcd")):
        writer.write(topic, 0, list(keys), producer=producer)
        writer.commit(group, "orders", 0, 4, producer=producer)
        writer.end(topic, 0, producer, committed=True)
        writer.end("__consumer_offsets", 0, producer, committed=True)
        writer.clock.advance(1)
    writer.commit("mailing", "orders", 0, 4)
    writer.commit("watching", "orders", 0, 4)
    writer.close()
    orders, bills = TopicLocation(str(writer.path), "orders"), TopicLocation(str(writer.path), "bills")
    report = exactly_once.run(spark, orders, bills)
    (finding,) = report.findings
    assert (finding.facts["id"], finding.facts["culprit"]) == ("c", "producer 7/0")
    assert "committed offset 4 of the input in its transaction" in finding.cause
    mails = exactly_once.run(spark, orders, TopicLocation(str(writer.path), "mails"))
    (finding,) = mails.findings
    assert finding.facts["culprit"] == "group mailing"
    assert mails.verdict.startswith("mails holds each of the 4 records of orders exactly once, but mailing committed")
    watched = exactly_once.run(spark, orders, bills, group="watching")
    assert any(finding.facts["culprit"] == "group watching" for finding in watched.findings)


def test_two_directories_are_compared_record_by_record(spark, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(KAFKA, copy)
    same = diff.run(spark, TopicLocation(str(KAFKA)), TopicLocation(str(copy)))
    assert not same.has_problem, same.verdict
    assert "hold the same" in same.verdict
    for side, more in (("one", []), ("two", ["e", "f"])):
        writer = Writer(tmp_path / side)
        writer.write("t", 0, ["a", "b"])
        writer.write("t", 0, ["c"], value="value of" if side == "one" else "other")
        writer.write("t", 0, ["d", *more])
        writer.close()
    one, two = TopicLocation(str(tmp_path / "one"), "t"), TopicLocation(str(tmp_path / "two"), "t")
    report = diff.run(spark, one, two)
    assert report.has_problem
    assert "1 different, 2 only in B; 3 records are the same" in report.verdict
    assert "value differ" in report.findings[0].title
    ignored = diff.run(
        spark, TopicLocation(str(tmp_path / "one"), "t"), TopicLocation(str(tmp_path / "two"), "t"), ignore=("value",)
    )
    assert "different" not in ignored.verdict
