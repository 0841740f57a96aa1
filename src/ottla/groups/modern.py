"""What consumer, share and streams groups have in common: epochs, members by id, when to look at the topics again."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError

M = TypeVar("M")
T = TypeVar("T")


class AssignmentMetadata(Protocol):
    """The record of any of these groups that says when its targets were computed."""

    assignment_epoch: int
    assignment_timestamp: int


class ModernGroup(Generic[M, T]):
    """A group whose assignment the coordinator computes, epoch by epoch."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 1
        self.assignment_timestamp_ms = 0
        self.members: dict[str, M] = {}
        self.targets: dict[str, T] = {}
        # Soft: whether the topics have to be looked at again. The epoch guards against records that never got written.
        self._fresh_since_epoch: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        return not self.members

    def member(self, member_id: str) -> M:
        """The member with that id; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def replay_assignment(self, value: AssignmentMetadata | None) -> None:
        """Take over when, and for which epoch, the targets were computed; `None` deletes it."""
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def assigned_within(self, interval_ms: int, now_ms: int) -> bool:
        """Whether the targets were computed just now, so that a group that starts computes once, not once a member.

        A time in the future, which a clock that was set back leaves behind, holds up nothing.
        """
        return 0 <= now_ms - self.assignment_timestamp_ms < interval_ms

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


def count(counts: dict[str, int], name: str | None, change: int) -> None:
    """Add to how often a name is used; one that nobody uses is left out."""
    if name is not None:
        number = counts.get(name, 0) + change
        if number:
            counts[name] = number
        else:
            counts.pop(name, None)
