"""Requests of a transactional producer to a broker in this process, for the tests of the transaction APIs."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import k00_produce as k00
from ottla.protocol.messages import k10_find_coordinator as k10
from ottla.protocol.messages import k22_init_producer_id as k22
from ottla.protocol.messages import k24_add_partitions_to_txn as k24
from ottla.protocol.messages import k26_end_txn as k26
from ottla.records.builder import BatchBuilder
from tests.conversations.local_talk import LocalTalk

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
TOPIC = "news"


@dataclass(frozen=True)
class Producer:
    """A producer id with its epoch."""

    transactional_id: str
    producer_id: int
    epoch: int


class TransactionalBroker(LocalTalk):
    """A broker with the topic `news` of two partitions, whose coordinators are loaded."""

    def __init__(self, **configs: str) -> None:
        super().__init__({**SETTINGS, **{name.replace("_", "."): value for name, value in configs.items()}})
        self.create(TOPIC, 2)
        topic = self.runtime.image.topic(TOPIC)
        assert topic is not None
        self.topic_id = topic.id
        for key_type, key in enumerate(("group", "app", f"group:{self.topic_id}:0")):
            self._find_coordinator(k10.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))

    def _find_coordinator(self, request: k10.FindCoordinatorRequest) -> None:
        def is_known() -> bool:
            response = self.quietly(request, k10.FindCoordinatorResponse)
            return response.coordinators[0].error_code == ErrorCode.NONE

        self.wait_until(is_known, "no coordinator")

    def init(self, transactional_id: str = "app", version: int = 5) -> Producer:
        """InitProducerId, repeated while a transaction is being aborted."""
        response = k22.InitProducerIdResponse()

        def is_initialized() -> bool:
            nonlocal response
            request = k22.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
            response = self.quietly(request, k22.InitProducerIdResponse, version=version)
            return response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS

        self.wait_until(is_initialized, "the producer is not initialized")
        assert response.error_code == ErrorCode.NONE
        return Producer(transactional_id, response.producer_id, response.producer_epoch)

    def add(self, producer: Producer, *partitions: int, topic: str = TOPIC, version: int = 3) -> list[ErrorCode]:
        """AddPartitionsToTxn as clients send it; return the error of each partition."""
        request = k24.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=producer.transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[k24.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        response = self.quietly(request, k24.AddPartitionsToTxnResponse, version=version)
        results = response.results_by_topic_v3_and_below[0].results_by_partition
        return [ErrorCode(result.partition_error_code) for result in results]

    def produce(self, producer: Producer, partition: int = 0, sequence: int = 0, version: int = 11) -> ErrorCode:
        """Write one transactional record."""
        batch = BatchBuilder(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        batch.append(None, b"value", timestamp=self.world.clock.now_ms())
        data = k00.PartitionProduceData(index=partition, records=bytes(batch.build()))
        request = k00.ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[k00.TopicProduceData(name=TOPIC, partition_data=[data])],
        )
        response = self.quietly(request, k00.ProduceResponse, version=version)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    def end(self, producer: Producer, *, committed: bool = True, version: int = 4) -> k26.EndTxnResponse:
        """EndTxn, and let the markers be written."""
        request = k26.EndTxnRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=committed,
        )
        response = self.quietly(request, k26.EndTxnResponse, version=version)
        self.pause()
        return response

    def last_stable_offset(self, partition: int = 0) -> int:
        """Return the last stable offset of a partition of `news`."""
        return self.runtime.partitions[TOPIC, partition].log.last_stable_offset
