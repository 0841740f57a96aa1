"""Sends prepared record batches to the leaders of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.client.client import Client
    from ottla.protocol.schema import Buffer

TIMEOUT_MS = 30_000


class Sent(NamedTuple):
    """Base offset of a batch, and its log append time (-1 for CreateTime)."""

    base_offset: int
    append_time: int


def send_batches(
    client: Client, topic: str, batches: Mapping[int, Buffer], *, acks: int = -1, timeout_ms: int = TIMEOUT_MS
) -> dict[int, Sent]:
    """Write one batch to each partition; with acks=0 return offsets of -1.

    Retriable errors are retried without idempotence, so that a batch may be written twice.
    """
    left = dict(batches)
    sent: dict[int, Sent] = {}

    def attempt() -> None:
        for node, partitions in client.by_leader(topic, list(left)).items():
            info = client.topic(topic)
            request = ProduceRequest(
                acks=acks,
                timeout_ms=timeout_ms,
                topic_data=[
                    TopicProduceData(
                        name=topic,
                        topic_id=info.id,
                        partition_data=[PartitionProduceData(index=index, records=left[index]) for index in partitions],
                    )
                ],
            )
            if acks == 0:
                client.node(node).send_without_response(request)
                for index in partitions:
                    del left[index]
                    sent[index] = Sent(-1, -1)
                continue
            refused: KafkaError | None = None
            for response in client.to_node(node, request, ProduceResponse).responses[0].partition_responses:
                if response.error_code:
                    refused = KafkaError(response.error_code, response.error_message or f"{topic}-{response.index}")
                    continue
                del left[response.index]
                sent[response.index] = Sent(response.base_offset, response.log_append_time_ms)
            if refused is not None:
                raise refused

    client.retrying(attempt, topics=[topic])
    return sent
