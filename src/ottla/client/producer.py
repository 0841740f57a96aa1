"""An idempotent producer; with a transactional id, a transactional one. For one thread.

It adds partitions and groups to a transaction with AddPartitionsToTxn and AddOffsetsToTxn (transaction protocol v1,
before KIP-890), which every Kafka since 2.5 supports.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.client.client import TRANSACTION, Client, TopicPartition
from ottla.client.connection import ConnectionFailedError
from ottla.client.partitioner import partition_for_key
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, read_header, stamp_producer
from ottla.records.builder import BatchBuilder
from ottla.records.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.client.connection import BrokerConnection
    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
BATCH_BYTES: Final = 512 * 1024  # below the default max.message.bytes of 1 MiB
BUFFER_BYTES: Final = 4 * 1024 * 1024  # closed batches that are buffered before they are sent together
_RECORD_OVERHEAD: Final = 32
_LARGEST_SEQUENCE: Final = 2**31
# The newest versions of transaction protocol v1, in which the client adds partitions (before KIP-890).
_PRODUCE: Final = 11
_TXN_OFFSET_COMMIT: Final = 4
_END_TXN: Final = 4
_ADD_PARTITIONS: Final = 3
_COORDINATOR_MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Delivered(NamedTuple):
    """An acknowledged batch. Batches of one partition are delivered in the order in which they were sent."""

    topic: str
    partition: int
    records: int
    base_offset: int
    """-1 if unknown: with acks=0, or if the broker answered DUPLICATE_SEQUENCE_NUMBER without the offset."""
    append_time: int
    """The broker's timestamp with LogAppendTime; -1 if the records keep the producer's timestamps."""


class Producer:
    """Batches records and sends them to partition leaders. `flush` or a full buffer sends; `commit` ends a transaction.

    >>> with Client("localhost:9092") as client:  # doctest: +SKIP
    ...     producer = Producer(client)
    ...     producer.send("orders", b"key", b"value")
    ...     producer.flush()
    """

    def __init__(
        self,
        client: Client,
        *,
        transactional_id: str | None = None,
        idempotent: bool = True,
        transaction_timeout_ms: int = 60_000,
        compression: str = "none",
        acks: int = -1,
        batch_bytes: int = BATCH_BYTES,
        request_timeout_ms: int = 30_000,
        first_partition: int = 0,
        delivered: Callable[[Delivered], None] | None = None,
    ) -> None:
        if idempotent and acks != -1:
            raise ValueError("an idempotent producer requires acks=all")
        if transactional_id is not None and not idempotent:
            raise ValueError("a transactional producer requires idempotence")
        self._client = client
        self._id = transactional_id
        self._idempotent = idempotent
        self._transaction_timeout_ms = transaction_timeout_ms
        self._compression = _compression(compression)
        self._acks = acks
        self._batch_bytes = batch_bytes
        self._request_timeout_ms = request_timeout_ms
        self._producer_id = NO_PRODUCER_ID
        self._epoch = NO_PRODUCER_EPOCH
        self._sequences: dict[TopicPartition, int] = {}
        self._open: dict[TopicPartition, BatchBuilder] = {}
        self._full: dict[TopicPartition, list[bytearray]] = {}
        self._full_bytes = 0
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._sticky: dict[str, int] = {}
        self._first_partition = first_partition
        self._delivered = delivered
        self.records_sent = 0

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._producer_id, self._epoch

    @property
    def in_transaction(self) -> bool:
        """Whether a partition or a group was added to the transaction, which starts its timeout."""
        return bool(self._added or self._groups)

    # Transactions.

    def initialize(self) -> None:
        """Get a producer id. With a transactional id, fence its earlier producer and abort an open transaction."""
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._transaction_timeout_ms if self._id is not None else 2**31 - 1,
        )

        def take(response: InitProducerIdResponse) -> None:
            _check(response.error_code, f"transactional id {self._id}" if self._id else "producer id")
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch

        if self._id is None:
            self._client.retrying(lambda: take(self._client.to_any(request, InitProducerIdResponse)))
        else:
            self._coordinated(self._id, TRANSACTION, request, InitProducerIdResponse, None, take)
        self._sequences.clear()
        self._clear_transaction()

    def add_group(self, group: str) -> None:
        """Add a group to the transaction, so that its end writes a marker to the group's partition."""
        assert self._id is not None, "add_group requires a transactional id"
        if group not in self._groups:
            self._coordinated(
                self._id,
                TRANSACTION,
                AddOffsetsToTxnRequest(
                    transactional_id=self._id,
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    group_id=group,
                ),
                AddOffsetsToTxnResponse,
                None,
                lambda response: _check(response.error_code, f"group {group} in the transaction of {self._id}"),
            )
            self._groups.add(group)

    def add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions to the transaction, so that its end writes markers to them."""
        self._add_partitions([partition for partition in partitions if partition not in self._added])

    def add_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit a group's offsets, each with metadata, as part of the transaction."""
        assert self._id is not None, "add_offsets requires a transactional id"
        self.add_group(group)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, partition), (offset, metadata) in offsets.items():
            topics.setdefault(topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=partitions) for name, partitions in topics.items()
            ],
        )

        def check(response: TxnOffsetCommitResponse) -> None:
            for topic in response.topics:
                for partition in topic.partitions:
                    where = f"{topic.name}-{partition.partition_index}"
                    _check(partition.error_code, f"offset of group {group} on {where}")

        self._coordinated(group, 0, request, TxnOffsetCommitResponse, _TXN_OFFSET_COMMIT, check)

    def commit(self) -> None:
        """Flush, then commit the transaction."""
        self.flush()
        self._end(committed=True)

    def abort(self) -> None:
        """Drop unsent records and abort the transaction. The next one initializes again: dropped batches leave gaps."""
        self._open.clear()
        self._full.clear()
        self._full_bytes = 0
        self._end(committed=False)
        self._producer_id = NO_PRODUCER_ID

    def _end(self, *, committed: bool) -> None:
        assert self._id is not None, "commit and abort require a transactional id"
        if self._added or self._groups:
            request = EndTxnRequest(
                transactional_id=self._id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                committed=committed,
            )
            self._coordinated(
                self._id,
                TRANSACTION,
                request,
                EndTxnResponse,
                _END_TXN,
                lambda response: _check(response.error_code, f"end of the transaction of {self._id}"),
            )
        self._clear_transaction()

    def _clear_transaction(self) -> None:
        self._added.clear()
        self._groups.clear()

    # Records.

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str | bytes, bytes | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Add a record to a batch; return the partition that it goes to."""
        index = self._partition(topic, key) if partition is None else self._checked(topic, partition)
        target = topic, index
        builder = self._open.get(target)
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if builder is not None and builder.uncompressed_size + size > self._batch_bytes:
            self._seal(target)
            builder = None
            if self._full_bytes >= BUFFER_BYTES:
                self._send_full()
        if builder is None:
            builder = self._open[target] = self._new_batch()
        builder.append(key, value, headers, int(time.time() * 1000) if timestamp is None else timestamp)
        self.records_sent += 1
        return index

    def send_batch(self, topic: str, partition: int, batch: bytearray) -> None:
        """Send a whole batch that was read from a log, unchanged but for its producer id, epoch and sequence."""
        target = topic, self._checked(topic, partition)
        if target in self._open:
            self._seal(target)
        if self._idempotent and self._producer_id == NO_PRODUCER_ID:
            self.initialize()
        count = read_header(batch).last_offset_delta + 1
        sequence = self._sequences.get(target, 0) if self._idempotent else NO_SEQUENCE
        if self._idempotent:
            self._sequences[target] = (sequence + count) % _LARGEST_SEQUENCE
        stamp_producer(batch, 0, self._producer_id, self._epoch, sequence)
        self._full.setdefault(target, []).append(batch)
        self._full_bytes += len(batch)
        self.records_sent += count
        if self._full_bytes >= BUFFER_BYTES:
            self._send_full()

    def take_unsent(self) -> list[tuple[TopicPartition, bytearray]]:
        """Remove and return the batches that were not sent, for `send_batch` of another producer."""
        for partition in list(self._open):
            self._seal(partition)
        unsent = [(partition, batch) for partition, batches in self._full.items() for batch in batches]
        self._full.clear()
        self._full_bytes = 0
        self.records_sent -= sum(read_header(batch).record_count for _, batch in unsent)
        return unsent

    def flush(self) -> None:
        """Send all batches; return when the leaders have acknowledged them."""
        for partition in list(self._open):
            self._seal(partition)
        self._send_full()

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = len(self._client.topic(topic).partitions)
        if key is not None:
            return partition_for_key(key, count)
        # Like Kafka's sticky partitioner: records without a key fill one partition's batch, then the next one's.
        return self._sticky.setdefault(topic, self._first_partition) % count

    def _checked(self, topic: str, partition: int) -> int:
        count = len(self._client.topic(topic).partitions)
        if not 0 <= partition < count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, not {partition}"
            )
        return partition

    def _new_batch(self) -> BatchBuilder:
        if self._idempotent and self._producer_id == NO_PRODUCER_ID:
            self.initialize()
        return BatchBuilder(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            compression=self._compression,
            transactional=self._id is not None,
        )

    def _seal(self, partition: TopicPartition) -> None:
        builder = self._open.pop(partition)
        if self._idempotent:
            builder.base_sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = (builder.base_sequence + builder.record_count) % _LARGEST_SEQUENCE
        else:
            builder.base_sequence = NO_SEQUENCE
        batch = builder.build()
        self._full.setdefault(partition, []).append(batch)
        self._full_bytes += len(batch)
        topic = partition[0]
        if topic in self._sticky:
            self._sticky[topic] += 1

    def _send_full(self) -> None:
        """Send the closed batches, one per partition in a request: brokers refuse more."""
        if self._id is not None:
            self._add_partitions(sorted(set(self._full) - self._added))
        while self._full:
            unacknowledged = {partition: batches[0] for partition, batches in self._full.items()}
            self._produce(unacknowledged)
            for partition in unacknowledged:
                del self._full[partition][0]
                if not self._full[partition]:
                    del self._full[partition]
        self._full_bytes = 0

    def _add_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        assert self._id is not None
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=p) for name, p in topics.items()],
        )

        def check(response: AddPartitionsToTxnResponse) -> None:
            errors = [
                (
                    partition.partition_error_code,
                    f"{topic.name}-{partition.partition_index} in the transaction of {self._id}",
                )
                for topic in response.results_by_topic_v3_and_below
                for partition in topic.results_by_partition
            ]
            # The error of the refused partition comes first: the others have OPERATION_NOT_ATTEMPTED.
            for code, where in sorted(errors, key=lambda error: error[0] == ErrorCode.OPERATION_NOT_ATTEMPTED):
                _check(code, where)

        self._coordinated(self._id, TRANSACTION, request, AddPartitionsToTxnResponse, _ADD_PARTITIONS, check)
        self._added.update(partitions)

    def _produce(self, batches: dict[TopicPartition, bytearray]) -> None:
        """Send batches until all are acknowledged. A retry keeps its sequence, so that brokers drop duplicates."""
        unacknowledged = dict(batches)

        def attempt() -> None:
            leaders: dict[int, list[TopicPartition]] = {}
            for partition in unacknowledged:
                leaders.setdefault(self._client.leader(*partition), []).append(partition)
            for node, partitions in leaders.items():
                self._produce_to(node, partitions, unacknowledged)

        self._client.retrying(attempt, topics=sorted({topic for topic, _ in batches}))

    def _produce_to(
        self, node: int, partitions: Sequence[TopicPartition], unacknowledged: dict[TopicPartition, bytearray]
    ) -> None:
        topics: dict[str, list[PartitionProduceData]] = {}
        for partition in partitions:
            data = PartitionProduceData(index=partition[1], records=unacknowledged[partition])
            topics.setdefault(partition[0], []).append(data)
        request = ProduceRequest(
            transactional_id=self._id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        connection = self._client.node(node)
        version = min(_PRODUCE, connection.best_version(0))
        if self._acks == 0:
            connection.send_without_response(request, version=version)
            for partition in partitions:
                self._done(partition, unacknowledged.pop(partition), -1, -1)
            return
        response = connection.send(
            request, ProduceResponse, version=version, timeout=self._request_timeout_ms / 1000 + 10
        )
        problems = []
        for topic in response.responses:
            for result in topic.partition_responses:
                if result.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    partition = topic.name, result.index
                    self._done(partition, unacknowledged.pop(partition), result.base_offset, result.log_append_time_ms)
                else:
                    reason = f": {result.error_message}" if result.error_message else ""
                    if result.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                        size = len(unacknowledged[topic.name, result.index])
                        reason = f": a batch of {size} bytes is more than its max.message.bytes"
                    problems.append(KafkaError(result.error_code, f"{topic.name}-{result.index}{reason}"))
        # An error that is not retriable comes first.
        for problem in sorted(problems, key=lambda problem: problem.retriable):
            raise problem

    def _done(self, partition: TopicPartition, batch: bytearray, base_offset: int, append_time: int) -> None:
        if self._delivered is not None:
            self._delivered(Delivered(*partition, read_header(batch).record_count, base_offset, append_time))

    # Coordinators.

    def _coordinated(
        self,
        key: str,
        kind: int,
        request: Message,
        response: type[R],
        max_version: int | None,
        handle: Callable[[R], None],
    ) -> None:
        """Send a request to a coordinator; find the coordinator again and retry if it has moved."""
        api_key = request.__schema__.api_key
        assert api_key is not None

        def attempt() -> None:
            try:
                connection: BrokerConnection = self._client.node(self._client.coordinator(key, kind))
                version = connection.best_version(api_key)
                handle(
                    connection.send(
                        request, response, version=version if max_version is None else min(max_version, version)
                    )
                )
            except ConnectionFailedError:
                self._client.forget_coordinator(key, kind)
                raise
            except KafkaError as error:
                if error.code in _COORDINATOR_MOVED:
                    self._client.forget_coordinator(key, kind)
                raise

        self._client.retrying(attempt)


def _compression(name: str) -> CompressionType:
    compression = {kind.name.lower(): kind for kind in CompressionType}.get(name.lower())
    if compression is None:
        raise ValueError(
            f"compression is one of {', '.join(kind.name.lower() for kind in CompressionType)}, not {name}"
        )
    return compression


def _check(code: int, where: str) -> None:
    if code:
        raise KafkaError(code, where)
