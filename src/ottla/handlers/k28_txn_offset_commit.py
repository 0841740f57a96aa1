"""TxnOffsetCommit (API 28): commit a group's offsets as part of a transaction.

v2 adds leader epochs, v3 is flexible and adds the member (KIP-447), v4 adds TRANSACTION_ABORTABLE, v5 adds the group's
partition to the transaction implicitly (KIP-890).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ottla.cluster.internal_topics import GROUP_METADATA_TOPIC
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.groups import error_responses
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.groups import merge_topics, request_context, split
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.records.batch import NO_SEQUENCE
from ottla.storage.names import TopicPartition
from ottla.transactions.verification import txn_offset_commit_operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.partition import Partition
    from ottla.broker.session import Call
    from ottla.transactions.verification import SupportedOperation, VerificationGuard

FIRST_VERSION_WITH_LOAD_IN_PROGRESS = 2
NAME = attrgetter("name")

# Errors of the log and of the transaction coordinator, as a group coordinator answers them.
_COORDINATOR_ERRORS = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def on_error(
    request: TxnOffsetCommitRequest, version: int, code: ErrorCode, message: str | None
) -> TxnOffsetCommitResponse:
    """Return the same error for all partitions."""
    if version < FIRST_VERSION_WITH_LOAD_IN_PROGRESS and code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error_responses.txn_offset_commit(request, code)


@api(
    28,
    versions=(0, 5),
    acl=access.transactional_id(
        AclOperation.WRITE, access.on_group(AclOperation.READ), access.on_topic(AclOperation.READ)
    ),
    on_error=on_error,
)
def txn_offset_commit(call: Call, request: TxnOffsetCommitRequest) -> Pending[TxnOffsetCommitResponse]:
    """Commit offsets of existing partitions, once the group's partition is part of the transaction."""
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    known: list[TxnOffsetCommitRequestTopic] = []
    refused: list[TxnOffsetCommitResponseTopic] = []
    for topic in request.topics:
        _sort_out(call, topic, known, refused)
    pending: Pending[TxnOffsetCommitResponse] = Pending()
    if not known:
        pending.complete(TxnOffsetCommitResponse(topics=merge_topics(refused, NAME)))
        return pending
    request.topics = known

    def committed(response: TxnOffsetCommitResponse) -> None:
        if refused:
            response.topics = merge_topics([*refused, *response.topics], NAME)
        pending.complete(response)

    def failed(code: ErrorCode) -> None:
        committed(on_error(request, call.version, _COORDINATOR_ERRORS.get(code, code), None))

    def commit(partition: Partition, guard: VerificationGuard | None) -> None:
        producer_id, epoch = request.producer_id, request.producer_epoch
        if guard is not None and not partition.verifications.may_append(producer_id, guard):
            failed(ErrorCode.INVALID_TXN_STATE)
            return
        response = call.broker.groups.commit_transactional_offsets(request_context(call), request)
        if partition.log.has_ongoing_transaction(producer_id, epoch):
            partition.verifications.appended(producer_id, epoch, is_control=False)
        if isinstance(response, Pending):
            response.on_complete(committed)
        else:
            committed(response)

    try:
        _verify(call, request, commit, failed)
    except KafkaError as error:
        failed(error.code)
    return pending


def _verify(
    call: Call,
    request: TxnOffsetCommitRequest,
    commit: Callable[[Partition, VerificationGuard | None], None],
    failed: Callable[[ErrorCode], None],
) -> None:
    """Add the group's partition to the transaction, or verify it, and then commit."""
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    broker = call.broker
    partition = broker.leader_partition(GROUP_METADATA_TOPIC, broker.groups.partition_for(request.group_id))
    operation = txn_offset_commit_operation(call.version)
    guard = None
    if broker.verifier.needed(request.transactional_id, operation):
        guard = _start(partition, request, operation)
    if guard is None:
        commit(partition, None)
        return
    topic_partition = TopicPartition(partition.topic, partition.index)

    def verified(errors: dict[TopicPartition, ErrorCode]) -> None:
        if errors:
            failed(errors[topic_partition])
        else:
            commit(partition, guard)

    broker.verifier.add_or_verify(
        request.transactional_id, request.producer_id, request.producer_epoch, [topic_partition], operation
    ).on_complete(verified)


def _start(
    partition: Partition, request: TxnOffsetCommitRequest, operation: SupportedOperation
) -> VerificationGuard | None:
    log = partition.log
    ongoing = log.has_ongoing_transaction(request.producer_id, request.producer_epoch)
    known = log.producers.producers.get(request.producer_id)
    return partition.verifications.start(
        request.producer_id,
        request.producer_epoch,
        NO_SEQUENCE,
        log.env.clock.now_ms(),
        known_epoch=None if known is None else known.producer_epoch,
        ongoing=ongoing,
        supports_epoch_bump=operation.supports_epoch_bump,
    )


def _sort_out(
    call: Call,
    topic: TxnOffsetCommitRequestTopic,
    known: list[TxnOffsetCommitRequestTopic],
    refused: list[TxnOffsetCommitResponseTopic],
) -> None:
    allowed = call.may_topic(AclOperation.READ, topic.name)
    described = call.broker.runtime.image.topic(topic.name) if allowed else None
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    existing = described.partitions if described is not None else {}
    right, wrong = split(topic.partitions, lambda partition: partition.partition_index in existing)
    if wrong:
        refused.append(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
                    for partition in wrong
                ],
            )
        )
    if right:
        topic.partitions = right
        known.append(topic)
