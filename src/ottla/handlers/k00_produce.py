"""Produce (0): append record batches.

v7 allows zstd, v8 adds errors of single records, v9 is flexible, v10 adds the current leader (KIP-951), v12 adds
partitions to a transaction implicitly (KIP-890), v13 names topics by id. Versions 0 to 2 are advertised for old
librdkafka clients and rejected, as in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.session import Disconnect
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api, kafka_error
from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.records.batch import HEADER_SIZE, TRANSACTIONAL_FLAG
from ottla.records.compression import CompressionType
from ottla.records.errors import InvalidRecords
from ottla.records.validate import ValidationDeferredError, next_batch_size, only_batch, whole_batch_header
from ottla.storage.names import TopicPartition
from ottla.transactions.verification import produce_operation

if TYPE_CHECKING:
    from ottla.broker.partition import Partition
    from ottla.broker.session import Call
    from ottla.protocol.schema import Uuid
    from ottla.records.batch import BatchHeader
    from ottla.storage.log.log import Log
    from ottla.storage.log.validation import ValidatedRecords
    from ottla.transactions.verification import VerificationGuard

INLINE_RECORD_ERRORS = 1000  # a response with more is encoded in a worker
_Batch = tuple[memoryview, "BatchHeader | None"]
"""The records of one partition, and their header where they are exactly one batch of the current format."""
ADMIN_CLIENT = "__admin_client"
ATTRIBUTES_POSITION = 22  # of the attributes byte with the transactional flag


# Errors of batches that never reach a log; other errors also report the log start offset.
WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


def on_error(request: ProduceRequest, version: int, code: ErrorCode, message: str | None) -> ProduceResponse | None:
    """Return the same error for every partition."""
    if request.acks == 0:
        raise Disconnect(f"a produce with acks=0 failed: {code.name}")
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=-1, error_message=message
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@api(
    0,
    versions=(3, 13),
    advertised=(0, 13),
    acl=access.per_resource(access.on_topic(AclOperation.WRITE), access.on_transactional_id(AclOperation.WRITE)),
    on_error=on_error,
)
def produce(call: Call, request: ProduceRequest) -> ProduceResponse | Pending[ProduceResponse] | None:
    """Append to each partition; respond when the records are as durable as `acks` requires."""
    work = _Produce(call, request)
    work.find_partitions(work.read_batches())
    verification = work.ask_coordinator()
    if verification is None or verification.done:
        return work.append_all({} if verification is None else verification.response)
    # The coordinator answers in a later turn of the loop, when the frame is no longer valid.
    work.keep_records()
    pending: Pending[ProduceResponse] = Pending(verification.cancel)

    def verified(errors: dict[TopicPartition, KafkaError]) -> None:
        work.check_partitions_again()
        response = work.append_all(errors)
        assert response is not None, "a transactional producer always wants an answer"
        if isinstance(response, Pending):
            response.on_complete(pending.complete)
        else:
            pending.complete(response)

    verification.on_complete(verified)
    return pending


@dataclass(slots=True, eq=False)
class _Entry:
    """One partition of a request in progress: its batch, and its partition or error."""

    response: PartitionProduceResponse
    name: str
    topic_id: Uuid
    records: Any
    partition: Partition | None = None
    header: BatchHeader | None = None
    guard: VerificationGuard | None = None
    validated: ValidatedRecords | None = None


class _Produce:
    """One produce request in progress."""

    def __init__(self, call: Call, request: ProduceRequest) -> None:
        self.call = call
        self.request = request
        self.response = ProduceResponse()
        self.operation = produce_operation(call.version)
        self._entries: list[_Entry] = []
        self._endpoints: dict[int, NodeEndpoint] = {}
        self._failed: str | None = None

    def read_batches(self) -> dict[tuple[str, Uuid], dict[int, _Batch]]:
        """Return the batches by topic and partition, each header parsed once; of a repeated partition take the last.

        Transactional batches require WRITE on the transactional id. Bytes that are not a batch fail the whole request.
        """
        batches: dict[tuple[str, Uuid], dict[int, _Batch]] = {}
        transactional = False
        for topic in self.request.topic_data:
            for data in topic.partition_data:
                records = memoryview(b"" if data.records is None else data.records)
                header = whole_batch_header(records)
                if _is_transactional(records) if header is None else header.is_transactional:
                    transactional = True
                batches.setdefault((topic.name, topic.topic_id), {})[data.index] = records, header
        if transactional:
            transactional_id = self.request.transactional_id
            if transactional_id is None:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            self.call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        return batches

    def find_partitions(self, batches: dict[tuple[str, Uuid], dict[int, _Batch]]) -> None:
        """Find the partition of each batch; a partition that cannot be written to gets its error."""
        for (topic_name, topic_id), partitions in batches.items():
            responses: list[PartitionProduceResponse] = []
            self.response.responses.append(
                TopicProduceResponse(name=topic_name, topic_id=topic_id, partition_responses=responses)
            )
            for index, (records, header) in partitions.items():
                response = PartitionProduceResponse(index=index)
                responses.append(response)
                entry = _Entry(response, topic_name, topic_id, records)
                self._entries.append(entry)
                try:
                    name = _name(self.call, topic_name, topic_id)
                    partition = self.call.broker.partition(name, index)
                    entry.records, entry.header = _check_records(self.call, records, header)
                    if self.request.acks not in (-1, 0, 1):
                        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                    _check_writable(self.call, partition)
                    entry.partition = partition
                except KafkaError as error:
                    self._fail(entry, error)
        transactional = [entry for entry in self._entries if entry.header is not None and entry.header.is_transactional]
        if len({entry.header.producer_id for entry in transactional if entry.header is not None}) > 1:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
            )

    def ask_coordinator(self) -> Pending[dict[TopicPartition, KafkaError]] | None:
        """Add or verify the partitions that a transaction writes to first (KIP-890); None if there are none."""
        transactional_id = self.request.transactional_id
        verifier = self.call.broker.verifier
        if transactional_id is None or not verifier.needed(transactional_id, self.operation):
            return None
        unverified: list[TopicPartition] = []
        producer = (-1, -1)
        for entry in self._entries:
            partition, header = entry.partition, entry.header
            if partition is None or header is None or not header.is_transactional:
                continue
            producer = (header.producer_id, header.producer_epoch)
            try:
                entry.guard = partition.begin_verification(header, self.operation.supports_epoch_bump)
            except KafkaError as error:
                self._fail(entry, error)
                continue
            if entry.guard is not None:
                unverified.append(TopicPartition(partition.topic, partition.index))
        if not unverified:
            return None
        return verifier.before_produce(transactional_id, *producer, unverified, self.operation)

    def keep_records(self) -> None:
        """Copy the batches out of the frame, whose buffer is reused."""
        for entry in self._entries:
            if entry.partition is not None:
                entry.records = bytearray(entry.records)

    def check_partitions_again(self) -> None:
        """Refuse batches whose topic was deleted or whose leader moved while the request waited."""
        broker = self.call.broker
        for entry in self._entries:
            partition = entry.partition
            if partition is None:
                continue
            try:
                if broker.partition(partition.topic, partition.index) is not partition:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                _check_writable(self.call, partition)
            except KafkaError as error:
                self._fail(entry, error)

    def append_all(
        self, refused: dict[TopicPartition, KafkaError]
    ) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Append all batches without errors, and respond."""
        written: list[Log] = []
        deferred = self._append_entries(self._entries, refused, written)
        if deferred:
            return self._append_later(deferred, refused, written)
        return self._respond(written)

    def _append_entries(
        self, entries: list[_Entry], refused: dict[TopicPartition, KafkaError], written: list[Log]
    ) -> list[_Entry]:
        """Append batches to their partitions; return those that have to be validated in a worker first."""
        deferred = []
        for entry in entries:
            partition = entry.partition
            if partition is None:
                continue
            problem = refused.get(TopicPartition(partition.topic, partition.index)) if refused else None
            if problem is not None and entry.guard is not None:
                self._fail(entry, problem)
                entry.response.error_message = problem.message
                continue
            try:
                self._append(partition, entry)
                written.append(partition.log)
            except ValidationDeferredError:
                deferred.append(entry)
            except KafkaError as error:
                self._fail(entry, error)
                if error.code not in WITHOUT_LOG_START:
                    entry.response.log_start_offset = partition.log.log_start_offset
        return deferred

    def _append_later(
        self, deferred: list[_Entry], refused: dict[TopicPartition, KafkaError], written: list[Log]
    ) -> Pending[Any]:
        """Validate batches in a worker, then append them; the connection's next request waits for that.

        If the client disconnects meanwhile, its records are appended all the same, as in Kafka.
        """
        pending: Pending[Any] = Pending()
        if not self.call.owns_frame:
            for entry in deferred:
                entry.records = bytearray(entry.records)
        waiting = list(deferred)

        def validate_next() -> None:
            entry = waiting.pop(0)
            assert entry.partition is not None
            work = entry.partition.log.validation_ahead(entry.records)
            self.call.broker.runtime.world.workers.submit_request(work, partial(validated, entry))

        def validated(entry: _Entry, result: ValidatedRecords | None, error: Exception | None) -> None:
            self.check_partitions_again()
            if entry.partition is not None and error is not None:
                code, message = kafka_error(error)
                self._fail(entry, error if isinstance(error, KafkaError) else KafkaError(code, message))
            elif entry.partition is not None:
                entry.validated = result
                waiting.extend(self._append_entries([entry], refused, written))
            if waiting:
                validate_next()
                return
            try:
                response = self._respond(written)
            except Disconnect as reason:
                self.call.session.close(str(reason))
                response = None
            if isinstance(response, Pending):
                response.on_complete(pending.complete)
            else:
                pending.complete(response)

        validate_next()
        return pending

    def _respond(self, written: list[Log]) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Respond once everything is appended: at once, or with --sync when it is durable."""
        self.response.node_endpoints = list(self._endpoints.values())
        if self.request.acks == 0:
            if self._failed is not None:
                raise Disconnect(f"a produce with acks=0 failed: {self._failed}")
            return None
        broker = self.call.broker
        if not written or not broker.runtime.sync:
            return self.response
        return broker.when_durable(written, self.response, self._not_durable)

    def _append(self, partition: Partition, entry: _Entry) -> None:
        header = entry.header
        assert header is not None
        result = partition.append(
            entry.records,
            acks=self.request.acks,
            verified=partition.is_verified(header, entry.guard),
            supports_epoch_bump=entry.guard is not None and self.operation.supports_epoch_bump,
            may_defer=True,
            validated=entry.validated,
            parsed_header=header,
        )
        if header.is_transactional:
            partition.verifications.appended(header.producer_id, header.producer_epoch, is_control=False)
        response = entry.response
        response.base_offset = result.first_offset
        response.log_append_time_ms = result.log_append_time_ms
        response.log_start_offset = result.log_start_offset

    def _fail(self, entry: _Entry, error: KafkaError) -> None:
        entry.partition = None
        response = entry.response
        response.error_code = error.code
        response.base_offset = -1
        self._failed = error.code.name
        if (
            isinstance(error, InvalidRecords) and error.record_errors
        ):  # Kafka sends messages for errors of single records only.
            response.error_message = error.message
            self.call.large_response = len(error.record_errors) > INLINE_RECORD_ERRORS
            response.record_errors = [
                BatchIndexAndErrorMessage(
                    batch_index=record_error.batch_index, batch_index_error_message=record_error.message
                )
                for record_error in error.record_errors
            ]
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.call.version >= 10:
            self._add_leader(entry)

    def _add_leader(self, entry: _Entry) -> None:
        """Add the current leader and its endpoint to the response (KIP-951)."""
        call = self.call
        hint = call.broker.leader_hint(call.session.listener, entry.name, entry.topic_id, entry.response.index)
        if hint is not None:
            entry.response.current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
            self._endpoints[hint.leader] = NodeEndpoint(
                node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack
            )

    def _not_durable(self) -> ProduceResponse:
        for topic in self.response.responses:
            for response in topic.partition_responses:
                if response.error_code == ErrorCode.NONE:
                    response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                    response.base_offset = -1
        return self.response


def _is_transactional(records: memoryview) -> bool:
    size = next_batch_size(records)
    return size is not None and size >= HEADER_SIZE and records[ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG != 0


def _check_records(call: Call, records: memoryview, header: BatchHeader | None) -> tuple[memoryview, BatchHeader]:
    """Return the one batch of the current format that a partition's records are, with its header."""
    batch = records
    if header is None:
        batch, header = only_batch(records)
    if header.compression == CompressionType.ZSTD and call.version < 7:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    return batch, header


def _name(call: Call, name: str, topic_id: Uuid) -> str:
    """Return the name of a topic that the principal may write to."""
    if call.version >= 13:
        topic = call.broker.runtime.image.topics.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        name = topic.name
    call.require(AclOperation.WRITE, ResourceType.TOPIC, name)
    return name


def _check_writable(call: Call, partition: Partition) -> None:
    broker = call.broker
    if broker.runtime.is_internal(partition.topic) and call.client_id != ADMIN_CLIENT:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}")
    if partition.state.leader != broker.node_id:
        raise broker.not_served(partition)
