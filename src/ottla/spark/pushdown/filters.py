"""Narrow a read by Spark's filters on topic, partition, offset and timestamp.

Filters only reduce what is opened, decoded and sent; Spark applies each of them to the rows again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.spark.options import Options

# The option with which `rule` marks the scan that it makes for one query: filters may narrow only such a scan.
PUSHED: Final = "spark.ottla.pushed"
_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_pushed(options: Options) -> bool:
    """Return whether filters may narrow this reader; `filterPushdown=false` disables that for all readers."""
    return options.boolean("filterPushdown", True) and options.text(PUSHED) is not None


@dataclass(slots=True)
class Limits:
    """Topics (None is all), and inclusive ranges of partitions, offsets, and times in ms."""

    topics: frozenset[str] | None = None
    partitions: tuple[int, int] = (0, _MAX)
    numbers: frozenset[int] | None = None
    offsets: tuple[int, int] = (0, _MAX)
    times: tuple[int, int] = (-_MAX, _MAX)

    def partition(self, topic: str, partition: int) -> bool:
        """Return whether a partition can have matching rows."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.numbers is None or partition in self.numbers)
            and self.partitions[0] <= partition <= self.partitions[1]
        )

    @property
    def earliest(self) -> int | None:
        """The earliest matching time, if limited."""
        return None if self.times[0] == -_MAX else self.times[0]

    @property
    def latest(self) -> int | None:
        """The latest matching time, if limited."""
        return None if self.times[1] == _MAX else self.times[1]

    @property
    def timed(self) -> bool:
        """Whether times are limited."""
        return self.times != (-_MAX, _MAX)

    def take(self, filters: Iterable[Any]) -> None:
        """Apply the usable filters of a conjunction."""
        from pyspark.sql import datasource as spark

        for condition in filters:
            name = ".".join(getattr(condition, "attribute", ()))
            value: Any = getattr(condition, "value", None)
            match condition:
                case spark.EqualTo() | spark.EqualNullSafe():
                    self._among(name, (value,))
                case spark.In():
                    self._among(name, tuple(value))
                case spark.GreaterThanOrEqual() | spark.GreaterThan():
                    self._between(name, _number(name, value, down=True), _MAX)
                case spark.LessThanOrEqual() | spark.LessThan():
                    self._between(name, -_MAX, _number(name, value, down=False))

    def _among(self, name: str, values: tuple[Any, ...]) -> None:
        if name == "topic":
            chosen = frozenset(value for value in values if isinstance(value, str))
            self.topics = chosen if self.topics is None else self.topics & chosen
            return
        lowest = [number for value in values if (number := _number(name, value, down=True)) is not None]
        highest = [number for value in values if (number := _number(name, value, down=False)) is not None]
        if not lowest or len(lowest) < len(values):
            return
        self._between(name, min(lowest), max(highest))
        if name == "partition":
            numbers = frozenset(lowest)
            self.numbers = numbers if self.numbers is None else self.numbers & numbers

    def _between(self, name: str, low: int | None, high: int | None) -> None:
        """Narrow a range; a strict bound is taken as inclusive, which drops no row."""
        if low is None or high is None:
            return
        field = {"partition": "partitions", "offset": "offsets", "timestamp": "times"}.get(name)
        if field is not None:
            limits: tuple[int, int] = getattr(self, field)
            setattr(self, field, (max(limits[0], low), min(limits[1], high)))


def _number(name: str, value: Any, *, down: bool) -> int | None:
    """Return a bound as a number; times become milliseconds, rounded so that no matching record is lost."""
    if name in ("partition", "offset"):
        return value if type(value) is int else None
    if name == "timestamp" and isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        millisecond = timedelta(milliseconds=1)
        floor = (moment - _EPOCH) // millisecond
        return floor if down else -((_EPOCH - moment) // millisecond)
    return None
