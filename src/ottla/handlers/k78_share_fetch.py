"""ShareFetch (78): acquire records for a member of a share group, and take its acknowledgements on the way (KIP-932).

v1 is the first that is served, v2 adds strict limits of records (KIP-1206) and the renewal of locks (KIP-1222), in
which nothing is fetched because that might last longer than the lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.share.fetch import ShareFetch, ShareFetchLimits, error_data, let_go, rotated
from ottla.broker.throttle import most_to_fetch
from ottla.cluster.acls import AclOperation
from ottla.handlers import access
from ottla.handlers.registry import api
from ottla.handlers.shared.share_acknowledgements import LEADER_ERRORS, Acknowledgements, leader_of, refusal, who_asks
from ottla.pending import Pending, kept
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
from ottla.shares.sessions import FINAL_EPOCH, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.broker.session import Call
    from ottla.broker.share.fetch import Answers
    from ottla.handlers.shared.share_acknowledgements import Outcome
    from ottla.shares.sessions import SessionKey, ShareContext


def on_error(request: ShareFetchRequest, version: int, code: ErrorCode, message: str | None) -> ShareFetchResponse:
    """The whole fetch failed; Kafka gives no words."""
    return ShareFetchResponse(error_code=code)


@api(
    78,
    versions=(1, 2),
    acl=access.each(access.on_group(AclOperation.READ), access.on_topic(AclOperation.READ)),
    on_error=on_error,
)
def share_fetch(call: Call, request: ShareFetchRequest) -> ShareFetchResponse | Pending[ShareFetchResponse]:
    """Acknowledge first, then acquire what there is, or wait for it; the answer comes when both are done."""
    who = who_asks(call, request)
    renews = call.version >= 2 and request.is_renew_ack
    if renews and (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    shares = call.broker.share_partitions
    acknowledgements = Acknowledgements.of(request)
    try:
        context = shares.sessions.context(
            who,
            request.share_session_epoch,
            list(acknowledgements.said),
            (Place(each.topic_id, index) for each in request.forgotten_topics_data for index in each.partitions),
            call.session.id,
            acknowledges=bool(acknowledgements),
        )
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED and request.max_wait_ms > 0:
            return _later(call, request.max_wait_ms, ShareFetchResponse(error_code=error.code))
        raise
    said: Pending[Outcome] = kept({})
    if acknowledgements:
        said = acknowledgements.do(call, who, renews=renews)
    fetched: Pending[Answers] = kept({}) if renews else _fetch(call, request, who, context)
    return _Answer(call, request, who, context).when(said, fetched)


def _fetch(call: Call, request: ShareFetchRequest, who: SessionKey, context: ShareContext) -> Pending[Answers]:
    refused: Answers = {}
    wanted: list[Place] = []
    for place in context.partitions:
        error = refusal(call, place)
        if error is None:
            wanted.append(place)
        else:
            refused[place] = error_data(place, error)
    if not wanted:
        return kept(refused)
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
    fetch = ShareFetch(broker.share_partitions, who, limits, broker.cluster.world.clock)
    return fetch.start(rotated(wanted, request.share_session_epoch)).map(lambda found: {**found, **refused})


def _later(call: Call, milliseconds: int, response: ShareFetchResponse) -> Pending[ShareFetchResponse]:
    """An answer that keeps a client from asking at once again."""
    answer: Pending[ShareFetchResponse] = Pending(lambda: timer.cancel())
    timer = call.broker.cluster.world.clock.call_later(milliseconds / 1000, lambda: answer.complete(response))
    return answer


class _Answer:
    """Puts the two halves of an answer together."""

    def __init__(self, call: Call, request: ShareFetchRequest, who: SessionKey, context: ShareContext) -> None:
        self.call = call
        self.request = request
        self.who = who
        self.context = context

    def when(
        self, said: Pending[Outcome], fetched: Pending[Answers]
    ) -> ShareFetchResponse | Pending[ShareFetchResponse]:
        """The response, when both are known."""
        if said.done and fetched.done:
            return self.response(said.response, fetched.response)
        answer: Pending[ShareFetchResponse] = Pending(lambda: gone())

        def gone() -> None:
            if fetched.done:
                let_go(fetched.response)
            fetched.cancel()

        def ready(_: object) -> None:
            if said.done and fetched.done and not answer.settled:
                answer.complete(self.response(said.response, fetched.response))

        said.on_complete(ready)
        fetched.on_complete(ready)
        return answer

    def response(self, outcome: Outcome, answers: Answers) -> ShareFetchResponse:
        """The response; with the last of a session, what the member still holds goes back."""
        shares = self.call.broker.share_partitions
        if self.request.share_session_epoch == FINAL_EPOCH:
            shares.end_session(self.who)
        try:
            news = ((place, bool(data.records), data.error_code != 0) for place, data in answers.items())
            chosen = {place: answers[place] for place in self.context.included(news)}
        except KafkaError as error:
            let_go(answers)
            chosen, code = {}, error.code
        else:
            code = ErrorCode.NONE
        for place, failure in outcome.items():
            data = chosen.setdefault(place, PartitionData(partition_index=place.partition, records=b""))
            if failure is not None:
                data.acknowledge_error_code = failure.code
                data.acknowledge_error_message = failure.message
        response = ShareFetchResponse(
            error_code=code,
            acquisition_lock_timeout_ms=shares.settings(self.who.group_id).record_lock_duration_ms,
            node_endpoints=self._leaders(chosen),
        )
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        for place, data in chosen.items():
            topic = topics.get(place.topic_id)
            if topic is None:
                topic = topics[place.topic_id] = ShareFetchableTopicResponse(topic_id=place.topic_id)
                response.responses.append(topic)
            topic.partitions.append(data)
        return response

    def _leaders(self, answers: Answers) -> list[NodeEndpoint]:
        """Say where the leaders are of partitions that are not here."""
        endpoints: dict[int, NodeEndpoint] = {}
        wrong: Iterable[Place] = [place for place, data in answers.items() if data.error_code in LEADER_ERRORS]
        for place in wrong:
            hint = leader_of(self.call, place)
            if hint is not None:
                answers[place].current_leader = LeaderIdAndEpoch(leader_id=hint.leader, leader_epoch=hint.epoch)
                endpoints[hint.leader] = NodeEndpoint(
                    node_id=hint.leader, host=hint.host, port=hint.port, rack=hint.rack
                )
        return list(endpoints.values())
