"""AddPartitionsToTxn (API 24): add partitions to a transaction before writing to them.

v2 adds PRODUCER_FENCED, v3 is flexible. Clients send v3 and below. Brokers send v4 and v5 to add or verify partitions
of several transactions for their producers (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import CLUSTER_RESOURCE_NAME, AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api, kafka_error
from ottla.handlers.splitting import divide_by
from ottla.pending import Pending, completed_with
from ottla.pieces import run_in_pieces, run_to_end
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.storage.names import TopicPartition
from ottla.transactions.states import add_partitions_version, fencing_error

if TYPE_CHECKING:
    from collections.abc import Generator

    from ottla.broker.session import Call

FIRST_BROKER_VERSION = 4
MANY_PARTITIONS = 500
CHECK_WORK = 5
"""Units of work (`ottla.pieces`) of one partition."""

Errors = dict[TopicPartition, ErrorCode]
Results = list[AddPartitionsToTxnTopicResult]


def on_error(
    request: AddPartitionsToTxnRequest, version: int, code: ErrorCode, message: str | None
) -> AddPartitionsToTxnResponse:
    """Return the same error for all partitions."""
    if version >= FIRST_BROKER_VERSION:
        return AddPartitionsToTxnResponse(error_code=code)
    return _client_response(_same_error(_client_transaction(request), code))


@api(
    24,
    versions=(0, 5),
    acl=access.per_resource(
        access.on_transactional_id(AclOperation.WRITE),
        access.on_topic(AclOperation.WRITE),
        access.on_cluster(AclOperation.CLUSTER_ACTION),
    ),
    on_error=on_error,
    split=divide_by("transactions"),
)
def add_partitions_to_txn(
    call: Call, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]:
    """Add or verify the partitions of each transaction; respond when all results are known."""
    if call.version < FIRST_BROKER_VERSION:
        return run_in_pieces(
            call.broker.runtime.world.clock,
            _add_for_client(call, _client_transaction(request)),
            lambda error: on_error(request, call.version, *kafka_error(error)),
        )
    call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_RESOURCE_NAME)
    transactions: dict[str, AddPartitionsToTxnTransaction] = {}
    for transaction in request.transactions:
        transactions.setdefault(transaction.transactional_id, transaction)
    if not transactions:
        return completed_with(AddPartitionsToTxnResponse())
    results: dict[str, Results] = {}
    response: Pending[AddPartitionsToTxnResponse] = Pending()

    def decided(transactional_id: str, topic_results: Results) -> None:
        results[transactional_id] = topic_results
        if len(results) == len(transactions):
            response.complete(_broker_response({name: results[name] for name in transactions}))

    for transactional_id, transaction in transactions.items():
        run_to_end(_decide(call, transaction)).on_complete(partial(decided, transactional_id))
    return response


def _add_for_client(
    call: Call, transaction: AddPartitionsToTxnTransaction
) -> Generator[int, None, AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]]:
    decided = yield from _decide(call, transaction)
    return decided.map(_client_response)


def _decide(call: Call, transaction: AddPartitionsToTxnTransaction) -> Generator[int, None, Pending[Results]]:
    """Check all partitions of a transaction, then add them; yield the units of work done."""
    if call.version < FIRST_BROKER_VERSION and not call.may(
        AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transaction.transactional_id
    ):
        return completed_with(_same_error(transaction, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    partitions: Errors = {}
    for topic in transaction.topics:
        for index in topic.partitions:
            topic_partition = TopicPartition(topic.name, index)
            partitions[topic_partition] = _partition_error(call, topic_partition)
            yield CHECK_WORK
    call.large_response = call.large_response or len(partitions) > MANY_PARTITIONS
    if any(partitions.values()):
        results = yield from _refuse(partitions)
        return completed_with(results)
    producer = (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch)
    coordinator = call.broker.transactions
    if transaction.verify_only:
        return completed_with(_by_topic(coordinator.verify_partitions(*producer, partitions)))
    added = coordinator.add_partitions(*producer, partitions, add_partitions_version(call.version))
    return added.map(lambda code: _same_error(transaction, fencing_error(code, call.api_key, call.version)))


def _refuse(errors: Errors) -> Generator[int, None, Results]:
    """Return the errors by topic; all partitions of a transaction are added, or none."""
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for topic_partition, code in errors.items():
        _add_result(topics, topic_partition, code or ErrorCode.OPERATION_NOT_ATTEMPTED)
        yield CHECK_WORK
    return list(topics.values())


def _partition_error(call: Call, topic_partition: TopicPartition) -> ErrorCode:
    if call.version < FIRST_BROKER_VERSION and (
        call.broker.runtime.is_internal(topic_partition.topic)
        or not call.may_topic(AclOperation.WRITE, topic_partition.topic)
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if call.broker.runtime.image.partition(topic_partition.topic, topic_partition.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _client_transaction(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def _client_response(results: Results) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _broker_response(results: dict[str, Results]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topic_results)
            for transactional_id, topic_results in results.items()
        ]
    )


def _same_error(transaction: AddPartitionsToTxnTransaction, code: ErrorCode) -> Results:
    """Return one error for all partitions as requested; duplicates are answered twice, as in Kafka."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                for index in topic.partitions
            ],
        )
        for topic in transaction.topics
    ]


def _by_topic(errors: Errors) -> Results:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for topic_partition, code in errors.items():
        _add_result(topics, topic_partition, code)
    return list(topics.values())


def _add_result(
    topics: dict[str, AddPartitionsToTxnTopicResult], topic_partition: TopicPartition, code: ErrorCode
) -> None:
    topic = topics.get(topic_partition.topic)
    if topic is None:
        topic = topics[topic_partition.topic] = AddPartitionsToTxnTopicResult(name=topic_partition.topic)
    topic.results_by_partition.append(
        AddPartitionsToTxnPartitionResult(partition_index=topic_partition.partition, partition_error_code=code)
    )
