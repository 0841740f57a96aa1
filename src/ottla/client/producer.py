"""Sends records in batches, each once: an idempotent producer, and a transactional one if it is given an id.

It speaks the transaction protocol that every Kafka since 2.5 knows: partitions and groups are added to a transaction by
requests of their own. For one thread; what is sent waits here until a batch is full or `flush` is called.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.client.client import TRANSACTION, Client
from ottla.client.connection import ConnectionFailedError
from ottla.client.partitioner import partition_of_key
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
from ottla.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, read_header
from ottla.records.builder import BatchBuilder
from ottla.records.compression import CompressionType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.client.connection import BrokerConnection
    from ottla.protocol.schema import Message

R = TypeVar("R", bound="Message")
Place = tuple[str, int]

BATCH_BYTES: Final = 512 * 1024  # a batch stays below the broker's default of 1 MiB
WAITING_BYTES: Final = 4 * 1024 * 1024  # full batches that wait before they are sent together
_RECORD_OVERHEAD: Final = 32
_LARGEST_SEQUENCE: Final = 2**31
# The last versions of the protocol in which a client adds partitions itself (before KIP-890).
_PRODUCE: Final = 11
_TXN_OFFSET_COMMIT: Final = 4
_END_TXN: Final = 4
_ADD_PARTITIONS: Final = 3
_MOVED: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Delivered(NamedTuple):
    """Records that are written, next to each other; a partition's are told in the order in which they were sent."""

    topic: str
    partition: int
    records: int
    base_offset: int
    """-1 if it is not known: without acknowledgements, or after a retry that came too late to be told."""
    append_time: int
    """What the broker stamped them with; -1 for the producer's own time."""


class Producer:
    """Writes to topics; with a transactional id, all up to `commit` is seen at once or never.

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
            raise ValueError("an idempotent producer needs acks=all")
        if transactional_id is not None and not idempotent:
            raise ValueError("a transactional producer is idempotent")
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
        self._sequences: dict[Place, int] = {}
        self._open: dict[Place, BatchBuilder] = {}
        self._full: dict[Place, list[bytearray]] = {}
        self._full_bytes = 0
        self._added: set[Place] = set()
        self._groups: set[str] = set()
        self._turn: dict[str, int] = {}
        self._first_partition = first_partition
        self._delivered = delivered
        self.records_sent = 0

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self._producer_id, self._epoch

    # The life of a transaction.

    def initialize(self) -> None:
        """Take a producer id; with a transactional id, abort what an earlier producer of it left open, and fence it."""
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._transaction_timeout_ms if self._id is not None else 2**31 - 1,
        )

        def take(answer: InitProducerIdResponse) -> None:
            _check(answer.error_code, f"transactional id {self._id}" if self._id else "producer id")
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

        if self._id is None:
            self._client.retrying(lambda: take(self._client.to_any(request, InitProducerIdResponse)))
        else:
            self._coordinated(self._id, TRANSACTION, request, InitProducerIdResponse, None, take)
        self._sequences.clear()
        self._forget_transaction()

    def add_offsets(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        """Commit a group's offsets, each with a word of metadata, as part of the transaction."""
        assert self._id is not None, "offsets belong to a transaction; the producer has no transactional id"
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
                lambda answer: _check(answer.error_code, f"group {group} in the transaction of {self._id}"),
            )
            self._groups.add(group)
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
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )

        def check(answer: TxnOffsetCommitResponse) -> None:
            for topic in answer.topics:
                for each in topic.partitions:
                    _check(each.error_code, f"offset of group {group} on {topic.name}-{each.partition_index}")

        self._coordinated(group, 0, request, TxnOffsetCommitResponse, _TXN_OFFSET_COMMIT, check)

    def commit(self) -> None:
        """Send what waits and commit the transaction."""
        self.flush()
        self._end(committed=True)

    def abort(self) -> None:
        """Drop what waits and abort the transaction; the next one begins with a new epoch, as sequences have gaps."""
        self._open.clear()
        self._full.clear()
        self._full_bytes = 0
        self._end(committed=False)
        self._producer_id = NO_PRODUCER_ID

    def _end(self, *, committed: bool) -> None:
        assert self._id is not None, "a producer without a transactional id has no transactions"
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
                lambda answer: _check(answer.error_code, f"end of the transaction of {self._id}"),
            )
        self._forget_transaction()

    def _forget_transaction(self) -> None:
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
        """Take a record, for the partition returned; it is on its way when a batch is full or after `flush`."""
        index = self._partition(topic, key) if partition is None else self._checked(topic, partition)
        place = topic, index
        builder = self._open.get(place)
        size = _RECORD_OVERHEAD + len(key or b"") + len(value or b"")
        if builder is not None and builder.uncompressed_size + size > self._batch_bytes:
            self._seal(place)
            builder = None
            if self._full_bytes >= WAITING_BYTES:
                self._send_full()
        if builder is None:
            builder = self._open[place] = self._new_batch()
        builder.append(key, value, headers, int(time.time() * 1000) if timestamp is None else timestamp)
        self.records_sent += 1
        return index

    def flush(self) -> None:
        """Send all that waits; returns when it is acknowledged."""
        for place in list(self._open):
            self._seal(place)
        self._send_full()

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = len(self._client.topic(topic).partitions)
        if key is not None:
            return partition_of_key(key, count)
        # Records without a key fill one partition's batch, then the next one's.
        return self._turn.setdefault(topic, self._first_partition) % count

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

    def _seal(self, place: Place) -> None:
        builder = self._open.pop(place)
        if self._idempotent:
            builder.base_sequence = self._sequences.get(place, 0)
            self._sequences[place] = (builder.base_sequence + builder.record_count) % _LARGEST_SEQUENCE
        else:
            builder.base_sequence = NO_SEQUENCE
        batch = builder.build()
        self._full.setdefault(place, []).append(batch)
        self._full_bytes += len(batch)
        topic = place[0]
        if topic in self._turn:
            self._turn[topic] += 1

    def _send_full(self) -> None:
        """Send the full batches: one per partition and request, because a broker takes no more."""
        if self._id is not None:
            self._add_partitions(sorted(set(self._full) - self._added))
        while self._full:
            waiting = {place: batches[0] for place, batches in self._full.items()}
            self._produce(waiting)
            for place in waiting:
                del self._full[place][0]
                if not self._full[place]:
                    del self._full[place]
        self._full_bytes = 0

    def _add_partitions(self, places: Sequence[Place]) -> None:
        if not places:
            return
        assert self._id is not None
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=p) for name, p in topics.items()],
        )

        def check(answer: AddPartitionsToTxnResponse) -> None:
            found = [
                (each.partition_error_code, f"{topic.name}-{each.partition_index} in the transaction of {self._id}")
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            # Next to the partition that is refused, the others are only said not to have been tried.
            for code, where in sorted(found, key=lambda each: each[0] == ErrorCode.OPERATION_NOT_ATTEMPTED):
                _check(code, where)

        self._coordinated(self._id, TRANSACTION, request, AddPartitionsToTxnResponse, _ADD_PARTITIONS, check)
        self._added.update(places)

    def _produce(self, batches: dict[Place, bytearray]) -> None:
        """Send these until every one is acknowledged; a repeated batch has its old sequence and is not stored twice."""
        waiting = dict(batches)

        def attempt() -> None:
            leaders: dict[int, list[Place]] = {}
            for place in waiting:
                leaders.setdefault(self._client.leader(*place), []).append(place)
            for node, places in leaders.items():
                self._produce_to(node, places, waiting)

        self._client.retrying(attempt, topics=sorted({topic for topic, _ in batches}))

    def _produce_to(self, node: int, places: Sequence[Place], waiting: dict[Place, bytearray]) -> None:
        topics: dict[str, list[PartitionProduceData]] = {}
        for place in places:
            data = PartitionProduceData(index=place[1], records=waiting[place])
            topics.setdefault(place[0], []).append(data)
        request = ProduceRequest(
            transactional_id=self._id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=[TopicProduceData(name=name, partition_data=each) for name, each in topics.items()],
        )
        connection = self._client.node(node)
        version = min(_PRODUCE, connection.best_version(0))
        if self._acks == 0:
            connection.send_without_answer(request, version=version)
            for place in places:
                self._done(place, waiting.pop(place), -1, -1)
            return
        answer = connection.send(
            request, ProduceResponse, version=version, timeout=self._request_timeout_ms / 1000 + 10
        )
        problems = []
        for topic in answer.responses:
            for each in topic.partition_responses:
                if each.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    place = topic.name, each.index
                    self._done(place, waiting.pop(place), each.base_offset, each.log_append_time_ms)
                else:
                    reason = f": {each.error_message}" if each.error_message else ""
                    if each.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                        size = len(waiting[topic.name, each.index])
                        reason = f": a batch of {size} bytes is more than its max.message.bytes"
                    problems.append(KafkaError(each.error_code, f"{topic.name}-{each.index}{reason}"))
        # One that cannot be helped is told before one that trying again may help.
        for problem in sorted(problems, key=lambda each: each.retriable):
            raise problem

    def _done(self, place: Place, batch: bytearray, base_offset: int, append_time: int) -> None:
        if self._delivered is not None:
            self._delivered(Delivered(*place, read_header(batch).record_count, base_offset, append_time))

    # Coordinators.

    def _coordinated(
        self,
        key: str,
        kind: int,
        request: Message,
        response: type[R],
        newest: int | None,
        take: Callable[[R], None],
    ) -> None:
        """Send a request to a coordinator until it is answered for good, wherever the coordinator moves."""
        api_key = request.__schema__.api_key
        assert api_key is not None

        def attempt() -> None:
            try:
                connection: BrokerConnection = self._client.node(self._client.coordinator(key, kind))
                version = connection.best_version(api_key)
                take(connection.send(request, response, version=version if newest is None else min(newest, version)))
            except ConnectionFailedError:
                self._client.forget_coordinator(key, kind)
                raise
            except KafkaError as error:
                if error.code in _MOVED:
                    self._client.forget_coordinator(key, kind)
                raise

        self._client.retrying(attempt)


def _compression(name: str) -> CompressionType:
    found = {kind.name.lower(): kind for kind in CompressionType}.get(name.lower())
    if found is None:
        raise ValueError(
            f"compression is one of {', '.join(kind.name.lower() for kind in CompressionType)}, not {name}"
        )
    return found


def _check(code: int, where: str) -> None:
    if code:
        raise KafkaError(code, where)
