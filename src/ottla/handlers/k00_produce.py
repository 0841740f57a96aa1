"""Produce (0): append record batches.

v7 allows zstd, v8 adds errors of single records, v9 is flexible, v10 adds the current leader, v12 adds partitions to a
transaction implicitly (KIP-890), v13 names topics by id. Versions 0 to 2 are advertised for old clients that look for
them, and refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.session import Disconnect
from ottla.handlers.registry import api
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.errors import InvalidRecords

if TYPE_CHECKING:
    from ottla.broker.partition import Partition
    from ottla.broker.session import Call
    from ottla.pending import Pending
    from ottla.protocol.schema import Uuid

MAGIC = 16
COMPRESSION = 22
ZSTD = 4


def on_error(request: ProduceRequest, version: int, code: ErrorCode, message: str | None) -> ProduceResponse | None:
    """Every partition failed with the same error."""
    if request.acks == 0:
        raise Disconnect(f"a produce with acks=0 failed: {code.name}")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1, error_message=message)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@api(0, versions=(3, 13), advertised=(0, 13), on_error=on_error)
def produce(call: Call, request: ProduceRequest) -> ProduceResponse | Pending[ProduceResponse] | None:
    """Append to each partition; answer when it is as safe as was asked for."""
    broker = call.broker
    response = ProduceResponse()
    endpoints: dict[int, NodeEndpoint] = {}
    written: list[Partition] = []
    failed: str | None = None
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        response.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=answers)
        )
        for data in topic.partition_data:
            try:
                if request.acks not in (-1, 0, 1):
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                partition = _find(call, topic.name, topic.topic_id, data.index)
                answers.append(_append(call, request, partition, data))
                written.append(partition)
            except KafkaError as error:
                answer = _failure(data.index, error)
                answers.append(answer)
                failed = error.code.name
                if call.version >= 10 and error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    _add_leader(call, topic.name, topic.topic_id, answer, endpoints)
    response.node_endpoints = list(endpoints.values())
    if request.acks == 0:
        if failed is not None:
            raise Disconnect(f"a produce with acks=0 failed: {failed}")
        return None
    if not broker.cluster.sync or not written:
        return response
    logs = [partition.log for partition in written]
    return broker.when_durable(logs, response, lambda: _not_durable(response))


def _not_durable(response: ProduceResponse) -> ProduceResponse:
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NONE:
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                answer.base_offset = -1
    return response


def _find(call: Call, name: str, topic_id: Uuid, index: int) -> Partition:
    broker = call.broker
    if call.version >= 13:
        topic = broker.cluster.image.topics.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = topic.name
    if broker.cluster.is_internal(name) and call.client_id != "__admin_client":
        broker.partition(name, index)
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {name}")
    return broker.leader_partition(name, index)


def _append(
    call: Call, request: ProduceRequest, partition: Partition, data: PartitionProduceData
) -> PartitionProduceResponse:
    records = data.records
    if records is None or not len(records):
        raise KafkaError(
            ErrorCode.INVALID_RECORD, "Produce requests with version >= 3 must have one record batch per partition"
        )
    if len(records) > COMPRESSION and records[MAGIC] == 2 and records[COMPRESSION] & 7 == ZSTD and call.version < 7:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests before version 7 cannot use zstd compression"
        )
    transaction = call.broker.produce_in_transaction(call.version, request.transactional_id, partition, records)
    result = partition.append(
        records,
        acks=request.acks,
        verified=transaction.verified,
        supports_epoch_bump=transaction.supports_epoch_bump,
        transaction_version=transaction.version,
    )
    return PartitionProduceResponse(
        index=data.index,
        base_offset=result.first_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _failure(index: int, error: KafkaError) -> PartitionProduceResponse:
    answer = PartitionProduceResponse(index=index, error_code=error.code, base_offset=-1, error_message=error.message)
    if isinstance(error, InvalidRecords):
        answer.record_errors = [
            BatchIndexAndErrorMessage(batch_index=each.batch_index, batch_index_error_message=each.message)
            for each in error.record_errors
        ]
    return answer


def _add_leader(
    call: Call, name: str, topic_id: Uuid, answer: PartitionProduceResponse, endpoints: dict[int, NodeEndpoint]
) -> None:
    """Tell where the leader is, so that the client need not ask (KIP-951)."""
    hint = call.broker.leader_hint(call.session.listener, name, topic_id, answer.index)
    if hint is not None:
        answer.current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
        endpoints[hint.leader] = NodeEndpoint(node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack)
