"""Which topics and offsets a read covers, by the options of Spark's own Kafka source.

Parses text into values; readers resolve "latest" and timestamps to offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import re2  # type: ignore[import-untyped]

from ottla.spark.options import OptionError
from ottla.storage.names import TopicPartition

if TYPE_CHECKING:
    from ottla.spark.options import Options

EARLIEST: Final = -2
LATEST: Final = -1
SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
RANGE_OPTIONS: Final = (
    *SELECTIONS,
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_OFFSETS_EXAMPLE: Final = '{"orders": {"0": 23, "1": -2}}'
_ASSIGN_EXAMPLE: Final = '{"orders": [0, 1]}'
_TIMES_EXAMPLE: Final = '{"orders": {"0": 1700000000000}}'


@dataclass(slots=True)
class Selection:
    """The partitions to read: by topic, by pattern, or one by one; without any, all but internal topics."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None

    def topic(self, name: str, *, internal: bool = False) -> bool:
        """Return whether a topic is read."""
        if self.names is not None:
            return name in self.names
        if self.partitions is not None:
            return name in self.partitions
        if self.pattern is not None:
            return bool(re2.fullmatch(self.pattern, name))
        return not internal and not name.startswith("__")

    def partition(self, topic: str, partition: int) -> bool:
        """Return whether a partition of a selected topic is read."""
        return self.partitions is None or partition in self.partitions.get(topic, ())

    @property
    def named(self) -> list[str]:
        """The topics that must exist because the options name them."""
        return sorted(self.names or self.partitions or ())


@dataclass(slots=True)
class Bound:
    """Where a read begins or ends: one default for all partitions, offsets of some, or a timestamp."""

    default: int = LATEST
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: dict[str, dict[int, int]] = field(default_factory=dict)

    def offset(self, topic: str, partition: int) -> int:
        """Return an offset, EARLIEST or LATEST."""
        return self.offsets.get(topic, {}).get(partition, self.default)

    def time(self, topic: str, partition: int) -> int | None:
        """Return the timestamp that applies to this partition, if any."""
        return self.timestamps.get(topic, {}).get(partition, self.timestamp)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the option names one by one."""
        given = [*self.offsets.items(), *self.timestamps.items()]
        return sorted({TopicPartition(topic, number) for topic, numbers in given for number in numbers})


def parse_selection(options: Options, *, required: bool) -> Selection:
    """Parse subscribe, subscribePattern or assign."""
    given = [name for name in SELECTIONS if name in options]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other: use one of them")
    if not given:
        if required:
            raise OptionError(
                f'{options.source} needs a choice of topics, for example .option("subscribe", "orders,payments")'
            )
        return Selection()
    value = options.required(given[0], "orders")
    if given[0] == "subscribe":
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if not names:
            raise OptionError("subscribe names no topic; write for example orders,payments")
        return Selection(names=names)
    if given[0] == "subscribePattern":
        quiet = re2.Options()
        quiet.log_errors = False
        try:
            re2.compile(value, quiet)
        except re2.error as error:
            why = error.args[0].decode() if isinstance(error.args[0], bytes) else error
            raise OptionError(f"subscribePattern {value!r} is no regular expression: {why}") from None
        return Selection(pattern=value)
    chosen = _read_json("assign", value, _ASSIGN_EXAMPLE)
    partitions = {}
    for topic, numbers in chosen.items():
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise OptionError(f"assign must be a list of partitions per topic, as in {_ASSIGN_EXAMPLE}, not {value!r}")
        partitions[topic] = tuple(sorted(set(numbers)))
    if not any(partitions.values()):
        raise OptionError(f"assign names no partition; write for example {_ASSIGN_EXAMPLE}")
    return Selection(partitions=partitions)


def parse_start(options: Options, *, default: int) -> Bound:
    """Parse where a read begins."""
    return _parse_bound(options, "starting", default)


def parse_end(options: Options) -> Bound:
    """Parse where a batch read ends."""
    bound = _parse_bound(options, "ending", LATEST)
    if bound.default == EARLIEST or any(
        offset == EARLIEST for offsets in bound.offsets.values() for offset in offsets.values()
    ):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read; use latest or offsets")
    start = options.integer("startingTimestamp")
    if start is not None and bound.timestamp is not None and bound.timestamp < start:
        raise OptionError(f"endingTimestamp {bound.timestamp} is before startingTimestamp {start}")
    begin = _parse_bound(options, "starting", EARLIEST)
    for topic, partition in bound.partitions:
        first, end = begin.offset(topic, partition), bound.offset(topic, partition)
        if 0 <= end < first:
            raise OptionError(f"endingOffsets of {topic}-{partition} is {end}, before its startingOffsets, {first}")
    return bound


def _parse_bound(options: Options, side: str, default: int) -> Bound:
    name = f"{side}Offsets"
    by_time = f"{side}OffsetsByTimestamp"
    timestamp = options.integer(f"{side}Timestamp")
    bound = Bound(default, timestamp=timestamp)
    if by_time in options:
        bound.timestamps = _per_partition(by_time, options.required(by_time, _TIMES_EXAMPLE), _TIMES_EXAMPLE, 0)
    value = options.text(name)
    # As in Spark's own source, a timestamp overrides an offset.
    if value is None or timestamp is not None or bound.timestamps:
        return bound
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        bound.default = EARLIEST if word == "earliest" else LATEST
    else:
        bound.offsets = _per_partition(name, value, _OFFSETS_EXAMPLE, EARLIEST)
    return bound


def _per_partition(name: str, value: str, example: str, least: int) -> dict[str, dict[int, int]]:
    numbers: dict[str, dict[int, int]] = {}
    for topic, partitions in _read_json(name, value, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{name} must have partitions per topic, as in {example}, not {value!r}")
        for partition, number in partitions.items():
            if not partition.isdigit() or type(number) is not int or number < least:
                raise OptionError(f"{name} must map partitions to numbers, as in {example}, not {value!r}")
            numbers.setdefault(topic, {})[int(partition)] = number
    return numbers


def _read_json(name: str, value: str, example: str) -> dict[str, object]:
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        words = "earliest, latest or " if name.endswith("Offsets") else ""
        raise OptionError(f"{name} must be {words}JSON such as {example}, not {value!r}")
    return parsed
