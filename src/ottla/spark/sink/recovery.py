"""Find the rows of aborted transactions in the log, and send them again.

An aborted transaction's rows stay in the log, where read_uncommitted sees them, until retention or compaction removes
them. So the rows of a decided batch can be written even if the broker aborted the transaction that held them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.client.client import EARLIEST
from ottla.client.groups import by_topic
from ottla.client.transactions import describe_producers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import check_crc, iter_batches
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import iter_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ottla.client.client import Client, TopicPartition
    from ottla.client.producer import Producer
    from ottla.records.batch import BatchHeader
    from ottla.spark.sink.decision import Decision, SinkTransaction

_FETCH_BYTES: Final = 8 * 1024 * 1024
_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@dataclass(slots=True)
class LoggedRows:
    """The rows of a transaction that are in the log, and how it ended on each partition.

    It may end differently on partitions: Apache Kafka skips the marker of a partition that has no leader in a restart.
    """

    rows: int = 0
    ended: dict[TopicPartition, ControlType | None] = field(default_factory=dict)
    """COMMIT or ABORT for each partition with rows; None if no marker was found there."""

    @property
    def is_committed(self) -> bool:
        """Whether there is nothing to write again: a commit marker on every partition with rows."""
        return bool(self.ended) and all(marker is ControlType.COMMIT for marker in self.ended.values())


@dataclass(slots=True)
class Search:
    """What the log says about transactions of a decision."""

    logged: dict[SinkTransaction, LoggedRows] = field(default_factory=dict)
    deleted: list[TopicPartition] = field(default_factory=list)
    """Partitions whose rows were deleted, by retention, DeleteRecords or with their topic."""

    def incomplete(self, transaction: SinkTransaction) -> bool:
        """Return whether rows of the transaction are missing."""
        return self.logged[transaction].rows < transaction.rows


def search(client: Client, decision: Decision, transactions: Collection[SinkTransaction]) -> Search:
    """Count the rows of transactions in the log and find the markers that ended them."""
    result = Search({transaction: LoggedRows() for transaction in transactions})
    by_producer = {transaction.producer_id: transaction for transaction in transactions}
    for partition, offsets in sorted(decision.ranges.items()):
        open_here: set[int] = set()
        start = _log_start(client, partition)
        if start is None or start > offsets.first:
            result.deleted.append(partition)
        if start is None:
            continue
        for records, header in _batches(client, partition, max(offsets.first, start)):
            transaction = by_producer.get(header.producer_id)
            if transaction is not None and header.is_control:
                if header.producer_id in open_here:
                    open_here.discard(header.producer_id)
                    result.logged[transaction].ended[partition] = _marker(records, header)
            elif transaction is not None and header.producer_epoch == transaction.epoch:
                result.logged[transaction].rows += header.record_count
                result.logged[transaction].ended.setdefault(partition, None)
                open_here.add(header.producer_id)
            if header.last_offset >= offsets.last and not open_here:
                break
    return result


def copy_rows(
    client: Client, producer: Producer, decision: Decision, transactions: Collection[SinkTransaction], found: Search
) -> int:
    """Send the rows of transactions again where no marker committed them, in their order in each partition.

    Return how many there were.
    """
    copied = 0
    for partition, offsets in sorted(decision.ranges.items()):
        identities = {
            (transaction.producer_id, transaction.epoch)
            for transaction in transactions
            if found.logged[transaction].ended.get(partition) is not ControlType.COMMIT
        }
        start = _log_start(client, partition)
        if start is None:
            continue
        for records, header in _batches(client, partition, max(offsets.first, start)):
            if header.base_offset > offsets.last:
                break
            if not header.is_control and (header.producer_id, header.producer_epoch) in identities:
                if not check_crc(records, header):
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"{partition[0]}-{partition[1]}: the batch at offset {header.base_offset} has a wrong CRC",
                    )
                producer.send_batch(*partition, bytearray(records[header.position : header.end]))
                copied += header.record_count
    return copied


def open_transactions_on(
    client: Client, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, dict[int, int]]:
    """Return producer ids with an open transaction on partitions, as their leaders see it, with its first offset."""
    opened: dict[TopicPartition, dict[int, int]] = {partition: {} for partition in partitions}
    for topic, indexes in by_topic(sorted(partitions)).items():
        present = [index for index in indexes if exists(client, topic, index)]
        states = client.retrying(lambda: describe_producers(client, topic, present), topics=[topic])  # noqa: B023
        for index, producers in states.items():
            opened[topic, index] = {
                producer.producer_id: producer.current_txn_start_offset
                for producer in producers
                if producer.current_txn_start_offset >= 0
            }
    return opened


def exists(client: Client, topic: str, partition: int = 0) -> bool:
    """Return whether a partition exists, after a metadata request."""
    code = client.retrying(lambda: client.refresh([topic])).topics[0].error_code
    if code not in (0, *_GONE):
        raise KafkaError(code, f"topic {topic}")
    return not code and partition in client.topic(topic).partitions


def _log_start(client: Client, partition: TopicPartition) -> int | None:
    """Return the log start offset; None if the partition does not exist."""
    topic, index = partition
    return client.list_offsets(topic, [index], EARLIEST)[index][0] if exists(client, topic, index) else None


def _batches(client: Client, partition: TopicPartition, offset: int) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield all batches from an offset to the high watermark, committed or not."""
    topic, index = partition
    while True:
        data = client.fetch(topic, {index: offset}, max_wait_ms=0, partition_max_bytes=_FETCH_BYTES)[index]
        records = memoryview(data.records or b"")
        before = offset
        for header in iter_batches(records):
            if header.next_offset > offset:
                yield records, header
                offset = header.next_offset
        if offset == before:
            return


def _marker(records: memoryview, header: BatchHeader) -> ControlType:
    return parse_control_key(next(iter(iter_records(records, header))).key)
