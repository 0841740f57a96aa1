"""Expectations: what is kept, dropped, failed and set aside, and how it is counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ottla.spark import Expectations
from ottla.spark.expectations import HEADER, ExpectationError, counts
from ottla.spark.reasons import reason
from ottla.testing.spark import spark_kafka, spark_kafka_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.testing.spark import SparkKafka

__all__ = ["spark_kafka", "spark_kafka_session"]
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("spark")]
RECORD = "topic string, partition int, offset bigint, key binary, value binary, amount int, customer string"


def rows(spark: SparkSession, *amounts: int | None) -> DataFrame:
    records = [("orders", 0, offset, b"k", b"\xff%d" % offset, amount, "ada") for offset, amount in enumerate(amounts)]
    return spark.createDataFrame(records, RECORD)


def amounts(frame: DataFrame) -> list[int | None]:
    return sorted((row["amount"] for row in frame.collect()), key=str)


POSITIVE = ("has an amount", "amount > 0")


def test_violating_rows_are_kept_dropped_or_set_aside(spark: SparkSession) -> None:
    provided = rows(spark, 1, -2, None)
    assert amounts(Expectations("orders").expect(*POSITIVE).check(provided).rows) == [-2, 1, None]
    assert amounts(Expectations("orders").expect_or_drop(*POSITIVE).check(provided).rows) == [1]
    checked = Expectations("orders").expect_or_dead_letter(*POSITIVE).check(provided, dead_letters="orders-dead")
    assert amounts(checked.rows) == [1]
    assert checked.dead_letters is not None
    letters = sorted(checked.dead_letters.collect(), key=lambda row: bytes(row["value"]))
    assert [(row["topic"], bytes(row["key"]), bytes(row["value"])) for row in letters] == [
        ("orders-dead", b"k", b"\xff1"),
        ("orders-dead", b"k", b"\xff2"),
    ]
    headers = {row["key"]: bytes(row["value"]).decode() for row in letters[0]["headers"]}
    assert headers == {
        f"{HEADER}topic": "orders",
        f"{HEADER}partition": "0",
        f"{HEADER}offset": "1",
        f"{HEADER}connector.name": "orders",
        f"{HEADER}stage": "EXPECTATION",
        f"{HEADER}exception.message": "has an amount (amount > 0)",
    }


def test_expect_or_fail_names_expectation_and_record(spark: SparkSession) -> None:
    checked = Expectations("orders").expect_or_fail(*POSITIVE).check(rows(spark, 1, -2))
    with pytest.raises(Exception, match="USER_RAISED") as failure:
        checked.rows.collect()
    sentence = "expectation 'has an amount' of orders is violated (amount > 0) by orders-0 offset 1"
    assert reason(failure.value) == sentence
    assert str(failure.value).endswith(sentence)
    assert amounts(Expectations("o").expect_or_fail(*POSITIVE).check(rows(spark, 1, 2)).rows) == [1, 2]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda e: e.check, "has no expectations"),
        (lambda e: e.expect_or_dead_letter(*POSITIVE).check, "dead_letters= is required"),
        (lambda e: e.expect(*POSITIVE).expect(*POSITIVE).check, "two expectations called 'has an amount'"),
        (lambda e: e.expect("a\nb", "true").check, "is not a name"),
    ],
)
def test_wrong_declaration_is_refused(spark: SparkSession, build: Any, message: str) -> None:
    with pytest.raises(ExpectationError, match=message):
        build(Expectations("orders"))(rows(spark, 1))


def test_dead_letters_without_columns_of_the_record_are_refused(spark: SparkSession) -> None:
    parsed = rows(spark, 1).select("amount", "key", "value")
    with pytest.raises(ExpectationError, match="need the source's columns topic, partition, offset"):
        Expectations("orders").expect_or_dead_letter(*POSITIVE).check(parsed, dead_letters="orders-dead")


def test_stream_counts_violations_and_writes_dead_letters_once(spark_kafka: SparkKafka) -> None:
    from pyspark.sql import functions as f

    for topic in ("orders", "orders-dead", "orders-good"):
        spark_kafka.create_topic(topic)
    for number in range(10):
        spark_kafka.produce(
            "orders", key=f"k{number}", value=json.dumps({"amount": number - 2}), headers=[("trace", b"%d" % number)]
        )
    spark_kafka.produce("orders", key="broken", value=b"\xff\xfe")
    parsed = spark_kafka.stream("orders", includeHeaders="true").withColumn(
        "order", f.from_json(f.col("value").cast("string"), "amount int")
    )
    checked = (
        Expectations("orders")
        .expect("is small", "order.amount < 5")
        .expect_or_dead_letter("has an amount", "order.amount > 0")
        .check(parsed, dead_letters="orders-dead")
    )
    output = checked.with_dead_letters(checked.rows.select("key", "value"), "orders-good")
    writer = output.writeStream.format("ottla").options(**spark_kafka.options).option("exactlyOnce", "true")
    query = spark_kafka.run(writer, killed=True)
    observed = [json.loads(progress.json).get("observedMetrics", {}) for progress in query.recentProgress]
    assert next(counts(metrics) for metrics in observed if metrics) == {
        "orders": {"rows": 11, "is small": 4, "has an amount": 4}
    }
    spark_kafka.run(writer)
    assert spark_kafka.read("orders-good").count() == 7
    letters = spark_kafka.read("orders-dead", includeHeaders="true").collect()
    assert sorted(bytes(row["key"]) for row in letters) == [b"broken", b"k0", b"k1", b"k2"]
    (broken,) = [row for row in letters if bytes(row["key"]) == b"broken"]
    assert bytes(broken["value"]) == b"\xff\xfe"
    names = [header["key"] for row in letters for header in row["headers"]]
    assert names.count("trace") == 3
    assert names.count(f"{HEADER}timestamp") == 4
