"""The options of the format "ottla" for batch and streaming reads. Parses only, without a broker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.columns import COLUMN_OPTIONS, Columns, choose_columns
from ottla.spark.connect import open_client, security_settings
from ottla.spark.data_loss import warn
from ottla.spark.offsets import (
    LATEST,
    RANGE_OPTIONS,
    Bound,
    Selection,
    overridden_options,
    parse_end,
    parse_selection,
    parse_start,
)
from ottla.spark.options import OptionError, Options
from ottla.spark.pushdown.filters import is_pushed

if TYPE_CHECKING:
    from ottla.client.client import Client

LEVELS: Final = ("read_uncommitted", "read_committed")
ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = (
    "groupId",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "partition.metadata.cache.ttl.ms",
)
NO_STREAM: Final = "it is for streams, and this is a batch read"
KNOWN: Final = (
    *RANGE_OPTIONS,
    *COLUMN_OPTIONS,
    *STREAM_ONLY,
    "failOnDataLoss",
    "filterPushdown",
    "kafkaConsumer.pollTimeoutMs",
    "maxRecordsPerPartition",
    "minPartitions",
)
# Options of Spark's own source that have no effect here; kafka.* settings are in `client_settings`.
IGNORED: Final = {
    "groupIdPrefix": "reads join no group; the option groupId commits the offsets of a stream",
    "fetchOffset.numRetries": "offsets are requested again until kafka.request.timeout.ms is over",
    "fetchOffset.retryIntervalMs": "offsets are requested again until kafka.request.timeout.ms is over",
}
RACK_VARIABLE: Final = "OTTLA_CLIENT_RACK"
"""Environment variable of an executor with its rack: the same option for all executors would send all to one rack."""
FETCH_BYTES: Final = 4 << 20
RESPONSE_BYTES: Final = 50 << 20


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings that an executor needs."""

    bootstrap: str
    security: tuple[tuple[str, str], ...]
    client_id: str
    timeout: float
    columns: Columns
    committed: bool
    fail_on_data_loss: bool
    fetch_bytes: int
    fetch_wait_ms: int
    fetch_min_bytes: int
    response_bytes: int
    poll_timeout: float
    times: tuple[int, int] | None = None
    rack: str | None = None

    def client(self) -> Client:
        """Return a client that is not connected yet; without kafka.client.rack, the machine's own rack is used."""
        rack = os.environ.get(RACK_VARIABLE, "") if self.rack is None else self.rack
        return open_client(
            self.bootstrap, dict(self.security), client_id=self.client_id, timeout=self.timeout, rack=rack
        )


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The parsed options."""

    selection: Selection
    start: Bound
    end: Bound
    settings: ReadSettings
    strict_times: bool
    least_tasks: int
    largest_task: int
    most_offsets: int
    fewest_offsets: int
    longest_delay: float
    topics_age: float
    group: str | None
    pushdown: bool
    ignored: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, raw_options: Any, *, streaming: bool | None) -> NetworkPlan:
        """Parse and check all options before any request is sent; `streaming` is None if it is not known."""
        options = Options("ottla", raw_options, KNOWN, side="read", ignored=IGNORED)
        for name, winner in overridden_options(options):
            options.ignore(name, f"{winner} overrides it")
        bootstrap = options.required("kafka.bootstrap.servers", "localhost:9092")
        if options.text("path"):
            raise OptionError(
                'ottla reads from brokers and takes no path; for files use spark.read.format("ottla-log").load(path)'
            )
        if streaming is False:
            for name in STREAM_ONLY:
                options.ignore(name, NO_STREAM)
        if streaming:
            for name in ENDS:
                if name in options:
                    raise OptionError(f"{name} is for spark.read; a stream ends with trigger(availableNow=True)")
        settings = ReadSettings(
            bootstrap,
            tuple(sorted(security_settings(raw_options).items())),
            options.text("kafka.client.id") or "ottla-spark",
            (options.integer("kafka.request.timeout.ms", 30_000, least=1) or 0) / 1000,
            choose_columns(options),
            options.choice("kafka.isolation.level", LEVELS, LEVELS[0]) == LEVELS[1],
            options.boolean("failOnDataLoss", True),
            options.size("kafka.max.partition.fetch.bytes", FETCH_BYTES),
            options.integer("kafka.fetch.max.wait.ms", 500) or 0,
            options.integer("kafka.fetch.min.bytes", 1) or 0,
            options.size("kafka.fetch.max.bytes", RESPONSE_BYTES),
            (options.integer("kafkaConsumer.pollTimeoutMs", 120_000, least=1) or 0) / 1000,
            rack=options.text("kafka.client.rack"),
        )
        start = parse_start(options, streaming=streaming is not False)
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        group = options.text("groupId")
        if group is not None and not group.strip():
            raise OptionError('groupId must be the name of a group, for example .option("groupId", "sessions-job")')
        most, fewest = options.integer("maxOffsetsPerTrigger"), options.integer("minOffsetsPerTrigger")
        if most is not None and fewest is not None and fewest > most:
            raise OptionError(f"minOffsetsPerTrigger, {fewest}, is more than maxOffsetsPerTrigger, {most}")
        settings.client().close()  # raises for a malformed address or security setting
        return cls(
            parse_selection(options, required=True),
            start,
            Bound(LATEST) if streaming else parse_end(options, start),
            settings,
            strategy == "error",
            options.integer("minPartitions", 0, least=1) or 0,
            options.integer("maxRecordsPerPartition", 0, least=1) or 0,
            most or 0,
            fewest or 0,
            options.seconds("maxTriggerDelay", 900.0),
            max(options.integer("partition.metadata.cache.ttl.ms", 0, least=-1) or 0, 0) / 1000,
            group,
            is_pushed(options),
            options.ignored,
        )

    def warn_ignored(self, reason: str | None = None) -> None:
        """Print a warning for each option that has no effect, or for those that have none for this reason."""
        for name, why in self.ignored:
            if reason in (None, why):
                warn("ottla", f"the option {name} has no effect: {why}")
