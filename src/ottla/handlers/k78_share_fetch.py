"""ShareFetch (API 78): acknowledge records of a share group member, and acquire more for it (KIP-932).

v1 is the first supported version; v2 adds strict record limits (KIP-1206) and the renewal of acquisition locks
(KIP-1222), which fetches nothing because waiting might outlast the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.share.fetch import ShareFetch, ShareFetchLimits, error_data, release, rotated
from ottla.broker.throttle import most_to_fetch
from ottla.cluster.security.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_acknowledgements import (
    LEADER_ERRORS,
    Acknowledgements,
    find_leader,
    read_session_key,
    refusal,
)
from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k78_share_fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.shares.acquire import BATCH_OPTIMIZED, RECORD_LIMIT
from ottla.shares.sessions import FINAL_EPOCH, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.session import Call
    from ottla.broker.share.fetch import ShareFetchData
    from ottla.handlers.shared.share_acknowledgements import Outcome
    from ottla.shares.sessions import SessionKey, ShareContext


def on_error(request: ShareFetchRequest, version: int, code: ErrorCode, message: str | None) -> ShareFetchResponse:
    """Return a top-level error; Kafka sends no error message."""
    return ShareFetchResponse(error_code=code)


@api(
    78,
    versions=(1, 2),
    acl=access.per_resource(access.on_group(AclOperation.READ), access.on_topic(AclOperation.READ)),
    on_error=on_error,
)
def share_fetch(call: Call, request: ShareFetchRequest) -> ShareFetchResponse | Pending[ShareFetchResponse]:
    """Acknowledge, then acquire records or wait for some; respond when both are complete."""
    session_key = read_session_key(call, request)
    renews = call.version >= 2 and request.is_renew_ack
    if renews and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    shares = call.broker.share_partitions
    acknowledgements = Acknowledgements.of(request)
    try:
        context = shares.sessions.context(
            session_key,
            request.share_session_epoch,
            list(acknowledgements.by_partition),
            (
                TopicIdPartition(topic.topic_id, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ),
            call.session.id,
            acknowledges=bool(acknowledgements),
        )
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED and request.max_wait_ms > 0:
            return _later(call, request.max_wait_ms, ShareFetchResponse(error_code=error.code))
        raise
    acknowledged: Pending[Outcome] = completed_with({})
    if acknowledgements:
        acknowledged = acknowledgements.apply(call, session_key, renews=renews)
    fetched: Pending[ShareFetchData] = completed_with({}) if renews else _fetch(call, request, session_key, context)
    return _ResponseBuilder(call, request, session_key, context).when(acknowledged, fetched)


def _fetch(
    call: Call, request: ShareFetchRequest, session_key: SessionKey, context: ShareContext
) -> Pending[ShareFetchData]:
    refused: ShareFetchData = {}
    readable: list[TopicIdPartition] = []
    for topic_partition in context.partitions:
        error = refusal(call, topic_partition)
        if error is None:
            readable.append(topic_partition)
        else:
            refused[topic_partition] = error_data(topic_partition, error)
    if not readable:
        return completed_with(refused)
    broker = call.broker
    max_bytes = min(request.max_bytes, broker.config_int("fetch.max.bytes"))
    if broker.quotas.active:
        max_bytes = min(max_bytes, most_to_fetch(call))
    limits = ShareFetchLimits(
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max_bytes,
        max_records=request.max_records,
        batch_size=request.batch_size,
        mode=request.share_acquire_mode,
    )
    fetch = ShareFetch(broker.share_partitions, session_key, limits, broker.runtime.world.clock)
    return fetch.start(rotated(readable, request.share_session_epoch)).map(lambda fetched: {**fetched, **refused})


def _later(call: Call, milliseconds: int, response: ShareFetchResponse) -> Pending[ShareFetchResponse]:
    """Complete a response later, so that the client does not retry at once."""
    pending: Pending[ShareFetchResponse] = Pending(lambda: timer.cancel())
    timer = call.broker.runtime.world.clock.call_later(milliseconds / 1000, lambda: pending.complete(response))
    return pending


class _ResponseBuilder:
    """Combines the results of acknowledging and fetching into a response."""

    def __init__(self, call: Call, request: ShareFetchRequest, session_key: SessionKey, context: ShareContext) -> None:
        self.call = call
        self.request = request
        self.session_key = session_key
        self.context = context

    def when(
        self, acknowledged: Pending[Outcome], fetched: Pending[ShareFetchData]
    ) -> ShareFetchResponse | Pending[ShareFetchResponse]:
        """Return the response, or a Pending of it until both are complete."""
        if acknowledged.done and fetched.done:
            return self.response(acknowledged.response, fetched.response)
        response: Pending[ShareFetchResponse] = Pending(lambda: cancelled())

        def cancelled() -> None:
            if fetched.done:
                release(fetched.response)
            fetched.cancel()

        def ready(_: object) -> None:
            if acknowledged.done and fetched.done and not response.settled:
                response.complete(self.response(acknowledged.response, fetched.response))

        acknowledged.on_complete(ready)
        fetched.on_complete(ready)
        return response

    def response(self, outcome: Outcome, data_by_partition: ShareFetchData) -> ShareFetchResponse:
        """Build the response; the final epoch ends the session and releases the member's records."""
        shares = self.call.broker.share_partitions
        if self.request.share_session_epoch == FINAL_EPOCH:
            shares.end_session(self.session_key)
        try:
            fetched = (
                (topic_partition, bool(data.records), data.error_code != 0)
                for topic_partition, data in data_by_partition.items()
            )
            included = {
                topic_partition: data_by_partition[topic_partition]
                for topic_partition in self.context.included(fetched)
            }
        except KafkaError as error:
            release(data_by_partition)
            included, code = {}, error.code
        else:
            code = ErrorCode.NONE
        for topic_partition, failure in outcome.items():
            data = included.setdefault(
                topic_partition, PartitionData(partition_index=topic_partition.partition, records=b"")
            )
            if failure is not None:
                data.acknowledge_error_code = failure.code
                data.acknowledge_error_message = failure.message
        response = ShareFetchResponse(
            error_code=code,
            acquisition_lock_timeout_ms=shares.settings(self.session_key.group_id).record_lock_duration_ms,
            node_endpoints=self._leaders(included),
        )
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for topic_partition, data in included.items():
            topic = topics.get(topic_partition.topic_id)
            if topic is None:
                topic = topics[topic_partition.topic_id] = ShareFetchableTopicResponse(
                    topic_id=topic_partition.topic_id
                )
                response.responses.append(topic)
            topic.partitions.append(data)
        return response

    def _leaders(self, data_by_partition: ShareFetchData) -> list[NodeEndpoint]:
        """Set the current leader of partitions that this node does not lead, and return the leaders' endpoints."""
        endpoints: dict[int, NodeEndpoint] = {}
        wrong: Iterable[TopicIdPartition] = [
            topic_partition for topic_partition, data in data_by_partition.items() if data.error_code in LEADER_ERRORS
        ]
        for topic_partition in wrong:
            hint = find_leader(self.call, topic_partition)
            if hint is not None:
                data_by_partition[topic_partition].current_leader = LeaderIdAndEpoch(
                    leader_id=hint.leader, leader_epoch=hint.epoch
                )
                endpoints[hint.leader] = NodeEndpoint(
                    node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack
                )
        return list(endpoints.values())
