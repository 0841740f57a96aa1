"""A share group (KIP-932): members whose assignments may overlap, and how far its partitions' state is initialized.

Everything here is hard state: it is what the group's records say. What requests do is in `share_heartbeat` and
`share_offsets`; which records are in whose hands is no business of groups.
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
    """One member; a change makes a new one."""

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
    """Partitions of a topic whose state is being or has been initialized, and when that was written."""

    name: str
    partitions: frozenset[int]
    timestamp_ms: int


@dataclass(slots=True, frozen=True)
class StatePartitions:
    """How far the state of a group's partitions has come; a change makes a new one."""

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

    # What it is

    @property
    def state_name(self) -> str:
        """The state as it is shown: there is no rebalance to wait for."""
        return "Stable" if self.members else "Empty"

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        return topic in self.subscribed_topics

    def topics_after(self, old: ShareMember | None, new: ShareMember | None) -> dict[str, int]:
        """The subscribed topics once a member has become another."""
        counts = dict(self.subscribed_topics)
        for member, change in ((old, -1), (new, +1)):
            for topic in sorted(member.subscribed_topic_names) if member is not None else ():
                add_count(counts, topic, change)
        return counts

    # Changes

    def update_member(self, new: ShareMember) -> None:
        """A member came, or is different now."""
        self.subscribed_topics = self.topics_after(self.members.get(new.member_id), new)
        self.members[new.member_id] = new

    def remove_member(self, member_id: str) -> None:
        """A member is gone."""
        self.subscribed_topics = self.topics_after(self.members.pop(member_id, None), None)

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """What deletes the group."""
        return records.group_tombstones(self.group_id, self.members)

    # What may be done to it

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> NoReturn:
        """Nobody commits offsets of a share group."""
        raise self._not_a_consumer_group()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Whoever fetches them finds none."""

    def validate_offset_delete(self) -> NoReturn:
        """Nor delete them, this way."""
        raise self._not_a_consumer_group()

    def _not_a_consumer_group(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def validate_delete(self) -> None:
        """Refuse to delete a group with members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """There are no offsets that could expire."""
        return None


def subscription_type(topics: Mapping[str, int], member_count: int) -> SubscriptionType:
    """Whether all members want the same topics."""
    same = all(count == member_count for count in topics.values())
    return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS
