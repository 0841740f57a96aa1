"""Expectations of rows, as in Delta Live Tables: count, drop, reject or set aside rows that violate a condition.

checked = (
    Expectations("orders")
    .expect("has a customer", "customer is not null")
    .expect_or_drop("is no test", "customer <> 'test'")
    .expect_or_dead_letter("has an amount", "amount > 0")
    .check(orders, dead_letters="orders-dead")
)
checked.rows          # rows that passed
checked.dead_letters  # rows for the sink: topic, key, value, headers
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

METRIC_PREFIX: Final = "ottla.expectations."
"""The observed metrics of a query that hold counts of expectations begin with it."""
HEADER: Final = "__connect.errors."
"""Headers of dead letters have the names that Kafka Connect gives them, so that tools know them."""
RECORD_COLUMNS: Final = ("topic", "partition", "offset", "key", "value")
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
KEEP, DROP, FAIL, DEAD_LETTER = "keep", "drop", "fail", "dead_letter"
_ROWS: Final = "rows"
_NAME: Final = re.compile(r"[\w .,:/()'<>=%+-]{1,200}")


on_observation: Callable[[Any], None] | None = None
"""Called with the observation of each check of a DataFrame that is no stream; a backfill sets it."""


class ExpectationError(ValueError):
    """Expectations are declared wrongly, or the rows lack columns that they need."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that rows should meet, in SQL, and what happens to a row that does not."""

    name: str
    condition: str
    action: str


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The result of a check: the rows that passed, and dead letters as rows of the sink `ottla` (None: no topic)."""

    rows: DataFrame
    dead_letters: DataFrame | None
    observation: Any = None

    def counts(self) -> dict[str, int]:
        """Return `rows` and the violations by expectation, after an action on the rows. A stream has them in progress.

        Waits until the first action on the rows has ended.
        """
        if self.observation is None:
            raise ExpectationError("the counts of a stream are in its progress, under observedMetrics")
        return {key: int(value or 0) for key, value in self.observation.get.items()}

    def with_dead_letters(self, output: DataFrame, topic: str | None = None) -> DataFrame:
        """Return rows for one sink that writes both: `output` (to `topic`, unless it has that column) and dead letters.

        One query then writes both topics, so that both are exactly once.
        """
        from pyspark.sql import functions as f

        if "topic" not in output.columns:
            if topic is None:
                raise ExpectationError("topic= is required: dead letters have a column topic, the output has none")
            output = output.withColumn("topic", f.lit(topic))
        extra = set(output.columns) - {"topic", "key", "value", "headers", "partition"}
        if extra:
            raise ExpectationError(f"the sink has no column {', '.join(sorted(extra))}: select key and value first")
        for name in ("key", "value"):
            if name in output.columns:
                output = output.withColumn(name, f.col(name).cast("binary"))
        if self.dead_letters is None:
            return output
        return output.unionByName(self.dead_letters, allowMissingColumns=True)


@dataclass(frozen=True, slots=True)
class Expectations:
    """Expectations of one set of rows. `name` tells them apart in progress and metrics.

    Every expectation sees every row and is counted on its own. A row that violates several is treated by the strictest:
    fail, then dead letter, then drop. A condition that is null is violated.
    """

    name: str
    expectations: tuple[Expectation, ...] = field(default=())

    def expect(self, name: str, condition: str) -> Expectations:
        """Count rows that violate the condition, and keep them."""
        return self._with(name, condition, KEEP)

    def expect_or_drop(self, name: str, condition: str) -> Expectations:
        """Count rows that violate the condition, and drop them."""
        return self._with(name, condition, DROP)

    def expect_or_fail(self, name: str, condition: str) -> Expectations:
        """Fail the query at a row that violates the condition; the error names the expectation and the record."""
        return self._with(name, condition, FAIL)

    def expect_or_dead_letter(self, name: str, condition: str) -> Expectations:
        """Count rows that violate the condition, and write their records to the dead-letter topic."""
        return self._with(name, condition, DEAD_LETTER)

    def check(self, rows: DataFrame, *, dead_letters: str | None = None) -> CheckedRows:
        """Apply the expectations to rows. `dead_letters` is the topic of `expect_or_dead_letter`.

        Dead letters need the source's columns topic, partition, offset, key and value beside the parsed ones (add those
        with `withColumn`, select afterwards); with a column headers, they keep the record's headers.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._check_columns(rows, dead_letters)
        observation = None if rows.isStreaming else Observation(METRIC_PREFIX + self.name)
        if observation is not None and on_observation is not None:
            on_observation((self.name, observation))
        counted = rows.observe(
            METRIC_PREFIX + self.name if observation is None else observation,
            f.count(f.lit(1)).alias(_ROWS),
            *[f.count(f.when(_violates(expectation), 1)).alias(expectation.name) for expectation in self.expectations],
        )
        rejected = [
            _violates(expectation) for expectation in self.expectations if expectation.action in (DROP, DEAD_LETTER)
        ]
        passed = counted
        for expectation in self.expectations:
            if expectation.action == FAIL:
                passed = passed.where(self._or_fail(expectation, rows))
        for violated in rejected:
            passed = passed.where(~violated)
        return CheckedRows(passed, None if dead_letters is None else self._dead(rows, dead_letters), observation)

    def _with(self, name: str, condition: str, action: str) -> Expectations:
        if not _NAME.fullmatch(name) or name == _ROWS:
            raise ExpectationError(f"{name!r} is not a name of an expectation: use letters, digits and spaces")
        if any(expectation.name == name for expectation in self.expectations):
            raise ExpectationError(f"{self.name} has two expectations called {name!r}")
        return Expectations(self.name, (*self.expectations, Expectation(name, condition, action)))

    def _check_columns(self, rows: DataFrame, dead_letters: str | None) -> None:
        if not self.expectations:
            raise ExpectationError(f"{self.name} has no expectations")
        needs_topic = [expectation.name for expectation in self.expectations if expectation.action == DEAD_LETTER]
        if needs_topic and dead_letters is None:
            raise ExpectationError(f"dead_letters= is required: {needs_topic[0]!r} is expect_or_dead_letter")
        if dead_letters is not None:
            if not needs_topic:
                raise ExpectationError(f"dead_letters={dead_letters!r} has no expect_or_dead_letter that writes to it")
            missing = [name for name in RECORD_COLUMNS if name not in rows.columns]
            if missing:
                raise ExpectationError(
                    f"dead letters of {self.name} need the source's columns {', '.join(missing)}: parse with "
                    "withColumn, check, and select afterwards"
                )

    def _or_fail(self, expectation: Expectation, rows: DataFrame) -> Column:
        from pyspark.sql import functions as f

        text = f"expectation {expectation.name!r} of {self.name} is violated ({expectation.condition})"
        parts: list[Column] = [f.lit(text)]
        if {"topic", "partition", "offset"} <= set(rows.columns):
            parts += [f.lit(" by "), _location()]
        return f.when(~_violates(expectation), f.lit(True)).otherwise(f.raise_error(f.concat(*parts)).cast("boolean"))

    def _dead(self, rows: DataFrame, topic: str) -> DataFrame:
        from pyspark.sql import functions as f

        dead = [expectation for expectation in self.expectations if expectation.action == DEAD_LETTER]
        texts = [f.when(_violates(expectation), f.lit(_text(expectation))) for expectation in dead]
        described = {
            "topic": f.col("topic"),
            "partition": f.col("partition"),
            "offset": f.col("offset"),
            "connector.name": f.lit(self.name),
            "stage": f.lit("EXPECTATION"),
            "exception.message": f.concat_ws("; ", *texts),
        }
        if "timestamp" in rows.columns:
            described["timestamp"] = f.unix_millis("timestamp")
        added = f.array(
            *[
                f.struct(f.lit(HEADER + name).alias("key"), value.cast("string").cast("binary").alias("value"))
                for name, value in described.items()
            ]
        ).cast(HEADERS_TYPE)
        headers = added
        if "headers" in rows.columns:
            kept = f.filter(f.col("headers"), lambda header: ~header["key"].startswith(HEADER))
            headers = f.concat(f.coalesce(kept, f.array().cast(HEADERS_TYPE)), added)
        violated = [_violates(expectation) for expectation in dead]
        any_violated = violated[0]
        for other in violated[1:]:
            any_violated = any_violated | other
        return rows.where(any_violated).select(
            f.lit(topic).alias("topic"),
            f.col("key").cast("binary").alias("key"),
            f.col("value").cast("binary").alias("value"),
            headers.alias("headers"),
        )


def _text(expectation: Expectation) -> str:
    return f"{expectation.name} ({expectation.condition})"


def _violates(expectation: Expectation) -> Any:
    """Return the condition's negation; null, which is neither true nor false, violates."""
    from pyspark.sql import functions as f

    return ~f.coalesce(f.expr(expectation.condition), f.lit(False))


def _location() -> Column:
    from pyspark.sql import functions as f

    return f.concat(f.col("topic"), f.lit("-"), f.col("partition"), f.lit(" offset "), f.col("offset"))


def counts(observed: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return the violations by expectation, with `rows`, from the observed metrics of a query's progress.

    >>> counts({"ottla.expectations.orders": {"rows": 9, "has an amount": 2}, "other": {"n": 1}})
    {'orders': {'rows': 9, 'has an amount': 2}}
    """
    return {
        name.removeprefix(METRIC_PREFIX): {key: int(value or 0) for key, value in metrics.items()}
        for name, metrics in observed.items()
        if name.startswith(METRIC_PREFIX)
    }
