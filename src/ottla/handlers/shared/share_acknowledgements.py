"""Shared by ShareFetch and ShareAcknowledge: the session key of a request and its acknowledgements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cluster.security.acls import AclOperation, ResourceType
from ottla.handlers.shared.groups import require_protocol, require_share_member_id
from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.partition import RENEW, Acknowledgement
from ottla.shares.sessions import SessionKey, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.broker import LeaderHint
    from ottla.broker.session import Call
    from ottla.protocol.messages.k78_share_fetch import ShareFetchRequest
    from ottla.protocol.messages.k79_share_acknowledge import ShareAcknowledgeRequest

LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Outcome = dict[TopicIdPartition, "KafkaError | None"]


def read_session_key(call: Call, request: ShareFetchRequest | ShareAcknowledgeRequest) -> SessionKey:
    """Return the group and member of a request; raise if it is invalid or not authorized."""
    require_protocol(call, "share")
    if request.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    require_share_member_id(request.member_id)
    return SessionKey(request.group_id, request.member_id or "")


def refusal(call: Call, topic_partition: TopicIdPartition) -> KafkaError | None:
    """Return the error of a partition that does not exist or that the caller may not read, or None."""
    image = call.broker.runtime.image
    topic = image.topics.get(topic_partition.topic_id)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not call.may_topic(AclOperation.READ, topic.name):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic_partition.partition not in topic.partitions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return None


@dataclass(slots=True)
class Acknowledgements:
    """The acknowledgements of a request by partition, in its order."""

    by_partition: dict[TopicIdPartition, list[Acknowledgement]]

    @classmethod
    def of(cls, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Acknowledgements:
        """Read the acknowledgements of a request."""
        return cls(
            {
                TopicIdPartition(topic.topic_id, partition.partition_index): [
                    Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                    for batch in partition.acknowledgement_batches
                ]
                for topic in request.topics
                for partition in topic.partitions
            }
        )

    def __bool__(self) -> bool:
        return any(self.by_partition.values())

    def apply(self, call: Call, session_key: SessionKey, *, renews: bool) -> Pending[Outcome]:
        """Apply the acknowledgements; complete with the error of each partition once all are persisted."""
        outcome: Outcome = dict.fromkeys(self.by_partition)
        valid: dict[TopicIdPartition, Sequence[Acknowledgement]] = {}
        for topic_partition, batches in self.by_partition.items():
            error_here = refusal(call, topic_partition)
            unknown = error_here is not None and error_here.code is ErrorCode.UNKNOWN_TOPIC_ID
            if not unknown and not _well_formed(batches, supports_renewal=call.version >= 2, renews=renews):
                error_here = KafkaError(ErrorCode.INVALID_REQUEST)
            if error_here is not None:
                outcome[topic_partition] = error_here
            elif batches:
                valid[topic_partition] = batches
        if not valid:
            return completed_with(
                {topic_partition: error for topic_partition, error in outcome.items() if error is not None}
            )

        def combine(errors: Mapping[TopicIdPartition, KafkaError | None]) -> Outcome:
            outcome.update(errors)
            return outcome

        return call.broker.share_partitions.acknowledge(session_key, valid).map(combine)


def _well_formed(batches: Sequence[Acknowledgement], *, supports_renewal: bool, renews: bool) -> bool:
    largest = RENEW if supports_renewal else RENEW - 1
    previous = -1
    for batch in batches:
        if batch.first > batch.last or batch.first < previous or not batch.types:
            return False
        if len(batch.types) > 1 and batch.last - batch.first != len(batch.types) - 1:
            return False
        if any(kind < 0 or kind > largest or (kind == RENEW and not renews) for kind in batch.types):
            return False
        previous = batch.last
    return True


def find_leader(call: Call, topic_partition: TopicIdPartition) -> LeaderHint | None:
    """Return the leader of a partition, for a client that sent its request to another node."""
    return call.broker.leader_hint(call.session.listener, "", topic_partition.topic_id, topic_partition.partition)
