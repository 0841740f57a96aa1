"""The options of the format "ottla" for batch and streaming reads. Parses only, without a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.columns import COLUMN_OPTIONS, Columns, choose_columns
from ottla.spark.connect import SECURITY_PREFIXES, open_client, security_settings
from ottla.spark.offsets import (
    LATEST,
    RANGE_OPTIONS,
    Bound,
    Selection,
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
KNOWN: Final = (
    *RANGE_OPTIONS,
    *COLUMN_OPTIONS,
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "kafka.fetch.max.wait.ms",
    "kafka.max.partition.fetch.bytes",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupId",
    "filterPushdown",
)
# Settings of Spark's own source and of Kafka's Java consumer that tune threads, memory and time: accepted and ignored,
# so that a job needs no change. groupIdPrefix and kafka.group.id name groups that never commit; ottla adds groupId.
_IGNORED: Final = (
    "groupIdPrefix",
    "kafka.group.id",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafka.fetch.max.bytes",
    "kafka.fetch.min.bytes",
    "kafka.max.poll.records",
    "kafka.max.poll.interval.ms",
    "kafka.session.timeout.ms",
    "kafka.heartbeat.interval.ms",
    "kafka.default.api.timeout.ms",
    "kafka.metadata.max.age.ms",
    "kafka.receive.buffer.bytes",
    "kafka.send.buffer.bytes",
    "kafka.reconnect.backoff.ms",
    "kafka.reconnect.backoff.max.ms",
    "kafka.retry.backoff.ms",
    "kafka.client.rack",
    "kafka.check.crcs",
)
_REFUSED: Final = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.key.deserializer": "keys are bytes: cast or decode the column",
    "kafka.value.deserializer": "values are bytes: cast or decode the column",
    "kafka.enable.auto.commit": "use groupId to commit what was processed",
    "kafka.interceptor.classes": "there are no Java classes in this reader",
}
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

    def client(self) -> Client:
        """Return a client that is not connected yet."""
        return open_client(self.bootstrap, dict(self.security), client_id=self.client_id, timeout=self.timeout)


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

    @classmethod
    def parse(cls, given: Any, *, streaming: bool | None) -> NetworkPlan:
        """Parse and check all options before any request is sent; `streaming` is None if it is not known."""
        for name, reason in _REFUSED.items():
            if name in {option.lower() for option in given}:
                raise OptionError(f"{name} is not supported: {reason}")
        options = Options("ottla", given, (*KNOWN, *_IGNORED), prefixes=SECURITY_PREFIXES)
        bootstrap = options.required("kafka.bootstrap.servers", "localhost:9092")
        if options.text("path"):
            raise OptionError(
                'ottla reads from brokers and takes no path; for files use spark.read.format("ottla-log").load(path)'
            )
        if streaming:
            for name in ENDS:
                if name in options:
                    raise OptionError(f"{name} is for spark.read; a stream ends with trigger(availableNow=True)")
        settings = ReadSettings(
            bootstrap,
            tuple(sorted(security_settings(given).items())),
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
        )
        start = parse_start(options, streaming=streaming is not False)
        strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        group = options.text("groupId")
        if group is not None and not group.strip():
            raise OptionError('groupId must be the name of a group, for example .option("groupId", "sessions-job")')
        settings.client().close()  # raises for a malformed address or security setting
        return cls(
            parse_selection(options, required=True),
            start,
            Bound(LATEST) if streaming else parse_end(options, start),
            settings,
            strategy == "error",
            options.integer("minPartitions", 0) or 0,
            options.integer("maxRecordsPerPartition", 0) or 0,
            options.integer("maxOffsetsPerTrigger", 0) or 0,
            options.integer("minOffsetsPerTrigger", 0) or 0,
            options.seconds("maxTriggerDelay", 900.0),
            max(options.integer("partition.metadata.cache.ttl.ms", 0, least=-1) or 0, 0) / 1000,
            group,
            is_pushed(options),
        )
