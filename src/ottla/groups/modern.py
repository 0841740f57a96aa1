"""The common base of consumer, share and streams groups (Kafka's ModernGroup): epochs, members, target assignments."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.protocol.uuids import Uuid

M = TypeVar("M")
T = TypeVar("T")

JOIN_EPOCH: Final = 0
LEAVE_GROUP_EPOCH: Final = -1
LEAVE_GROUP_STATIC_EPOCH: Final = -2
MEMBER_EPOCH_COMMIT_VERSION: Final = 9

Partitions = dict["Uuid", tuple[int, ...]]
"""Partitions by topic id, in ascending order."""


class MemberState(Enum):
    """The progress of a member's reconciliation with its target assignment (Kafka's MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class SubscriptionType(Enum):
    """Whether all members subscribe to the same topics."""

    HOMOGENEOUS = 0
    HETEROGENEOUS = 1


class Target(NamedTuple):
    """The target assignment of a member and its assignment epoch."""

    epoch: int
    partitions: Partitions


class AssignmentMetadata(Protocol):
    """The TargetAssignmentMetadata value of any group type."""

    assignment_epoch: int
    assignment_timestamp: int


class ModernGroup(Generic[M, T]):
    """A group whose target assignment the coordinator computes (Kafka's ModernGroup)."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        # Soft state. The epoch guards against a refresh whose records were never written.
        self._fresh_since_epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    def member(self, member_id: str) -> M:
        """Return a member; raise UNKNOWN_MEMBER_ID if it does not exist."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def replay_assignment(self, value: AssignmentMetadata | None) -> None:
        """Set the assignment epoch and its timestamp from a record; None is a tombstone."""
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def assigned_within(self, interval_ms: int, now_ms: int) -> bool:
        """Return whether the target assignment was computed within the assignment interval.

        The interval spares a starting group one computation per member. A timestamp in the future, left by a clock
        that was set back, does not count.
        """
        return 0 <= now_ms - self.assignment_timestamp_ms < interval_ms

    # The metadata hash is computed again when topics have changed, not at each heartbeat.

    def metadata_expired(self) -> bool:
        """Return whether topics may have changed since the metadata hash was computed."""
        return self._fresh_since_epoch is None or self.group_epoch < self._fresh_since_epoch

    def metadata_refreshed(self, epoch: int) -> None:
        """Record that the metadata hash of an epoch is up to date."""
        self._fresh_since_epoch = epoch

    def request_metadata_refresh(self) -> None:
        """Have the next heartbeat compute the metadata hash again."""
        self._fresh_since_epoch = None


def add_count(counts: dict[str, int], name: str | None, change: int) -> None:
    """Add to the count of a name; a count of zero is removed."""
    if name is not None:
        total = counts.get(name, 0) + change
        if total:
            counts[name] = total
        else:
            counts.pop(name, None)
