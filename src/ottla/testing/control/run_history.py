"""What happened to the records of a test: `Cluster.history()`, and the checks that no Kafka application should fail.

The checks read the logs, the received requests and the event log. What the application did with a record is known only
if the test calls `RunHistory.processed`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ottla.cluster.internal_topics import INTERNAL_TOPICS
from ottla.records.iterate import iter_all_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from ottla.broker.runtime import BrokerRuntime
    from ottla.testing.control.controlled_cluster import ControlledCluster
    from ottla.testing.control.requests import ReceivedRequest

READ_BYTES = 1 << 20
SHOWN_BYTES = 40
SHOWN_RECORDS = 5
ABORT_MARKER = 0


class Check(Enum):
    """A promise that is checked; the value is the name that `checks=` takes."""

    LOST = "lost-acknowledged-record"
    """The broker acknowledged a record that is not in the log."""
    DUPLICATE = "duplicate"
    """A record is in its topic more often than the application sent it."""
    REORDERED = "reordered"
    """Records with the same key are in the log in another order than a producer without idempotence sent them."""
    UNPROCESSED = "committed-before-processed"
    """A group committed an offset before the application processed the records below it."""
    ABORTED = "aborted-record-processed"
    """The application processed a record of an aborted transaction."""
    ZOMBIE = "zombie-write"
    """A producer appended with an epoch that had been fenced."""
    HANGING = "hanging-transaction"
    """A transaction is still open at the end, and holds the last stable offset back."""


class Violation(NamedTuple):
    """A promise that was broken."""

    check: Check
    text: str

    def __str__(self) -> str:
        return f"{self.check.value}: {self.text}"


class LogRecord(NamedTuple):
    """A record of a log with its producer; `aborted` after its transaction aborted, `open` before it ended."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int
    producer_epoch: int
    aborted: bool = False
    open: bool = False

    @property
    def content(self) -> RecordContent:
        """The record without its offset and producer."""
        return RecordContent(self.topic, self.partition, self.key, self.value)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset} (key {_shown(self.key)}, value {_shown(self.value)})"


class RecordContent(NamedTuple):
    """What identifies a record to an application."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None

    def __str__(self) -> str:
        return f"key {_shown(self.key)}, value {_shown(self.value)} in {self.topic}-{self.partition}"


class Processed(NamedTuple):
    """A record that the application processed, and the number of requests that the cluster had received by then."""

    topic: str
    partition: int
    offset: int
    requests: int


class RunHistory:
    """The history of a cluster since its start or reset. Safe to use from any thread."""

    def __init__(self, cluster: ControlledCluster) -> None:
        self._cluster = cluster
        self._processed: list[Processed] = []

    def processed(self, topic: str, partition: int, offset: int) -> None:
        """Note that the application has processed a record: its effects are complete."""
        self._processed.append(Processed(topic, partition, offset, self._cluster.rules.received.total))

    def contents(self) -> Counter[RecordContent]:
        """Return how often each record is in the topics; records of aborted transactions do not count."""
        return Counter(record.content for record in self._cluster.call(_read_topics) if not record.aborted)

    def violations(
        self, *, checks: Collection[Check] = tuple(Check), sent: Mapping[RecordContent, int] | None = None
    ) -> list[Violation]:
        """Return the broken promises. `sent` tells how often the application sends a record; once if it is absent."""
        records = self._cluster.call(_read_topics)
        anomalies = [
            *self._lost(records),
            *_duplicates(records, sent or {}),
            *self._reordered(records),
            *self._committed_before_processed(records),
            *self._aborted(records),
            *_zombies(records),
            *_hanging(records),
        ]
        return [violation for violation in anomalies if violation.check in checks]

    def _lost(self, records: list[LogRecord]) -> Iterator[Violation]:
        trimmed = {
            (name, index)
            for name in self._cluster.topics()
            for index, partition in enumerate(self._cluster.partitions(name))
            if partition.log_start_offset > 0
        }
        stored = Counter(record.content for record in records)
        failed = {
            (event["node"], event["connection"], event["correlation_id"])
            for event in self._cluster.events("response", api="Produce")
            if event.get("errors")
        }
        response = {
            (event["node"], event["connection"], event["correlation_id"])
            for event in self._cluster.events("response", api="Produce")
        }
        acknowledged: Counter[RecordContent] = Counter()
        for received in self._cluster.requests("Produce"):
            key = received.node, received.connection, received.correlation_id
            if received.request.acks and key in response and key not in failed:
                for content in dict.fromkeys(self._sent_records(received)):
                    acknowledged[content] = 1
        for content in acknowledged:
            if (content.topic, content.partition) not in trimmed and not stored[content]:
                yield Violation(Check.LOST, f"{content} was acknowledged and is not in the log")

    def _sent_records(self, received: ReceivedRequest) -> Iterator[RecordContent]:
        for topic in received.request.topic_data:
            name = getattr(topic, "name", "") or self._topic_name(topic)
            for partition in topic.partition_data:
                if name and partition.records is not None:
                    for _, record in iter_all_records(partition.records):
                        yield RecordContent(name, partition.index, record.key, record.value)

    def _topic_name(self, topic: object) -> str:
        topic_id = getattr(topic, "topic_id", None)
        described = self._cluster.call(lambda runtime: runtime.image.topics.get(topic_id))  # type: ignore[arg-type]
        return "" if described is None else described.name

    def _reordered(self, records: list[LogRecord]) -> Iterator[Violation]:
        sent_order: dict[tuple[str | None, str, int, bytes | None], list[RecordContent]] = defaultdict(list)
        for received in self._cluster.requests("Produce"):
            for content in self._sent_records(received):
                order = sent_order[received.client_id, content.topic, content.partition, content.key]
                if content not in order[-1000:]:
                    order.append(content)
        first_offset: dict[RecordContent, LogRecord] = {}
        for record in records:
            if record.producer_id < 0:
                first_offset.setdefault(record.content, record)
        for order in sent_order.values():
            stored = [first_offset[content] for content in order if content in first_offset]
            for earlier, later in pairwise(stored):
                if later.offset < earlier.offset:
                    yield Violation(Check.REORDERED, f"{later} was sent after {earlier}")
                    break

    def _committed_before_processed(self, records: list[LogRecord]) -> Iterator[Violation]:
        processed: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for topic, partition, offset, requests in self._processed:
            processed[topic, partition].setdefault(offset, requests)
        if not processed:
            return
        received = self._cluster.requests()
        first_number = self._cluster.rules.received.total - len(received)
        for number, request in enumerate(received, first_number):
            for topic, partition, committed in self._commits(request):
                done = processed.get((topic, partition))
                if not done:
                    continue
                first = min(done)
                early = [
                    record
                    for record in records
                    if (record.topic, record.partition) == (topic, partition)
                    and first <= record.offset < committed
                    and not record.aborted
                    and done.get(record.offset, number + 1) > number
                ]
                if early:
                    yield Violation(
                        Check.UNPROCESSED,
                        f"offset {committed} of {topic}-{partition} was committed before {early[0]} was processed",
                    )
                    return

    def _commits(self, received: ReceivedRequest) -> Iterator[tuple[str, int, int]]:
        if received.api not in ("OffsetCommit", "TxnOffsetCommit"):
            return
        for topic in received.request.topics:
            name = getattr(topic, "name", "") or self._topic_name(topic)
            for partition in topic.partitions:
                yield name, partition.partition_index, partition.committed_offset

    def _aborted(self, records: list[LogRecord]) -> Iterator[Violation]:
        seen = {(topic, partition, offset) for topic, partition, offset, _ in self._processed}
        for record in records:
            if record.aborted and (record.topic, record.partition, record.offset) in seen:
                yield Violation(Check.ABORTED, f"{record} was processed although its transaction aborted")


def _duplicates(records: list[LogRecord], sent: Mapping[RecordContent, int]) -> Iterator[Violation]:
    copies: dict[RecordContent, list[int]] = defaultdict(list)
    for record in records:
        if not record.aborted and not record.open:
            copies[record.content].append(record.offset)
    shown = 0
    for content, offsets in copies.items():
        if len(offsets) > max(1, sent.get(content, 1)) and shown < SHOWN_RECORDS:
            shown += 1
            yield Violation(Check.DUPLICATE, f"{content} is at offsets {', '.join(map(str, offsets))}")


def _zombies(records: list[LogRecord]) -> Iterator[Violation]:
    epochs: dict[tuple[str, int, int], int] = {}
    for record in records:
        if record.producer_id >= 0:
            key = record.topic, record.partition, record.producer_id
            if record.producer_epoch < epochs.get(key, -1):
                yield Violation(Check.ZOMBIE, f"{record} has epoch {record.producer_epoch} after epoch {epochs[key]}")
            epochs[key] = max(record.producer_epoch, epochs.get(key, -1))


def _hanging(records: list[LogRecord]) -> Iterator[Violation]:
    first = next((record for record in records if record.open), None)
    if first is not None:
        yield Violation(Check.HANGING, f"the transaction of producer {first.producer_id} is open since {first}")


def _read_topics(cluster: BrokerRuntime) -> list[LogRecord]:
    """Return the records of all topics that are not internal, by partition, in the order of their offsets."""
    return [
        record
        for topic, index in cluster.partitions
        if topic not in INTERNAL_TOPICS
        for record in _read_log(cluster, topic, index)
    ]


def _read_log(cluster: BrokerRuntime, topic: str, index: int) -> list[LogRecord]:
    log = cluster.partitions[topic, index].log
    records: list[LogRecord] = []
    unfinished: dict[int, list[int]] = defaultdict(list)  # producer id -> positions in `records`
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        fetched = log.read(offset, READ_BYTES, end)
        if fetched.records is None or not len(fetched):
            break
        with fetched.records as stored:
            data = stored.read_all()
        for header, record in iter_all_records(data, include_control=True):
            offset = header.next_offset
            if header.is_control:
                aborted = record.key is not None and int.from_bytes(record.key[2:4], "big") == ABORT_MARKER
                for position in unfinished.pop(header.producer_id, ()):
                    records[position] = records[position]._replace(aborted=aborted, open=False)
            elif record.offset >= log.log_start_offset:
                if header.is_transactional:
                    unfinished[header.producer_id].append(len(records))
                records.append(
                    LogRecord(
                        topic,
                        index,
                        record.offset,
                        record.key,
                        record.value,
                        header.producer_id,
                        header.producer_epoch,
                        open=header.is_transactional,
                    )
                )
    return records


def _shown(data: bytes | None) -> str:
    if data is None:
        return "null"
    text = repr(data[:SHOWN_BYTES])[1:]
    return text if len(data) <= SHOWN_BYTES else f"{text}... ({len(data)} bytes)"
