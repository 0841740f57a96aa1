"""A share group (KIP-932): members whose assignments may overlap, and how far its partitions' state is initialized.

Everything here is hard state: it is what the group's records say. What requests do is in `share_heartbeat` and
`share_offsets`; which records are in whose hands is no business of groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from ottla.groups import share_records
from ottla.groups.consumer import MemberState, Partitions, SubscriptionType
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.protocol.uuids import Uuid

LEAVE_GROUP_EPOCH: Final = -1
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


class ShareGroup:
    """One group of the share protocol."""

    type = "share"
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.subscribed_topics: dict[str, int] = {}
        self.targets: dict[str, Partitions] = {}
        self.state_partitions: StatePartitions | None = None
        # Soft: whether the topics have to be looked at again. The epoch guards against records that never got written.
        self._fresh_since_epoch: int | None = None

    # What it is

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        return not self.members

    @property
    def state_name(self) -> str:
        """The state as it is shown: there is no rebalance to wait for."""
        return "Stable" if self.members else "Empty"

    def member(self, member_id: str) -> ShareMember:
        """The member with that id; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        return topic in self.subscribed_topics

    def topics_after(self, old: ShareMember | None, new: ShareMember | None) -> dict[str, int]:
        """The subscribed topics once a member has become another."""
        counts = dict(self.subscribed_topics)
        _count(counts, old.subscribed_topic_names if old is not None else (), -1)
        _count(counts, new.subscribed_topic_names if new is not None else (), +1)
        return counts

    # The topics are looked at again when they have changed, not at each heartbeat.

    def metadata_expired(self) -> bool:
        """Whether the topics may have changed since they were last looked at."""
        return self._fresh_since_epoch is None or self.group_epoch < self._fresh_since_epoch

    def metadata_refreshed(self, epoch: int) -> None:
        """The topics were looked at for that epoch."""
        self._fresh_since_epoch = epoch

    def request_metadata_refresh(self) -> None:
        """The topics have changed."""
        self._fresh_since_epoch = None

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
        return share_records.group_tombstones(self.group_id, self.members)

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


def _count(counts: dict[str, int], topics: Iterable[str], change: int) -> None:
    for topic in sorted(topics):
        count = counts.get(topic, 0) + change
        if count:
            counts[topic] = count
        else:
            counts.pop(topic, None)
