"""Lists and describes transactions and producers; aborts a hanging transaction on a partition (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.client.client import TRANSACTION
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.messages.k61_describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
    TopicRequest,
)
from ottla.protocol.messages.k65_describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.client.client import Client
    from ottla.protocol.messages.k66_list_transactions import TransactionState as Listed


def list_transactions(
    client: Client,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    *,
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[tuple[int, Listed]]:
    """Return transactional ids of all brokers with their coordinators; raise KafkaError if a broker cannot filter."""
    listed = []
    client.refresh([])
    for node in sorted(client.brokers):
        version = client.node(node).best_version(66)
        if longer_than_ms >= 0 and version < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node} cannot filter transactions by duration")
        if pattern is not None and version < 2:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"broker {node} cannot filter transactions by a pattern")
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=longer_than_ms,
            transactional_id_pattern=pattern,
        )
        answer = client.to_node(node, request, ListTransactionsResponse)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"transactions of broker {node}")
        if answer.unknown_state_filters:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"no such transaction state: {', '.join(answer.unknown_state_filters)}"
            )
        listed += [(node, state) for state in answer.transaction_states]
    return sorted(listed, key=lambda entry: entry[1].transactional_id)


def describe_transaction(client: Client, transactional_id: str) -> tuple[int, TransactionState]:
    """Return the coordinator of a transactional id, and the state of its transaction."""

    def attempt() -> tuple[int, TransactionState]:
        node = client.coordinator(transactional_id, TRANSACTION)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        state = client.to_node(node, request, DescribeTransactionsResponse).transaction_states[0]
        if state.error_code:
            client.forget_coordinator(transactional_id, TRANSACTION)
            raise KafkaError(state.error_code, f"transactional id {transactional_id}")
        return node, state

    return client.retrying(attempt)


def describe_producers(client: Client, topic: str, partitions: Iterable[int]) -> dict[int, list[ProducerState]]:
    """Return the producer states of each partition, as its leader has them."""
    states: dict[int, list[ProducerState]] = {}
    for node, group in client.by_leader(topic, partitions).items():
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=group)])
        for result in client.to_node(node, request, DescribeProducersResponse).topics[0].partitions:
            if result.error_code:
                raise KafkaError(result.error_code, result.error_message or f"{topic}-{result.partition_index}")
            states[result.partition_index] = result.active_producers
    return states


def abort_on_partition(
    client: Client, topic: str, partition: int, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Write an abort marker to one partition, to end a hanging transaction, which its coordinator does not have."""
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    answer = client.to_node(client.leader(topic, partition), request, WriteTxnMarkersResponse)
    code = answer.markers[0].topics[0].partitions[0].error_code
    if code:
        raise KafkaError(code, f"{topic}-{partition}, producer {producer_id} epoch {producer_epoch}")
