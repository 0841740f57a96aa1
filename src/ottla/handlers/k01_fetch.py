"""Fetch (1): read record batches, waiting for min_bytes if needed.

v5 adds the log start offset, v7 fetch sessions (KIP-227), v9 leader epochs, v11 preferred replicas (KIP-392), v12 is
flexible and adds diverging epochs, v13 names topics by id, v15 moves the replica state into a tag, v16 adds the current
leader (KIP-951), v17 directory ids and v18 the high watermark of followers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.fetch.delayed_fetch import DelayedFetch
from ottla.broker.throttle import most_to_fetch
from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers import access
from ottla.handlers.registry import api, kafka_error
from ottla.pending import Pending
from ottla.pieces import run_in_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k01_fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ottla.broker.fetch.fetch_sessions import FetchContext, FetchedPartition
    from ottla.broker.partition import Partition
    from ottla.broker.session import Call

READ_COMMITTED = 1

MANY_PARTITIONS = 200
"""A fetch with more partitions reads them in pieces."""
MANY_PARTITIONS_BYTES = 32 * MANY_PARTITIONS
"""A smaller request has fewer partitions, although its session may have more."""
READ_TOGETHER = 20
READ_WORK = 25
"""Units of work (`ottla.pieces`) of one partition."""

LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# Errors before a log is read; the partition's response has Kafka's empty values.
NEVER_READ = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


def on_error(request: FetchRequest, version: int, code: ErrorCode, message: str | None) -> FetchResponse:
    """Return the error; before v13 for every partition too. A session error closes the session."""
    if code in SESSION_ERRORS:
        return FetchResponse(error_code=code)
    if version >= 13:
        return FetchResponse(error_code=code, session_id=request.session_id)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[_unknown(partition.partition, code) for partition in topic.partitions],
            )
            for topic in request.topics
        ],
    )
    if version >= 7:
        response.error_code, response.session_id = code, request.session_id
    return response


@api(1, versions=(4, 18), acl=access.per_resource(access.on_topic(AclOperation.READ)), on_error=on_error)
def fetch(call: Call, request: FetchRequest) -> FetchResponse | Pending[FetchResponse]:
    """Respond with the readable records, or wait until `min_bytes` are readable or `max_wait_ms` have passed."""
    broker = call.broker
    replica = request.replica_id if call.version < 15 else request.replica_state.replica_id
    if replica >= 0:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    sessions = broker.fetch_sessions
    context = None
    if call.size < MANY_PARTITIONS_BYTES:
        context = sessions.context(request, call.version)
    if context is None or len(context.partitions) > MANY_PARTITIONS:
        return run_in_pieces(
            broker.runtime.world.clock,
            _fetch_many(call, request, context),
            lambda error: on_error(request, call.version, *kafka_error(error)),
        )
    attempt = _Attempt(call, request, context)
    attempt.read()
    return _respond_or_wait(call, request, context, attempt)


def _fetch_many(
    call: Call, request: FetchRequest, context: FetchContext | None
) -> Generator[int, None, FetchResponse | Pending[FetchResponse]]:
    """Read many partitions; yield the units of work done."""
    if context is None:
        context = yield from call.broker.fetch_sessions.context_in_pieces(request, call.version)
    call.large_response = True
    attempt = _Attempt(call, request, context)
    partitions = context.partitions
    try:
        for start in range(0, len(partitions), READ_TOGETHER):
            attempt.read(partitions[start : start + READ_TOGETHER])
            yield READ_WORK * READ_TOGETHER
        return _respond_or_wait(call, request, context, attempt)
    except GeneratorExit:
        attempt.release()
        raise


def _respond_or_wait(
    call: Call, request: FetchRequest, context: FetchContext, attempt: _Attempt
) -> FetchResponse | Pending[FetchResponse]:
    broker = call.broker
    if attempt.satisfied or request.max_wait_ms <= 0:
        return attempt.response()
    attempt.release()
    pending: Pending[FetchResponse] = Pending(lambda: wait.cancel())

    def ready() -> None:
        again = _Attempt(call, request, context)
        again.read()
        pending.complete(again.response())

    wait = DelayedFetch(
        broker.runtime.world.clock,
        attempt.waiting,
        min_bytes=attempt.min_bytes,
        max_wait_ms=request.max_wait_ms,
        read_committed=attempt.read_committed,
        on_complete=ready,
    )
    return pending


class _Attempt:
    """One attempt to read all partitions of a fetch."""

    __slots__ = (
        "bytes",
        "call",
        "context",
        "max_bytes",
        "min_bytes",
        "must_answer",
        "rack",
        "read_committed",
        "responses",
        "waiting",
    )

    def __init__(self, call: Call, request: FetchRequest, context: FetchContext) -> None:
        self.call = call
        self.context = context
        self.max_bytes = min(request.max_bytes, call.broker.config_int("fetch.max.bytes"))
        if call.broker.quotas.active:
            self.max_bytes = min(self.max_bytes, most_to_fetch(call))
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.rack = request.rack_id
        self.responses: list[tuple[FetchedPartition, PartitionData]] = []
        self.waiting: dict[Partition, tuple[int, int, int]] = {}
        self.bytes = 0
        self.must_answer = not context.partitions

    @property
    def satisfied(self) -> bool:
        """Return whether the response is due now."""
        return self.must_answer or self.bytes >= self.min_bytes

    def read(self, partitions: Sequence[FetchedPartition] | None = None) -> None:
        """Read one partition after the other until the response is full; all of the request unless some are given."""
        for requested in self.context.partitions if partitions is None else partitions:
            try:
                response = self._read_one(requested)
            except KafkaError as error:
                response = _unknown(requested.partition, error.code)
                self.must_answer = True
            self.responses.append((requested, response))

    def _read_one(self, requested: FetchedPartition) -> PartitionData:
        broker = self.call.broker
        self._check(requested)
        partition = broker.readable_partition(
            requested.topic, requested.topic_id, requested.partition, self.call.version
        )
        if requested.current_leader_epoch >= 0:  # In Fetch only, any negative epoch means none.
            partition.check_leader_epoch(requested.current_leader_epoch)
        log = partition.log
        response = PartitionData(
            partition_index=requested.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self.read_committed else None,
            records=b"",
        )
        if requested.last_fetched_epoch >= 0 and self._diverges(partition, requested, response):
            self.must_answer = True
            return response
        preferred = broker.preferred_replica(partition, self.rack, self.call)
        if preferred is not None:
            response.preferred_read_replica = preferred
            self.must_answer = True
            return response
        remaining = self.max_bytes - self.bytes
        log_read = log.read(
            requested.fetch_offset,
            max(min(requested.max_bytes, remaining), 0),
            partition.readable_end(self.read_committed),
            min_one_batch=self.bytes == 0,
            aborted=self.read_committed,
        )
        if log_read.records is not None and len(log_read):
            response.records = log_read.records
            self.bytes += len(log_read)
        if log_read.aborted:
            response.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in log_read.aborted
            ]
        self.waiting[partition] = (requested.fetch_offset, requested.max_bytes, len(log_read))
        return response

    def _check(self, requested: FetchedPartition) -> None:
        call, name = self.call, requested.topic
        if call.broker.runtime.authorizer is None:
            return
        if call.version >= 13:
            topic = call.broker.runtime.image.topics.get(requested.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = topic.name
        call.require(AclOperation.READ, ResourceType.TOPIC, name)

    @staticmethod
    def _diverges(partition: Partition, requested: FetchedPartition, response: PartitionData) -> bool:
        """Return whether the client's log diverges: its last epoch ended earlier in this log (KIP-595)."""
        epoch, end = partition.log.end_offset_for_epoch(requested.last_fetched_epoch)
        if epoch < 0 or end < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < requested.last_fetched_epoch or end < requested.fetch_offset:
            response.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
            return True
        return False

    def release(self) -> None:
        """Release the records that were read."""
        for _, response in self.responses:
            if response.records:
                response.records.release()

    def response(self) -> FetchResponse:
        """Build the response in the order of the request."""
        call = self.call
        response = FetchResponse(session_id=self.context.session_id)
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        endpoints: dict[int, NodeEndpoint] = {}
        for requested, partition_data in self.context.included(self.responses):
            if partition_data.error_code in LEADER_ERRORS and call.version >= 12:
                self._add_leader(requested, partition_data, endpoints)
            key = (requested.topic, requested.topic_id)
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=requested.topic, topic_id=requested.topic_id)
                response.responses.append(topic)
            topic.partitions.append(partition_data)
        if call.version >= 16:
            response.node_endpoints = list(endpoints.values())
        return response

    def _add_leader(
        self, requested: FetchedPartition, response: PartitionData, endpoints: dict[int, NodeEndpoint]
    ) -> None:
        broker = self.call.broker
        hint = broker.leader_hint(self.call.session.listener, requested.topic, requested.topic_id, requested.partition)
        if hint is not None:
            response.current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
            endpoints[hint.leader] = NodeEndpoint(node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack)


def _unknown(index: int, code: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=[] if code in NEVER_READ else None,
        records=b"",
    )
