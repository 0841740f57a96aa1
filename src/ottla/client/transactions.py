"""Lists, describes and ends transactions of any producer; aborts a hanging one on a partition (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.client import TRANSACTION
from ottla.client.connection import ConnectionFailedError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
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
    from collections.abc import Callable, Iterable, Sequence

    from ottla.client.client import Client
    from ottla.protocol.messages.k66_list_transactions import TransactionState as Listed

T = TypeVar("T")
END_TXN: Final = 4
"""The newest EndTxn of transaction protocol v1, which does not bump the epoch (before KIP-890)."""
_COORDINATOR_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


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
        response = client.to_node(node, request, ListTransactionsResponse)
        if response.error_code:
            raise KafkaError(response.error_code, f"transactions of broker {node}")
        if response.unknown_state_filters:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"no such transaction state: {', '.join(response.unknown_state_filters)}"
            )
        listed += [(node, state) for state in response.transaction_states]
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


def describe_transactions(client: Client, transactional_ids: Iterable[str]) -> dict[str, TransactionState]:
    """Return the state of many transactional ids; those that do not exist are missing."""
    names = list(dict.fromkeys(transactional_ids))
    client.find_coordinators(names, TRANSACTION)
    states: dict[str, TransactionState] = {}

    def attempt() -> None:
        by_node: dict[int, list[str]] = {}
        for name in names:
            if name not in states:
                by_node.setdefault(client.coordinator(name, TRANSACTION), []).append(name)
        problem: KafkaError | None = None
        for node, group in by_node.items():
            try:
                response = client.to_node(
                    node, DescribeTransactionsRequest(transactional_ids=group), DescribeTransactionsResponse
                )
            except ConnectionFailedError:
                for name in group:
                    client.forget_coordinator(name, TRANSACTION)
                raise
            for state in response.transaction_states:
                name = state.transactional_id
                if state.error_code not in (0, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                    client.forget_coordinator(name, TRANSACTION)
                    problem = KafkaError(state.error_code, f"transactional id {name}")
                else:
                    states[name] = state
        if problem is not None:
            raise problem

    client.retrying(attempt)
    return {name: state for name, state in states.items() if not state.error_code}


def end_transaction(
    client: Client, transactional_id: str, producer_id: int, producer_epoch: int, *, committed: bool
) -> None:
    """Commit or abort the transaction that another producer opened with this id and epoch.

    A commit of a committed transaction succeeds, as long as the transactional id has the same epoch.
    """
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=committed,
    )

    def send(node: int) -> None:
        connection = client.node(node)
        response = connection.send(request, EndTxnResponse, version=min(END_TXN, connection.best_version(26)))
        if response.error_code:
            raise KafkaError(response.error_code, f"end of the transaction of {transactional_id}")

    _with_coordinator(client, transactional_id, send)


def fence(client: Client, transactional_id: str, *, timeout_ms: int = 60_000) -> tuple[int, int]:
    """Abort an open transaction and bump the epoch; return producer id and epoch."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    def send(node: int) -> tuple[int, int]:
        response = client.to_node(node, request, InitProducerIdResponse)
        if response.error_code:
            raise KafkaError(response.error_code, f"transactional id {transactional_id}")
        return response.producer_id, response.producer_epoch

    return _with_coordinator(client, transactional_id, send)


def _with_coordinator(client: Client, transactional_id: str, send: Callable[[int], T]) -> T:
    """Send to the coordinator; find it again and retry if it has moved or closed the connection."""

    def attempt() -> T:
        try:
            return send(client.coordinator(transactional_id, TRANSACTION))
        except ConnectionFailedError:
            client.forget_coordinator(transactional_id, TRANSACTION)
            raise
        except KafkaError as error:
            if error.code in _COORDINATOR_MOVED:
                client.forget_coordinator(transactional_id, TRANSACTION)
            raise

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
    response = client.to_node(client.leader(topic, partition), request, WriteTxnMarkersResponse)
    code = response.markers[0].topics[0].partitions[0].error_code
    if code:
        raise KafkaError(code, f"{topic}-{partition}, producer {producer_id} epoch {producer_epoch}")
