"""The writers of the format "ottla": options, checks before the first row, batch and streaming writers.

Each task sends its rows with its own idempotent producer. `exactly_once` implements the option exactlyOnce.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.compression import CompressionType
from ottla.spark.connect import open_client, reachable, security_settings
from ottla.spark.options import OptionError, Options
from ottla.spark.sink.rows import Layout, read_layout, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from ottla.client.client import Client
    from ottla.client.producer import Delivered

OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "topic",
    "exactlyOnce",
    "includeHeaders",
    "kafka.acks",
    "kafka.client.id",
    "kafka.compression.type",
    "kafka.enable.idempotence",
    "kafka.request.timeout.ms",
    "kafka.batch.size",
    "kafka.transaction.timeout.ms",
)
_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
_TRANSACTION_TIMEOUT_MS: Final = 900_000  # the default of the brokers' transaction.max.timeout.ms
_CODECS: Final = tuple(kind.name.lower() for kind in CompressionType)


MISSING_TOPIC: Final = re.compile(r"topic (?P<topic>\S+) does not exist")


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The parsed options; sent to the executors."""

    bootstrap: str
    topic: str | None
    exactly_once: bool
    acks: int
    idempotent: bool
    compression: str
    client_id: str
    request_timeout_ms: int
    batch_bytes: int
    transaction_timeout_ms: int
    layout: Layout
    security: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw_options: Any, schema: StructType) -> SinkPlan:
        """Parse and check options and columns before anything is sent."""
        options = Options("ottla", raw_options, OPTIONS, side="write")
        options.warn_ignored()
        bootstrap = options.required("kafka.bootstrap.servers", "localhost:9092")
        topic = options.text("topic")
        acks = options.choice("kafka.acks", tuple(_ACKS), "all")
        exactly_once = options.boolean("exactlyOnce", False)
        idempotent = options.boolean("kafka.enable.idempotence", _ACKS[acks] == -1)
        if idempotent and _ACKS[acks] != -1:
            raise OptionError(f"kafka.enable.idempotence needs kafka.acks=all, not {acks}")
        if exactly_once and not idempotent:
            raise OptionError("exactlyOnce needs an idempotent producer: leave kafka.acks and kafka.enable.idempotence")
        return cls(
            bootstrap,
            topic,
            exactly_once,
            _ACKS[acks],
            idempotent,
            options.choice("kafka.compression.type", _CODECS, "none"),
            options.text("kafka.client.id") or "ottla-spark",
            options.integer("kafka.request.timeout.ms", 30_000, least=1) or 30_000,
            max(options.size("kafka.batch.size", 512 * 1024), 16 * 1024),
            options.integer("kafka.transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS, least=1000) or 0,
            read_layout(schema, topic_given=topic is not None),
            security_settings(raw_options),
        )

    def client(self) -> Client:
        """Return a client with these settings."""
        return open_client(
            self.bootstrap, self.security, client_id=self.client_id, timeout=self.request_timeout_ms / 1000
        )

    def producer(
        self,
        client: Client,
        *,
        transactional_id: str | None = None,
        first_partition: int = 0,
        delivered: Callable[[Delivered], None] | None = None,
    ) -> Producer:
        """Return a producer with these settings."""
        return Producer(
            client,
            transactional_id=transactional_id,
            idempotent=self.idempotent,
            transaction_timeout_ms=self.transaction_timeout_ms,
            compression=self.compression,
            acks=self.acks,
            batch_bytes=self.batch_bytes,
            request_timeout_ms=self.request_timeout_ms,
            first_partition=first_partition,
            delivered=delivered,
        )

    def check_target(self) -> None:
        """Raise on the driver if no broker responds or the topic does not exist."""
        with self.connected() as client:
            client.topics([] if self.topic is None else [self.topic])

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Open a client; turn unreachable brokers and a missing topic into one sentence."""
        try:
            with reachable(self.bootstrap), self.client() as client:
                yield client
        except KafkaError as error:
            match = MISSING_TOPIC.fullmatch(error.message or "")
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or match is None:
                raise  # a missing partition, for example
            missing = match["topic"]
            raise OptionError(
                f"topic {missing} is not on {self.bootstrap}; create it first: "
                f"ottla topic create {missing} -b {self.bootstrap}"
            ) from error


@dataclass
class Written(WriterCommitMessage):
    """The commit message of one task."""

    rows: int
    committed_before: bool = False


def make_writer(options: Any, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of `df.write.format("ottla")`."""
    plan = SinkPlan.parse(options, schema)
    if plan.exactly_once:
        raise OptionError("exactlyOnce is for writeStream: a batch job that runs again has no batch id to recognise it")
    if overwrite:
        raise OptionError('a topic cannot be overwritten, only appended to: use .mode("append")')
    plan.check_target()
    return BatchWriter(plan)


def make_stream_writer(options: Any, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of `df.writeStream.format("ottla")`."""
    from ottla.spark.sink.checkpoint import CheckpointMark
    from ottla.spark.sink.exactly_once import ExactlyOnceWriter

    plan = SinkPlan.parse(options, schema)
    if overwrite:
        raise OptionError('a topic cannot be rewritten with the complete result: use outputMode("append") or "update"')
    plan.check_target()
    return ExactlyOnceWriter(plan, CheckpointMark.of(options)) if plan.exactly_once else StreamWriter(plan)


class BatchWriter(DataSourceArrowWriter):
    """Append a DataFrame to topics: each row once per attempt of its task."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task."""
        return send_rows(self.plan, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Append micro-batches to topics, at least once: a batch that Spark runs again is sent again."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of one task."""
        return send_rows(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: all rows are already acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: acknowledged rows stay, as with Spark's own sink."""


def send_rows(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send rows with an idempotent producer; return when all are acknowledged."""
    from pyspark import TaskContext

    context = TaskContext.get()
    with plan.connected() as client:
        producer = plan.producer(client, first_partition=context.partitionId() if context else 0)
        for row in rows_of(batches, plan.layout, plan.topic):
            producer.send(row.topic, row.key, row.value, row.headers, row.partition)
        producer.flush()
        return Written(producer.records_sent)
