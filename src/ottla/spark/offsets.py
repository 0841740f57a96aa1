"""Which topics and which offsets a read covers, as the options of Spark's own Kafka source say it.

Text in, values out: who resolves "latest" or a timestamp to a number is the reader's affair.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import re2  # type: ignore[import-untyped]

from ottla.spark.options import OptionError

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
    """Which partitions are read: by name, by pattern, or one by one; none of these means all but internal topics."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None

    def topic(self, name: str, *, internal: bool = False) -> bool:
        """Whether a topic is read at all."""
        if self.names is not None:
            return name in self.names
        if self.partitions is not None:
            return name in self.partitions
        if self.pattern is not None:
            return bool(re2.fullmatch(self.pattern, name))
        return not internal and not name.startswith("__")

    def partition(self, topic: str, partition: int) -> bool:
        """Whether one partition of a chosen topic is read."""
        return self.partitions is None or partition in self.partitions.get(topic, ())

    @property
    def named(self) -> list[str]:
        """The topics that must exist because they were named."""
        return sorted(self.names or self.partitions or ())


@dataclass(slots=True)
class Bound:
    """Where a read begins or ends: one word for all partitions, offsets of some, or a point in time."""

    default: int = LATEST
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: dict[str, dict[int, int]] = field(default_factory=dict)

    def offset(self, topic: str, partition: int) -> int:
        """An offset, EARLIEST or LATEST."""
        return self.offsets.get(topic, {}).get(partition, self.default)

    def time(self, topic: str, partition: int) -> int | None:
        """The point in time that decides for this partition, if one does."""
        return self.timestamps.get(topic, {}).get(partition, self.timestamp)

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that are named one by one."""
        named = {(t, p) for given in (self.offsets, self.timestamps) for t, each in given.items() for p in each}
        return sorted(named)


def parse_selection(options: Options, *, required: bool) -> Selection:
    """Read subscribe, subscribePattern or assign."""
    given = [name for name in SELECTIONS if name in options]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude each other: give one of them")
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
        if not isinstance(numbers, list) or not all(type(each) is int and each >= 0 for each in numbers):
            raise OptionError(f"assign wants a list of partitions per topic, as in {_ASSIGN_EXAMPLE}, not {value!r}")
        partitions[topic] = tuple(sorted(set(numbers)))
    if not any(partitions.values()):
        raise OptionError(f"assign names no partition; write for example {_ASSIGN_EXAMPLE}")
    return Selection(partitions=partitions)


def parse_start(options: Options, *, default: int) -> Bound:
    """Read where a read begins."""
    return _parse_bound(options, "starting", default)


def parse_end(options: Options) -> Bound:
    """Read where a batch read ends."""
    bound = _parse_bound(options, "ending", LATEST)
    if bound.default == EARLIEST or any(o == EARLIEST for each in bound.offsets.values() for o in each.values()):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read; use latest or offsets")
    start = options.integer("startingTimestamp")
    if start is not None and bound.timestamp is not None and bound.timestamp < start:
        raise OptionError(f"endingTimestamp {bound.timestamp} lies before startingTimestamp {start}")
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
    # As in Spark's source, a time rules over an offset.
    if value is None or timestamp is not None or bound.timestamps:
        return bound
    word = value.strip().lower()
    if word in ("earliest", "latest"):
        bound.default = EARLIEST if word == "earliest" else LATEST
    else:
        bound.offsets = _per_partition(name, value, _OFFSETS_EXAMPLE, EARLIEST)
    return bound


def _per_partition(name: str, value: str, example: str, least: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, each in _read_json(name, value, example).items():
        if not isinstance(each, dict):
            raise OptionError(f"{name} wants partitions per topic, as in {example}, not {value!r}")
        for partition, number in each.items():
            if not partition.isdigit() or type(number) is not int or number < least:
                raise OptionError(f"{name} maps partitions to numbers, as in {example}, not {value!r}")
            found.setdefault(topic, {})[int(partition)] = number
    return found


def _read_json(name: str, value: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        words = "earliest, latest or " if name.endswith("Offsets") else ""
        raise OptionError(f"{name} is {words}JSON such as {example}, not {value!r}")
    return found
