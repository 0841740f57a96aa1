"""A consumer group (Kafka's ConsumerGroup, KIP-848): members with epochs, target assignments, and partition owners.

All of it is hard state, changed by replayed records only. Requests are in `heartbeat`, the steps towards a target
assignment in `reconciliation`.
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
"""Partitions by topic id, each with its assignment epoch. Never changed in place."""


class ConsumerState(Enum):
    """The state of the group, derived from its members and never stored."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(slots=True, frozen=True)
class ConsumerMember:
    """One member (Kafka's ConsumerGroupMember); immutable."""

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
        """Whether the member uses the classic protocol in this consumer group."""
        return self.classic_metadata is not None

    @property
    def regex(self) -> str | None:
        """The subscribed regular expression; None if it is empty."""
        return self.subscribed_topic_regex or None

    @property
    def classic_session_timeout_ms(self) -> int:
        """The session timeout of a member of the classic protocol."""
        assert self.classic_metadata is not None
        return self.classic_metadata.session_timeout_ms

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether the member owns exactly its target assignment of an epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, topic_id: Uuid, partition: int) -> int | None:
        """Return the assignment epoch of a partition that is assigned or pending revocation."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return epoch if epoch is not None else self.pending_revocation.get(topic_id, {}).get(partition)


class SubscriptionCount(NamedTuple):
    """The number of members that subscribe to a topic by name, and of regular expressions that match it."""

    by_name: int = 0
    by_regex: int = 0


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched, with the metadata version and the time of the match."""

    topics: frozenset[str]
    version: int = -1
    timestamp_ms: int = -1


def count_topics(
    counts: dict[str, SubscriptionCount], topics: Iterable[str], *, by_name: int = 0, by_regex: int = 0
) -> None:
    """Add to the subscription counts of topics; topics without subscriptions are removed."""
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
    """Return whether all members subscribe to the same topics."""
    if not regexes:
        same = all(count.by_name == member_count for count in topics.values())
    else:
        # All members subscribe by the same regular expression and by nothing else.
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

    # State

    @property
    def state(self) -> ConsumerState:
        """The state of the group."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def state_name(self) -> str:
        """The state as ConsumerGroupDescribe shows it."""
        return self.state.value

    @property
    def subscription_type(self) -> SubscriptionType:
        """Whether all members subscribe to the same topics."""
        return subscription_type(self.subscribed_regexes, self.subscribed_topics, len(self.members))

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with an instance id."""
        member_id = self.static_members.get(instance_id) if instance_id is not None else None
        return self.members[member_id] if member_id is not None else None

    def partition_epoch(self, topic_id: Uuid, partition: int) -> int:
        """Return the member epoch of a partition's owner; NO_OWNER if it is unassigned."""
        return self.partition_epochs.get(topic_id, {}).get(partition, NO_OWNER)

    def target(self, member_id: str) -> Partitions:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, {})

    def target_of_instance(self, member_id: str, instance_id: str | None) -> Partitions:
        """Return the target assignment of a member, or of the static member that it replaces."""
        if instance_id is None:
            return self.target(member_id)
        static_id = self.static_members.get(instance_id)
        return self.target(static_id) if static_id is not None else {}

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return topic in self.subscribed_topics

    def preferred_assignor(self, old: ConsumerMember | None = None, new: ConsumerMember | None = None) -> str | None:
        """Return the assignor that most members request, once `new` replaces `old`."""
        counts = dict(self.server_assignors)
        if old is not None:
            add_count(counts, old.server_assignor, -1)
        if new is not None:
            add_count(counts, new.server_assignor, +1)
        # On a tie Kafka takes the first one of its hash table: uniform before range.
        return max(counts, key=lambda name: (counts[name], name)) if counts else None

    # Subscriptions after a change

    def topics_after(self, old: ConsumerMember | None, new: ConsumerMember | None) -> dict[str, SubscriptionCount]:
        """Return the subscribed topics once `new` replaces `old`."""
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
        """Return the subscribed regular expressions once `new` replaces `old`."""
        counts = dict(self.subscribed_regexes)
        add_count(counts, old.regex if old is not None else None, -1)
        add_count(counts, new.regex if new is not None else None, +1)
        return counts

    def topics_without(self, members: Iterable[ConsumerMember], regexes: Iterable[str]) -> dict[str, SubscriptionCount]:
        """Return the subscribed topics without some members and regular expressions."""
        counts = dict(self.subscribed_topics)
        for member in members:
            count_topics(counts, member.subscribed_topic_names, by_name=-1)
        for regex in regexes:
            if regex in self.resolved_regexes:
                count_topics(counts, self.resolved_regexes[regex].topics, by_regex=-1)
        return counts

    # Changes by replayed records

    def update_member(self, new: ConsumerMember) -> None:
        """Add or update a member."""
        old = self.members.get(new.member_id)
        self.members[new.member_id] = new
        self._replace(old, new)
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id

    def remove_member(self, member_id: str) -> None:
        """Remove a member."""
        old = self.members.pop(member_id, None)
        self._replace(old, None)
        if old is not None and old.instance_id is not None:
            self.static_members.pop(old.instance_id, None)

    def _replace(self, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
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
            self._release(old.assigned, old.member_epoch)
            self._release(old.pending_revocation, old.member_epoch)
        if new is not None:
            self._assign(new.assigned, new.member_epoch)
            self._assign(new.pending_revocation, new.member_epoch)

    def _release(self, assignment: PartitionEpochs, epoch: int) -> None:
        for topic_id, partitions in assignment.items():
            owned = self.partition_epochs.get(topic_id)
            if owned is None:
                continue
            for partition in partitions:
                # During replay a partition may get its next owner before the previous one has released it.
                if owned.get(partition) == epoch:
                    del owned[partition]
            if not owned:
                del self.partition_epochs[topic_id]

    def _assign(self, assignment: PartitionEpochs, epoch: int) -> None:
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
        """Set the target assignment of a member."""
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
        """Remove the target assignment of a member."""
        self.set_target(member_id, {})
        del self.targets[member_id]

    def set_resolved_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Set the topics of a regular expression; None removes it."""
        old = self.resolved_regexes.pop(regex, None)
        if old is not None:
            count_topics(self.subscribed_topics, sorted(old.topics), by_regex=-1)
        if resolved is not None:
            self.resolved_regexes[regex] = resolved
            count_topics(self.subscribed_topics, sorted(resolved.topics), by_regex=+1)

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group."""
        return self.tombstones_for(self.members)

    def tombstones_for(self, member_ids: Iterable[str]) -> list[GroupRecord]:
        """Return the records that delete the group when it has these members."""
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

    # Validation

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> Callable[[str, Uuid, int], None] | None:
        """Raise for an unknown member or a newer epoch; return the check of each partition for an older epoch.

        A member may still commit a partition whose assignment epoch is not newer than the commit's epoch (KIP-1251).
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
        epoch_name = "generation id" if member.uses_classic_protocol else "member epoch"
        if member_epoch > member.member_epoch:
            raise KafkaError(
                stale, f"Received {epoch_name} {member_epoch} is newer than current member epoch {member.member_epoch}."
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
                    f"Received {epoch_name} {member_epoch} is older than assignment epoch {epoch} "
                    f"for partition {topic}-{partition}.",
                )

        return validate

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Raise for an unknown member or another epoch; requests without a member pass."""
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
        """Accept: subscriptions are known, so that subscribed topics are refused one by one."""

    def validate_delete(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """Return the start of an offset's retention: its commit."""
        return commit_timestamp_ms


def with_epoch(member: ConsumerMember, epoch: int) -> ConsumerMember:
    """Return the member in an epoch, with its current epoch as the previous one."""
    return replace(member, member_epoch=epoch, previous_member_epoch=member.member_epoch)
