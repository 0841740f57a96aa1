"""A transactional producer made of single requests, for conversations that two brokers must answer alike.

Producer ids are told apart by the order in which they appear, because two brokers do not count alike. Nothing is asked
while markers are on their way: how long that takes is each broker's own business.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k24_add_partitions_to_txn as k24
from ottla.protocol.messages import k27_write_txn_markers as k27
from ottla.protocol.messages import k28_txn_offset_commit as k28
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.records.builder import BatchBuilder
from tests.conversations.conversation import LONG_MS, Conversation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conversations.local_talk import LocalTalk
    from tests.conversations.side_by_side import Talk


class Producer(NamedTuple):
    """What a producer was given."""

    transactional_id: str | None
    id: int
    epoch: int

    def at(self, *, id_by: int = 0, epoch_by: int = 0) -> Producer:
        """Another producer id, or another epoch."""
        return self._replace(id=self.id + id_by, epoch=self.epoch + epoch_by)


class TransactionTalk(Conversation):
    """One broker's half of a conversation about transactions."""

    unordered = frozenset(
        {
            "topic_results",
            "results_by_partition",
            "results_by_topic_v3_and_below",
            "topics",
            "partitions",
            "transaction_states",
            "active_producers",
            "markers",
        }
    )
    times = frozenset({"transaction_start_time_ms", "last_timestamp"})

    def __init__(self, talk: Talk | LocalTalk, pause: Callable[[], None] = lambda: time.sleep(0.02)) -> None:
        super().__init__(talk, pause)
        self.producers: dict[int, str] = {}
        self._first = 0
        self._earlier: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Begin a conversation: producers are counted from one again."""
        super().begin()
        self._first = len(self.producers)
        self._earlier = frozenset(self.producers)

    # Requests

    def init(
        self,
        transactional_id: str | None,
        *,
        timeout_ms: int = LONG_MS,
        had: Producer | None = None,
        version: int | None = None,
        wait: bool = True,
    ) -> Producer:
        """InitProducerId; `wait` until a transaction that is in the way is gone."""
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        if had is not None:
            request.producer_id, request.producer_epoch = had.id, had.epoch
        if wait:
            self.settle(transactional_id)
        response = self.ask(request, InitProducerIdResponse, version)
        return Producer(transactional_id, response.producer_id, response.producer_epoch)

    def add(self, producer: Producer, *topic_partitions: tuple[str, int], version: int = 3) -> None:
        """AddPartitionsToTxn, as clients send it."""
        self.ask(
            k24.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=producer.transactional_id or "",
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=_topics(topic_partitions),
            ),
            k24.AddPartitionsToTxnResponse,
            version,
        )

    def add_for(
        self, *transactions: tuple[Producer, bool, list[tuple[str, int]]], version: int = 5
    ) -> k24.AddPartitionsToTxnResponse:
        """AddPartitionsToTxn, as brokers send it: each transaction with its partitions, to verify or to add."""
        return self.ask(
            k24.AddPartitionsToTxnRequest(
                transactions=[
                    k24.AddPartitionsToTxnTransaction(
                        transactional_id=producer.transactional_id or "",
                        producer_id=producer.id,
                        producer_epoch=producer.epoch,
                        verify_only=verify_only,
                        topics=_topics(transaction),
                    )
                    for producer, verify_only, transaction in transactions
                ]
            ),
            k24.AddPartitionsToTxnResponse,
            version,
        )

    def add_offsets(self, producer: Producer, group: str, *, version: int = 4) -> None:
        """AddOffsetsToTxn."""
        request = AddOffsetsToTxnRequest(
            transactional_id=producer.transactional_id or "",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group,
        )
        self.ask(request, AddOffsetsToTxnResponse, version)

    def commit_offset(
        self,
        producer: Producer,
        group: str,
        topic_partition: tuple[str, int],
        offset: int,
        *,
        version: int = 5,
        member: tuple[str, int] = ("", -1),
    ) -> None:
        """TxnOffsetCommit of one partition."""
        request = k28.TxnOffsetCommitRequest(
            transactional_id=producer.transactional_id or "",
            group_id=group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=[
                k28.TxnOffsetCommitRequestTopic(
                    name=topic_partition[0],
                    partitions=[
                        k28.TxnOffsetCommitRequestPartition(partition_index=topic_partition[1], committed_offset=offset)
                    ],
                )
            ],
        )
        if version >= 3:
            request.member_id, request.generation_id = member
        self.ask(request, k28.TxnOffsetCommitResponse, version)

    def produce(
        self,
        producer: Producer,
        topic_partition: tuple[str, int],
        sequence: int,
        *,
        version: int = 12,
        transactional: bool = True,
        values: int = 1,
        name_id: bool = True,
    ) -> ErrorCode:
        """Produce one batch."""
        builder = BatchBuilder(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        for number in range(values):
            builder.append(None, b"%d" % number, (), 1_700_000_000_000)
        request = ProduceRequest(
            transactional_id=producer.transactional_id if name_id else None,
            acks=-1,
            timeout_ms=LONG_MS,
            topic_data=[
                TopicProduceData(
                    name=topic_partition[0],
                    partition_data=[PartitionProduceData(index=topic_partition[1], records=bytes(builder.build()))],
                )
            ],
        )
        response = self.ask(request, ProduceResponse, version)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def end(self, producer: Producer, committed: bool, *, version: int = 5) -> Producer:
        """EndTxn, and then wait for the markers."""
        request = EndTxnRequest(
            transactional_id=producer.transactional_id or "",
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        response = self.ask(request, EndTxnResponse, version)
        self.settle(producer.transactional_id)
        if version >= 5 and response.error_code == ErrorCode.NONE:
            return producer._replace(id=response.producer_id, epoch=response.producer_epoch)
        return producer

    def write_markers(
        self,
        producer: Producer,
        topic_partitions: list[tuple[str, int]],
        *,
        committed: bool = False,
        coordinator_epoch: int = 0,
        transaction_version: int = 0,
        version: int = 2,
    ) -> None:
        """WriteTxnMarkers, as an administrator sends it."""
        marker = k27.WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transaction_result=committed,
            coordinator_epoch=coordinator_epoch,
            topics=[
                k27.WritableTxnMarkerTopic(name=topic.name, partition_indexes=topic.partitions)
                for topic in _topics(topic_partitions)
            ],
        )
        if version >= 2:
            marker.transaction_version = transaction_version
        self.ask(k27.WriteTxnMarkersRequest(markers=[marker]), k27.WriteTxnMarkersResponse, version)

    # What happens meanwhile

    def plain(self, topic: str, partition: int = 0) -> ErrorCode:
        """Produce one record outside of any transaction, and tell what came of it."""
        batch = BatchBuilder()
        batch.append(None, b"plain", (), 1_700_000_000_000)
        data = PartitionProduceData(index=partition, records=bytes(batch.build()))
        request = ProduceRequest(
            acks=-1, timeout_ms=LONG_MS, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        response = self.talk.quietly(request, ProduceResponse, version=12)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def state(self, transactional_id: str) -> str:
        """The state that DescribeTransactions shows."""
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = self.patiently(lambda: self.talk.quietly(request, DescribeTransactionsResponse))
        return response.transaction_states[0].transaction_state

    def settle(self, transactional_id: str | None, *also: str) -> None:
        """Wait until no markers are on their way."""
        if transactional_id:
            self.talk.wait_until(
                lambda: self.state(transactional_id) not in ("PrepareCommit", "PrepareAbort", *also),
                f"{transactional_id} is still being ended",
            )

    def describe(self, *transactional_ids: str) -> None:
        """DescribeTransactions."""
        request = DescribeTransactionsRequest(transactional_ids=list(transactional_ids))
        self.ask(request, DescribeTransactionsResponse)

    # How it is written down

    def producer(self, producer_id: int) -> object:
        """Return the name of a known producer."""
        if producer_id < 0:
            return producer_id
        return (
            "another producer" if producer_id in self._earlier else self.producers.get(producer_id, "another producer")
        )

    def leaf(self, value: Any, name: str) -> Any:
        """Producers are told apart by the order in which they appear."""
        if name == "producer_id" and value >= 0:
            return self.producers.setdefault(value, f"producer {len(self.producers) - self._first + 1}")
        return value


def _topics(topic_partitions: Any) -> list[k24.AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in topic_partitions:
        topics.setdefault(topic, []).append(index)
    return [k24.AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()]
