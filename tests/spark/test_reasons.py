"""One sentence from Spark's nested exceptions."""

from __future__ import annotations

import pytest

from ottla.spark.reasons import reason

JAVA = """An error occurred while calling o166.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.execution.Some(Some.scala:1)
Caused by: java.io.IOException: Mkdirs failed to create file:/proc/nope
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:512)
\t... 15 more
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JAVA, "Mkdirs failed to create file:/proc/nope"),
        ("An error occurred while calling o1.parquet.\n: java.io.IOException: no space", "no space"),
        ("An error occurred while calling o1.parquet.", "An error occurred while calling o1.parquet."),
        (
            "x\nottla.spark.options.OptionError: no broker answers\n SQLSTATE: 38000\n\tat Some.java",
            "no broker answers",
        ),
        (
            "x\n[USER_RAISED_EXCEPTION] expectation 'a' of b is violated SQLSTATE: P0001",
            "expectation 'a' of b is violated",
        ),
        ("[UNKNOWN] x\nTraceback (most recent call last):\nValueError: no such topic", "no such topic"),
    ],
)
def test_reason_is_innermost_cause(text: str, expected: str) -> None:
    assert reason(RuntimeError(text)) == expected
