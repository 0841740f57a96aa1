"""A share group (Kafka's ShareGroup, KIP-932): members with overlapping assignments, and its initialized partitions.

All of it is hard state, changed by replayed records only. Requests are in `heartbeat` and `offsets`; acquisition locks
and delivered records are in `ottla.shares`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from ottla.groups.modern import MemberState, ModernGroup, Partitions, SubscriptionType, add_count
from ottla.groups.share import records
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.groups.records import GroupRecord
    from ottla.protocol.uuids import Uuid

ASSIGNOR: Final = "simple"


@dataclass(slots=True, frozen=True)
class ShareMember:
    """One member (Kafka's ShareGroupMember); immutable."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Partitions = field(default_factory=dict)


class InitializedTopic(NamedTuple):
    """Partitions of a topic that are initializing or initialized, and the time of that record."""

    name: str
    partitions: frozenset[int]
    timestamp_ms: int


@dataclass(slots=True, frozen=True)
class StatePartitions:
    """The share-partition state of a group by topic id; immutable."""

    initializing: Mapping[Uuid, InitializedTopic] = field(default_factory=dict)
    initialized: Mapping[Uuid, InitializedTopic] = field(default_factory=dict)
    deleting: Mapping[Uuid, str] = field(default_factory=dict)


class ShareGroup(ModernGroup[ShareMember, Partitions]):
    """One group of the share protocol."""

    type = "share"
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.subscribed_topics: dict[str, int] = {}
        self.state_partitions: StatePartitions | None = None

    # State

    @property
    def state_name(self) -> str:
        """The state as ShareGroupDescribe shows it; share groups do not rebalance."""
        return "Stable" if self.members else "Empty"

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return topic in self.subscribed_topics

    def topics_after(self, old: ShareMember | None, new: ShareMember | None) -> dict[str, int]:
        """Return the subscribed topics once `new` replaces `old`."""
        counts = dict(self.subscribed_topics)
        for member, change in ((old, -1), (new, +1)):
            for topic in sorted(member.subscribed_topic_names) if member is not None else ():
                add_count(counts, topic, change)
        return counts

    # Changes by replayed records

    def update_member(self, new: ShareMember) -> None:
        """Add or update a member."""
        self.subscribed_topics = self.topics_after(self.members.get(new.member_id), new)
        self.members[new.member_id] = new

    def remove_member(self, member_id: str) -> None:
        """Remove a member."""
        self.subscribed_topics = self.topics_after(self.members.pop(member_id, None), None)

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group."""
        return records.group_tombstones(self.group_id, self.members)

    # Validation

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> NoReturn:
        """Raise GROUP_ID_NOT_FOUND: share groups have no committed offsets."""
        raise self._not_a_consumer_group()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Accept: the group has no committed offsets, so that a fetch returns none."""

    def validate_offset_delete(self) -> NoReturn:
        """Raise GROUP_ID_NOT_FOUND: share groups have no committed offsets."""
        raise self._not_a_consumer_group()

    def _not_a_consumer_group(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def validate_delete(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """Return None: there are no committed offsets to expire."""
        return None


def subscription_type(topics: Mapping[str, int], member_count: int) -> SubscriptionType:
    """Return whether all members subscribe to the same topics."""
    same = all(count == member_count for count in topics.values())
    return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS
