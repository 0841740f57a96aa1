"""What the two APIs of share consumers have in common: who asks, and the acknowledgements in their requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cluster.acls import AclOperation, ResourceType
from ottla.handlers.shared.groups import require_protocol, require_share_member_id
from ottla.pending import Pending, kept
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.partition import RENEW, Acknowledgement
from ottla.shares.sessions import Place, SessionKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.broker.broker import LeaderHint
    from ottla.broker.session import Call
    from ottla.protocol.messages.k78_share_fetch import ShareFetchRequest
    from ottla.protocol.messages.k79_share_acknowledge import ShareAcknowledgeRequest

LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Outcome = dict[Place, "KafkaError | None"]


def who_asks(call: Call, request: ShareFetchRequest | ShareAcknowledgeRequest) -> SessionKey:
    """Group and member of a request, if they may be served."""
    require_protocol(call, "share")
    if request.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    require_share_member_id(request.member_id)
    return SessionKey(request.group_id, request.member_id or "")


def refusal(call: Call, place: Place) -> KafkaError | None:
    """Why a caller may have nothing of a partition, if that is so."""
    image = call.broker.cluster.image
    topic = image.topics.get(place.topic_id)
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    if not call.may_topic(AclOperation.READ, topic.name):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if place.partition not in topic.partitions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return None


@dataclass(slots=True)
class Acknowledgements:
    """What a request acknowledges, partition by partition, in its order."""

    said: dict[Place, list[Acknowledgement]]

    @classmethod
    def of(cls, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Acknowledgements:
        """Those of a request."""
        return cls(
            {
                Place(topic.topic_id, partition.partition_index): [
                    Acknowledgement(each.first_offset, each.last_offset, each.acknowledge_types)
                    for each in partition.acknowledgement_batches
                ]
                for topic in request.topics
                for partition in topic.partitions
            }
        )

    def __bool__(self) -> bool:
        return any(self.said.values())

    def do(self, call: Call, who: SessionKey, *, renews: bool) -> Pending[Outcome]:
        """Do what they say; what became of each partition's, when that is written."""
        outcome: Outcome = dict.fromkeys(self.said)
        valid: dict[Place, Sequence[Acknowledgement]] = {}
        for place, batches in self.said.items():
            refused = refusal(call, place)
            unknown = refused is not None and refused.code is ErrorCode.UNKNOWN_TOPIC_ID
            if not unknown and not _well_formed(batches, supports_renewal=call.version >= 2, renews=renews):
                refused = KafkaError(ErrorCode.INVALID_REQUEST)
            if refused is not None:
                outcome[place] = refused
            elif batches:
                valid[place] = batches
        if not valid:
            return kept({place: error for place, error in outcome.items() if error is not None})

        def together(answers: Mapping[Place, KafkaError | None]) -> Outcome:
            outcome.update(answers)
            return outcome

        return call.broker.share_partitions.acknowledge(who, valid).map(together)


def _well_formed(batches: Sequence[Acknowledgement], *, supports_renewal: bool, renews: bool) -> bool:
    largest = RENEW if supports_renewal else RENEW - 1
    previous = -1
    for each in batches:
        if each.first > each.last or each.first < previous or not each.types:
            return False
        if len(each.types) > 1 and each.last - each.first != len(each.types) - 1:
            return False
        if any(kind < 0 or kind > largest or (kind == RENEW and not renews) for kind in each.types):
            return False
        previous = each.last
    return True


def leader_of(call: Call, place: Place) -> LeaderHint | None:
    """Where the leader of a partition is, for a client that asked the wrong node."""
    return call.broker.leader_hint(call.session.listener, "", place.topic_id, place.partition)
