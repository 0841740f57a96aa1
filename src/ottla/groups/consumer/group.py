"""A consumer group (KIP-848): members with their own epochs, the target that the coordinator computed, who owns what.

Everything here is hard state: it is what the group's records say. What requests do is in `consumer_heartbeat`; how a
member moves from what it owns to its target is in `reconciliation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.consumer import records
from ottla.groups.modern import (
    MEMBER_EPOCH_COMMIT_VERSION,
    MemberState,
    ModernGroup,
    Partitions,
    SubscriptionType,
    add_count,
)
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.protocol.record_schemas.group import ClassicMemberMetadata
    from ottla.protocol.uuids import Uuid

NO_OWNER: Final = -1

PartitionEpochs = dict["Uuid", dict[int, int]]
"""Topics and their partitions, each with the epoch in which the member got it. Never changed in place."""


class ConsumerState(Enum):
    """How far the group as a whole has come; derived from its members, never stored."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, frozen=True)
class ConsumerMember:
    """One member; a change makes a new one."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)
    classic_metadata: ClassicMemberMetadata | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether it is a member of the old protocol in a group of the new one."""
        return self.classic_metadata is not None

    @property
    def regex(self) -> str | None:
        """The regular expression that it subscribes to, if any; an empty one is none."""
        return self.subscribed_topic_regex or None

    @property
    def classic_session_timeout_ms(self) -> int:
        """The session timeout that a member of the old protocol asked for."""
        assert self.classic_metadata is not None
        return self.classic_metadata.session_timeout_ms

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it owns exactly its target of that epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, topic_id: Uuid, partition: int) -> int | None:
        """The epoch in which it got a partition that it owns or has yet to give back."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return epoch if epoch is not None else self.pending_revocation.get(topic_id, {}).get(partition)


class SubscriptionCount(NamedTuple):
    """How often a topic is subscribed to: by members that name it, and by regular expressions that match it."""

    by_name: int = 0
    by_regex: int = 0


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched, of which version of the topics, and when."""

    topics: frozenset[str]
    version: int = -1
    timestamp_ms: int = -1


def count_topics(
    counts: dict[str, SubscriptionCount], topics: Iterable[str], *, by_name: int = 0, by_regex: int = 0
) -> None:
    """Add to how often topics are subscribed to; one that nobody subscribes to is left out."""
    for topic in topics:
        old = counts.get(topic, SubscriptionCount())
        new = SubscriptionCount(old.by_name + by_name, old.by_regex + by_regex)
        if new == (0, 0):
            counts.pop(topic, None)
        else:
            counts[topic] = new


def subscription_type(
    regexes: Mapping[str, int], topics: Mapping[str, SubscriptionCount], member_count: int
) -> SubscriptionType:
    """Whether all members want the same, so that the simple assignors apply."""
    if not regexes:
        same = all(count.by_name == member_count for count in topics.values())
    else:
        # All members use the one regular expression, and nothing else.
        same = next(iter(regexes.values())) == member_count and all(count == (0, 1) for count in topics.values())
    return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS


class ConsumerGroup(ModernGroup[ConsumerMember, Partitions]):
    """One group of the consumer protocol."""

    type = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}
        self.server_assignors: dict[str, int] = {}
        self.classic_member_count = 0
        self.classic_protocols: dict[str, int] = {}
        self.subscribed_topics: dict[str, SubscriptionCount] = {}
        self.subscribed_regexes: dict[str, int] = {}
        self.resolved_regexes: dict[str, ResolvedRegex] = {}
        self.target_owners: dict[Uuid, dict[int, str]] = {}
        self.partition_epochs: dict[Uuid, dict[int, int]] = {}
        self.has_subscription_metadata_record = False

    # What it is

    @property
    def state(self) -> ConsumerState:
        """How far it has come."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def state_name(self) -> str:
        """The state as it is shown."""
        return self.state.value

    @property
    def subscription_type(self) -> SubscriptionType:
        """Whether all members want the same topics."""
        return subscription_type(self.subscribed_regexes, self.subscribed_topics, len(self.members))

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that has an instance id."""
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return self.members[member_id] if member_id is not None else None

    def partition_epoch(self, topic_id: Uuid, partition: int) -> int:
        """The epoch of the member that has a partition; NO_OWNER if it is free."""
        return self.partition_epochs.get(topic_id, {}).get(partition, NO_OWNER)

    def target(self, member_id: str) -> Partitions:
        """What a member is to own."""
        return self.targets.get(member_id, {})

    def target_of(self, member_id: str, instance_id: str | None) -> Partitions:
        """The same, for a static member under whichever id it has the target."""
        if instance_id is None:
            return self.target(member_id)
        known = self.static_members.get(instance_id)
        return self.target(known) if known is not None else {}

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads a topic."""
        return topic in self.subscribed_topics

    def preferred_assignor(self, old: ConsumerMember | None = None, new: ConsumerMember | None = None) -> str | None:
        """The assignor that most members ask for, once a member has become another."""
        counts = dict(self.server_assignors)
        if old is not None:
            add_count(counts, old.server_assignor, -1)
        if new is not None:
            add_count(counts, new.server_assignor, +1)
        # Of two that are asked for alike Kafka takes the one that its hash table has first: uniform before range.
        return max(counts, key=lambda name: (counts[name], name)) if counts else None

    # Subscriptions as they will be

    def topics_after(self, old: ConsumerMember | None, new: ConsumerMember | None) -> dict[str, SubscriptionCount]:
        """The subscribed topics once a member has become another."""
        counts = dict(self.subscribed_topics)
        if old is not None:
            count_topics(counts, old.subscribed_topic_names, by_name=-1)
        if new is not None:
            count_topics(counts, new.subscribed_topic_names, by_name=+1)
        old_regex = old.regex if old is not None else None
        if (
            old_regex is not None
            and old_regex != (new.regex if new is not None else None)
            and self.subscribed_regexes.get(old_regex) == 1
            and old_regex in self.resolved_regexes
        ):
            count_topics(counts, self.resolved_regexes[old_regex].topics, by_regex=-1)
        return counts

    def regexes_after(self, old: ConsumerMember | None, new: ConsumerMember | None) -> dict[str, int]:
        """The subscribed regular expressions once a member has become another."""
        counts = dict(self.subscribed_regexes)
        add_count(counts, old.regex if old is not None else None, -1)
        add_count(counts, new.regex if new is not None else None, +1)
        return counts

    def topics_without(self, members: Iterable[ConsumerMember], regexes: Iterable[str]) -> dict[str, SubscriptionCount]:
        """The subscribed topics once members and regular expressions are gone."""
        counts = dict(self.subscribed_topics)
        for member in members:
            count_topics(counts, member.subscribed_topic_names, by_name=-1)
        for regex in regexes:
            if regex in self.resolved_regexes:
                count_topics(counts, self.resolved_regexes[regex].topics, by_regex=-1)
        return counts

    # Changes

    def update_member(self, new: ConsumerMember) -> None:
        """A member came, or is different now."""
        old = self.members.get(new.member_id)
        self.members[new.member_id] = new
        self._exchange(old, new)
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id

    def remove_member(self, member_id: str) -> None:
        """A member is gone."""
        old = self.members.pop(member_id, None)
        self._exchange(old, None)
        if old is not None and old.instance_id is not None:
            self.static_members.pop(old.instance_id, None)

    def _exchange(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        for member, change in ((old, -1), (new, +1)):
            if member is None:
                continue
            count_topics(self.subscribed_topics, sorted(member.subscribed_topic_names), by_name=change)
            add_count(self.server_assignors, member.server_assignor, change)
            add_count(self.subscribed_regexes, member.regex, change)
            if member.classic_metadata is not None:
                self.classic_member_count += change
                for protocol in member.classic_metadata.supported_protocols:
                    add_count(self.classic_protocols, protocol.name, change)
        if old is not None:
            self._free(old.assigned, old.member_epoch)
            self._free(old.pending_revocation, old.member_epoch)
        if new is not None:
            self._own(new.assigned, new.member_epoch)
            self._own(new.pending_revocation, new.member_epoch)

    def _free(self, assignment: PartitionEpochs, epoch: int) -> None:
        for topic_id, partitions in assignment.items():
            owned = self.partition_epochs.get(topic_id)
            if owned is None:
                continue
            for partition in partitions:
                # While records are replayed, a partition may have found its next owner before its last one let go.
                if owned.get(partition) == epoch:
                    del owned[partition]
            if not owned:
                del self.partition_epochs[topic_id]

    def _own(self, assignment: PartitionEpochs, epoch: int) -> None:
        for topic_id, partitions in assignment.items():
            owned = self.partition_epochs.setdefault(topic_id, {})
            for partition in partitions:
                held = owned.get(partition)
                if held is not None and held >= epoch:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"Cannot set the epoch of {topic_id}-{partition} to {epoch} because the partition is still "
                        f"owned at epoch {held}",
                    )
                owned[partition] = epoch

    def set_target(self, member_id: str, partitions: Partitions) -> None:
        """What a member is to own has been computed."""
        old = self.targets.get(member_id, {})
        for topic_id, indexes in old.items():
            owners = self.target_owners.get(topic_id, {})
            for index in indexes:
                if owners.get(index) == member_id:
                    del owners[index]
            if not owners:
                self.target_owners.pop(topic_id, None)
        for topic_id, indexes in partitions.items():
            owners = self.target_owners.setdefault(topic_id, {})
            for index in indexes:
                owners[index] = member_id
        self.targets[member_id] = partitions

    def remove_target(self, member_id: str) -> None:
        """A member is to own nothing any more."""
        self.set_target(member_id, {})
        del self.targets[member_id]

    def set_resolved_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """A regular expression was resolved, or is not used any more."""
        old = self.resolved_regexes.pop(regex, None)
        if old is not None:
            count_topics(self.subscribed_topics, sorted(old.topics), by_regex=-1)
        if resolved is not None:
            self.resolved_regexes[regex] = resolved
            count_topics(self.subscribed_topics, sorted(resolved.topics), by_regex=+1)

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """What deletes the group."""
        return self.tombstones_for(self.members)

    def tombstones_for(self, member_ids: Iterable[str]) -> list[GroupRecord]:
        """What deletes the group when its members are these."""
        ids = list(member_ids)
        group_id = self.group_id
        return [
            *(records.current_assignment_tombstone(group_id, member_id) for member_id in ids),
            *(records.target_assignment_tombstone(group_id, member_id) for member_id in ids),
            records.target_assignment_epoch_tombstone(group_id),
            *(records.member_subscription_tombstone(group_id, member_id) for member_id in ids),
            *(records.regular_expression_tombstone(group_id, regex) for regex in self.resolved_regexes),
            records.subscription_metadata_tombstone(group_id),
            records.group_epoch_tombstone(group_id),
        ]

    # What may be done to it

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> Callable[[str, Uuid, int], None] | None:
        """Refuse a commit of a stranger or of the future; of an older epoch, each partition has to pass for itself.

        A member may still commit what it got in an epoch that is not later than the one it commits in (KIP-1251).
        """
        if member_epoch < 0 and not self.members:
            return None
        if transactional and member_epoch == -1 and member_id == "" and instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and not member.uses_classic_protocol and version < MEMBER_EPOCH_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if member_epoch == member.member_epoch:
            return None
        stale = ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
        said = "generation id" if member.uses_classic_protocol else "member epoch"
        if member_epoch > member.member_epoch:
            raise KafkaError(
                stale, f"Received {said} {member_epoch} is newer than current member epoch {member.member_epoch}."
            )

        def validate(topic: str, topic_id: Uuid, partition: int) -> None:
            epoch = member.assignment_epoch(topic_id, partition)
            if epoch is None:
                raise KafkaError(
                    stale, f"Partition {topic}-{partition} is not assigned or pending revocation for member."
                )
            if member_epoch < epoch:
                raise KafkaError(
                    stale,
                    f"Received {said} {member_epoch} is older than assignment epoch {epoch} "
                    f"for partition {topic}-{partition}.",
                )

        return validate

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Refuse a member of another epoch; who names no member is let through."""
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.member_epoch:
            if member.uses_classic_protocol:
                raise KafkaError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"The received generation id {member_epoch} does not match the expected member epoch "
                    f"{member.member_epoch}.",
                )
            raise KafkaError(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"The received member epoch {member_epoch} does not match the expected member epoch "
                f"{member.member_epoch}.",
            )

    def validate_offset_delete(self) -> None:
        """Offsets of topics that nobody reads can always be forgotten: subscriptions are known here."""

    def validate_delete(self) -> None:
        """Refuse to delete a group with members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """The time from which an offset's retention counts."""
        return commit_timestamp_ms


def with_epoch(member: ConsumerMember, epoch: int) -> ConsumerMember:
    """A member that has gone on to an epoch, and remembers the one before."""
    return replace(member, member_epoch=epoch, previous_member_epoch=member.member_epoch)
