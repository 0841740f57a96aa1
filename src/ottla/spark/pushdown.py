"""What Spark's filters on topic, partition, offset and timestamp leave of a read.

Filters only narrow what is opened; Spark applies each of them again to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_OFFSET: Final = 2**63 - 1


@dataclass(slots=True)
class Limits:
    """Topics and partitions (None is all), offsets as a half-open range, and the earliest timestamp in ms."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int = _MAX_OFFSET
    earliest: int | None = None

    def partition(self, topic: str, partition: int) -> bool:
        """Whether a partition can have rows that pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def offsets(self) -> tuple[int, int]:
        """The offsets that can pass."""
        return self.first_offset, self.end_offset

    def take(self, filters: Iterable[Any]) -> None:
        """Note what is of use in a conjunction of filters."""
        from pyspark.sql import datasource as spark

        for each in filters:
            name = ".".join(getattr(each, "attribute", ()))
            value: Any = getattr(each, "value", None)
            match each:
                case spark.EqualTo() | spark.EqualNullSafe():
                    self._among(name, (value,))
                    self._at_least(name, value)
                    self._below(name, value, inclusive=True)
                case spark.In():
                    self._among(name, tuple(value))
                case spark.GreaterThanOrEqual():
                    self._at_least(name, value)
                case spark.GreaterThan():
                    self._at_least(name, value + 1 if type(value) is int else value)
                    if name == "partition" and type(value) is int:
                        self._keep_partitions(value + 1, None)
                case spark.LessThanOrEqual() | spark.LessThan():
                    self._below(name, value, inclusive=isinstance(each, spark.LessThanOrEqual))

    def _among(self, name: str, values: tuple[Any, ...]) -> None:
        if name == "topic" and all(isinstance(value, str) for value in values):
            chosen = frozenset(values)
            self.topics = chosen if self.topics is None else self.topics & chosen
        elif name == "partition" and all(type(value) is int for value in values):
            numbers = frozenset(values)
            self.partitions = numbers if self.partitions is None else self.partitions & numbers
        elif name == "offset" and values and all(type(value) is int for value in values):
            self.first_offset = max(self.first_offset, min(values))
            self.end_offset = min(self.end_offset, max(values) + 1)

    def _at_least(self, name: str, value: Any) -> None:
        if name == "offset" and type(value) is int:
            self.first_offset = max(self.first_offset, value)
        elif name == "timestamp" and isinstance(value, datetime):
            # Records count milliseconds, so rounding down leaves none out.
            moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            milliseconds = int(moment.timestamp() * 1000) - 1
            self.earliest = milliseconds if self.earliest is None else max(self.earliest, milliseconds)

    def _below(self, name: str, value: Any, *, inclusive: bool) -> None:
        if name == "offset" and type(value) is int:
            self.end_offset = min(self.end_offset, value + 1 if inclusive else value)

    def _keep_partitions(self, low: int, high: int | None) -> None:
        if self.partitions is not None:
            self.partitions = frozenset(p for p in self.partitions if p >= low and (high is None or p < high))
