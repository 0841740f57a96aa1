"""A classic group (Kafka's ClassicGroup): members, generation, leader, and the state machine of its rebalances.

Membership is soft state until a generation is written: a loaded group is as its last record has it. The requests are in
`join`, `sync` and `membership`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from ottla.groups.classic import records
from ottla.groups.classic.consumer_protocol import subscribed_topics
from ottla.hashing.java import hash_map_order
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages.k11_join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.k14_sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.groups.records import GroupRecord
    from ottla.pending import Pending
    from ottla.protocol.record_schemas.group import GroupMetadataKey, GroupMetadataValue

CONSUMER_PROTOCOL: Final = "consumer"

Protocols = tuple[tuple[str, bytes], ...]


class ClassicState(Enum):
    """The states of a classic group (Kafka's ClassicGroupState)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_PREVIOUS: Final = {
    ClassicState.EMPTY: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.PREPARING_REBALANCE: (
        ClassicState.STABLE,
        ClassicState.COMPLETING_REBALANCE,
        ClassicState.EMPTY,
    ),
    ClassicState.COMPLETING_REBALANCE: (ClassicState.PREPARING_REBALANCE,),
    ClassicState.STABLE: (ClassicState.COMPLETING_REBALANCE,),
    ClassicState.DEAD: tuple(ClassicState),
}
"""The states from which each state may be entered."""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """One member, and the Pending of its join or sync while it waits."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    awaiting_join: Pending[JoinGroupResponse] | None = None
    awaiting_sync: Pending[SyncGroupResponse] | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member has an instance id, so that it may return under a new member id (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def satisfies_heartbeat(self) -> bool:
        """Whether waiting for a response proves the member alive; the first join of a new member does not."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise AssertionError(f"member {self.member_id} does not support protocol {protocol_name}")


@dataclass(slots=True, eq=False)
class ClassicGroup:
    """One group of the classic protocol, or a simple group that only has committed offsets."""

    group_id: str
    state_timestamp_ms: int
    state: ClassicState = ClassicState.EMPTY
    previous_state: ClassicState = ClassicState.DEAD
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, ClassicMember] = field(default_factory=dict)
    protocol_counts: dict[str, int] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_join: dict[str, None] = field(default_factory=dict)
    pending_sync: dict[str, None] = field(default_factory=dict)
    subscribed_topics: frozenset[str] | None = None
    new_member_added: bool = False
    awaiting_join_count: int = 0

    type = "classic"

    # State

    @property
    def is_empty(self) -> bool:
        """Whether the group is in state Empty."""
        return self.state is ClassicState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether the group only has offsets, committed by clients that never joined."""
        return self.protocol_type is None and self.is_empty and not self.pending_join

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers, not Connect workers for example."""
        return self.protocol_type == CONSUMER_PROTOCOL

    @property
    def state_name(self) -> str:
        """The state as DescribeGroups shows it."""
        return self.state.value

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start in the current state."""
        return self.state in _PREVIOUS[ClassicState.PREPARING_REBALANCE]

    @property
    def has_all_joined(self) -> bool:
        """Whether every member has joined, and every client that received a member id."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_leader(self, member_id: str) -> bool:
        """Return whether the member is the leader, which computes the assignment."""
        return self.leader_id == member_id

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic; unreadable subscriptions of consumers count as all topics."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def transition_to(self, state: ClassicState, now_ms: int) -> None:
        """Enter a state; assert that the transition is legal."""
        assert self.state in _PREVIOUS[state], f"group {self.group_id} cannot go from {self.state} to {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    # Members

    def add(self, member: ClassicMember, response: Pending[JoinGroupResponse] | None = None) -> None:
        """Add a member; the first one sets the protocol type and becomes the leader."""
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        member.awaiting_join = response
        if response is not None:
            self.awaiting_join_count += 1
        self.pending_join.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a member id that has not joined yet."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member.protocols, -1)
            # Kafka drops the waiting sync; a response frees the connection that waits for it.
            self.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            if member.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.is_leader(member_id):
            self.leader_id = next(iter(self.members), None)
        self.pending_join.pop(member_id, None)
        self.pending_sync.pop(member_id, None)

    def update(
        self,
        member: ClassicMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        response: Pending[JoinGroupResponse] | None,
    ) -> None:
        """Update a member that joins again; its earlier join is no longer answered."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join_count += (response is not None) - (member.awaiting_join is not None)
        member.awaiting_join = response

    def replace_static_member(self, instance_id: str, old_id: str, new_id: str) -> ClassicMember:
        """Give a static member a new member id; fence requests that wait under the old id."""
        old = self.members.pop(old_id)
        self.complete_join(
            old,
            JoinGroupResponse(
                member_id=old_id, protocol_name=None, error_code=ErrorCode.FENCED_INSTANCE_ID, generation_id=-1
            ),
        )
        self.complete_sync(old, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        new = ClassicMember(
            new_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocol_type,
            old.protocols,
            old.assignment,
        )
        self.members[new_id] = new
        if self.is_leader(old_id):
            self.leader_id = new_id
        self.static_members[instance_id] = new_id
        return new

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader; return False if none has joined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def validate_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has the instance id."""
        if instance_id is not None:
            existing = self.static_members.get(instance_id)
            if existing is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if existing != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    # Responses

    def complete_join(self, member: ClassicMember, response: JoinGroupResponse) -> None:
        """Complete the member's join if it waits."""
        if member.awaiting_join is not None:
            waiting, member.awaiting_join = member.awaiting_join, None
            self.awaiting_join_count -= 1
            waiting.complete(response)

    def complete_sync(self, member: ClassicMember, response: SyncGroupResponse) -> bool:
        """Complete the member's sync; return False if it does not wait."""
        if member.awaiting_sync is None:
            return False
        waiting, member.awaiting_sync = member.awaiting_sync, None
        waiting.complete(response)
        return True

    def join_response(self, member_id: str, *, with_members: bool, skip_assignment: bool = False) -> JoinGroupResponse:
        """Return the JoinGroup response of the current generation."""
        return JoinGroupResponse(
            members=self._join_members() if with_members else [],
            member_id=member_id,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            protocol_type=self.protocol_type,
            leader=self.leader_id or "",
            skip_assignment=skip_assignment,
        )

    def _join_members(self) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        ]

    def unload(self, now_ms: int) -> None:
        """Transition to Dead and fail every waiting join and sync with NOT_COORDINATOR."""
        self.transition_to(ClassicState.DEAD, now_ms)
        for member in list(self.members.values()):
            if self.previous_state is ClassicState.PREPARING_REBALANCE:
                self.complete_join(
                    member, JoinGroupResponse(member_id=member.member_id, error_code=ErrorCode.NOT_COORDINATOR)
                )
            else:
                self.complete_sync(member, SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))

    # Protocols and generations

    def _count(self, protocols: Protocols, change: int) -> None:
        """Count the members per protocol, so that a check does not visit all protocols of all members."""
        for name, _ in protocols:
            count = self.protocol_counts.get(name, 0) + change
            if count:
                self.protocol_counts[name] = count
            else:
                del self.protocol_counts[name]

    def all_support(self, name: str) -> bool:
        """Return whether all members support a protocol."""
        return self.protocol_counts.get(name, 0) == len(self.members)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = next(name for name, _ in member.protocols if self.all_support(name))
            votes[name] = votes.get(name, 0) + 1
        return max(hash_map_order(votes), key=lambda name: votes[name])

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a member with these protocols is consistent with the group."""
        if self.is_empty:
            return bool(protocol_type) and any(True for _ in names)
        return self.protocol_type == protocol_type and any(self.all_support(name) for name in names)

    def begin_generation(self, now_ms: int) -> None:
        """Start the next generation: select its protocol and enter CompletingRebalance, or Empty without members."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(ClassicState.COMPLETING_REBALANCE if self.members else ClassicState.EMPTY, now_ms)
        self.pending_sync.clear()

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all subscriptions; None if they are not consumers or cannot be decoded."""
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in subscribed_topics(member.metadata(self.protocol_name))
            )
        except ProtocolError:
            return None

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group."""
        return [records.classic_group_tombstone(self.group_id)]

    def assignments(self) -> dict[str, bytes]:
        """Return each member's assignment."""
        return {member.member_id: member.assignment for member in self.members.values()}

    # Validation

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, *, transactional: bool
    ) -> None:
        """Raise if the commit does not come from a member in the current generation."""
        if self.state is ClassicState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation_id < 0 and self.is_empty:
            return  # from a consumer that assigns partitions manually
        if generation_id >= 0 or member_id or instance_id is not None:
            self.validate_member(member_id, instance_id)
            if generation_id != self.generation_id:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional and not self.is_empty:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def validate_offset_delete(self) -> None:
        """Raise if the group has members whose subscriptions are unknown."""
        if self.state is ClassicState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")
        if not self.is_empty and not self.uses_consumer_protocol:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def validate_delete(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members."""
        if self.state is ClassicState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is in dead state.")
        if not self.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """Return the start of an offset's retention; None while the group's offsets do not expire (KIP-211)."""
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.is_empty:
            return self.state_timestamp_ms if self.state_timestamp_ms != -1 else commit_timestamp_ms
        if self.uses_consumer_protocol and self.subscribed_topics is not None and self.state is ClassicState.STABLE:
            return commit_timestamp_ms
        return None


def classic_group_from_record(key: GroupMetadataKey, value: GroupMetadataValue) -> ClassicGroup:
    """Return the group of a record; of a member's protocols the record has only the selected one."""
    group = ClassicGroup(
        key.group,
        value.current_state_timestamp,
        state=ClassicState.STABLE if value.members else ClassicState.EMPTY,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        # A leader that is no member is replaced by the first member, so that the next rebalance can elect one.
        leader_id=value.leader if any(member.member_id == value.leader for member in value.members) else None,
    )
    for member in value.members:
        group.add(
            ClassicMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
                member.session_timeout,
                value.protocol_type,
                ((value.protocol or "", member.subscription),),
                member.assignment,
            )
        )
    group.subscribed_topics = group.compute_subscribed_topics()
    return group
