"""Which topics and offsets a read covers, by the options of Spark's own Kafka source.

Parses text into values; readers resolve "latest" and timestamps to offsets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.spark.data_loss import report_loss
from ottla.spark.java_pattern import JavaPattern, PatternError
from ottla.spark.options import OptionError
from ottla.storage.names import METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection

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
# Topics that brokers call internal; a pattern selects none of them, as in Spark's own source.
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", METADATA_TOPIC})
_OFFSETS_EXAMPLE: Final = '{"orders": {"0": 23, "1": -2}}'
_ASSIGN_EXAMPLE: Final = '{"orders": [0, 1]}'
_TIMES_EXAMPLE: Final = '{"orders": {"0": 1700000000000}}'


@dataclass(slots=True)
class Selection:
    """The partitions to read: by topic, by pattern, or one by one; without any, all but internal topics."""

    names: tuple[str, ...] | None = None
    pattern: JavaPattern | None = None
    partitions: dict[str, tuple[int, ...]] | None = None
    may_lack: bool = False
    """Whether named topics may be missing."""

    def topic(self, name: str, *, internal: bool = False) -> bool:
        """Return whether a topic is read."""
        if self.names is not None:
            return name in self.names
        if self.partitions is not None:
            return name in self.partitions
        if self.pattern is not None:
            return not internal and name not in INTERNAL_TOPICS and self.pattern.finds(name)
        return not internal and not name.startswith("__")

    def partition(self, topic: str, partition: int) -> bool:
        """Return whether a partition of a selected topic is read."""
        return self.partitions is None or partition in self.partitions.get(topic, ())

    @property
    def named(self) -> list[str]:
        """The topics that must exist because the options name them."""
        return [] if self.may_lack else sorted(self.names or self.partitions or ())


@dataclass(slots=True)
class Bound:
    """Where a read begins or ends: one default for all partitions, offsets of each, or timestamps."""

    default: int = LATEST
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    timestamp: int | None = None
    timestamps: dict[str, dict[int, int]] = field(default_factory=dict)
    listed: bool = False
    """Whether JSON lists partitions."""

    def offset(self, topic: str, partition: int) -> int:
        """Return an offset, EARLIEST or LATEST."""
        return self.offsets.get(topic, {}).get(partition, self.default)

    def time(self, topic: str, partition: int) -> int | None:
        """Return the timestamp that applies to this partition, if any."""
        return self.timestamps.get(topic, {}).get(partition, self.timestamp)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the option names one by one."""
        limits = [*self.offsets.items(), *self.timestamps.items()]
        return sorted({TopicPartition(topic, number) for topic, numbers in limits for number in numbers})

    def check_partitions(self, name: str, known: Collection[TopicPartition]) -> None:
        """Raise `OptionError` unless JSON names exactly the partitions that are read, as Spark's own source does."""
        if not self.listed:
            return
        named = self.partitions
        name += "ByTimestamp" if self.timestamps else ""
        for partition in named:
            if partition not in known:
                raise OptionError(f"{name} names {partition}, which is not among the partitions that are read")
        missing = sorted(set(known) - set(named))
        if missing:
            listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
            hint = "" if self.timestamps else " (-2 is earliest, -1 latest)"
            raise OptionError(f"{name} must name every partition that is read{hint}; it lacks {listed}")


def available_range(
    source: str,
    partition: TopicPartition,
    first: int,
    last: int,
    available: tuple[int, int],
    *,
    fail_on_data_loss: bool,
) -> tuple[int, int]:
    """Return the offsets to read, of those that a batch read requests; report those that the log does not have."""
    if first > last:
        raise OptionError(f"{partition} would be read from offset {first} to {last}: the end is before the start")
    low, high = available
    if first < last and (first < low or last > high):
        report_loss(
            source,
            f"{partition} has offsets {low} to {high}, and the read requests {first} to {last}: records are gone",
            "set failOnDataLoss=false to read what is there",
            fail=fail_on_data_loss,
        )
    first = max(first, low)
    return first, max(min(last, high), first)


def parse_selection(options: Options, *, required: bool) -> Selection:
    """Parse subscribe, subscribePattern or assign."""
    selections = [name for name in SELECTIONS if name in options]
    if len(selections) > 1:
        raise OptionError(f"{' and '.join(selections)} exclude each other: use one of them")
    if not selections:
        if required:
            raise OptionError(
                f'{options.source} needs a choice of topics, for example .option("subscribe", "orders,payments")'
            )
        return Selection()
    value = options.required(selections[0], "orders")
    if selections[0] == "subscribe":
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if not names:
            raise OptionError("subscribe names no topic; write for example orders,payments")
        return Selection(names=names)
    if selections[0] == "subscribePattern":
        try:
            return Selection(pattern=JavaPattern(value.strip()))
        except PatternError as error:
            raise OptionError(f"subscribePattern {value!r} is no regular expression of Java: {error}") from None
    chosen = _read_json("assign", value, _ASSIGN_EXAMPLE)
    partitions = {}
    for topic, numbers in chosen.items():
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise OptionError(f"assign must be a list of partitions per topic, as in {_ASSIGN_EXAMPLE}, not {value!r}")
        partitions[topic] = tuple(sorted(set(numbers)))
    if not any(partitions.values()):
        raise OptionError(f"assign names no partition; write for example {_ASSIGN_EXAMPLE}")
    return Selection(partitions=partitions)


def parse_start(options: Options, *, streaming: bool) -> Bound:
    """Parse where a read begins: a stream at latest, a batch at earliest, unless options say otherwise."""
    bound = _parse_bound(options, "starting", LATEST if streaming else EARLIEST)
    if not streaming and LATEST in _words(bound):
        raise OptionError("startingOffsets cannot be latest (-1) in a batch read, which would be empty; use earliest")
    return bound


def parse_end(options: Options, start: Bound) -> Bound:
    """Parse where a batch read ends; it cannot be before the start."""
    bound = _parse_bound(options, "ending", LATEST)
    if EARLIEST in _words(bound):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read; use latest or offsets")
    for topic, partition in bound.partitions:
        first, end = start.offset(topic, partition), bound.offset(topic, partition)
        if 0 <= end < first:
            raise OptionError(f"endingOffsets of {topic}-{partition} is {end}, before its startingOffsets, {first}")
        early, late = start.timestamps.get(topic, {}).get(partition), bound.timestamps.get(topic, {}).get(partition)
        if early is not None and late is not None and late < early:
            raise OptionError(
                f"endingOffsetsByTimestamp of {topic}-{partition} is {late}, before its starting timestamp, {early}"
            )
    return bound


def overridden_options(options: Options) -> list[tuple[str, str]]:
    """Return the bounds that another option overrides, each with the name of that option."""
    pairs = []
    for side in ("starting", "ending"):
        names = [
            name for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets") if name in options
        ]
        pairs += [(name, names[0]) for name in names[1:]]
    return pairs


def _words(bound: Bound) -> set[int]:
    """Return which of EARLIEST and LATEST a bound that is given in offsets uses."""
    if bound.timestamp is not None or bound.timestamps:
        return set()
    return {offset for offsets in bound.offsets.values() for offset in offsets.values()} or {bound.default}


def _parse_bound(options: Options, side: str, default: int) -> Bound:
    """Parse the first of timestamp, timestamps per partition and offsets that is given: Spark's own precedence."""
    name, by_time = f"{side}Offsets", f"{side}OffsetsByTimestamp"
    bound = Bound(default, timestamp=options.integer(f"{side}Timestamp"))
    value = options.text(name)
    if bound.timestamp is not None:
        return bound
    if by_time in options:
        bound.listed = True
        bound.timestamps = _per_partition(by_time, options.required(by_time, _TIMES_EXAMPLE), _TIMES_EXAMPLE, 0)
    elif value is not None:
        word = value.strip().lower()
        if word in ("earliest", "latest"):
            bound.default = EARLIEST if word == "earliest" else LATEST
        else:
            bound.listed = True
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
