"""A streams group (KIP-1071): members that process the tasks of a topology, and who has which task now.

Everything here is hard state, what the group's records say, but for a few things that Kafka forgets with the
coordinator as well: the topology as it was last resolved, who asked for a shutdown, and the endpoints' epoch. What
requests do is in `streams_heartbeat`; how a member moves from its tasks to its target is in `streams_reconciliation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.modern import MEMBER_EPOCH_COMMIT_VERSION, ModernGroup
from ottla.groups.streams import records
from ottla.groups.streams.assignor import NO_TASKS, TaskAssignment, Tasks
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from ottla.groups.records import GroupRecord
    from ottla.groups.streams.topology import ConfiguredTopology, StreamsTopology
    from ottla.protocol.uuids import Uuid

TaskEpochs = dict[str, dict[int, int]]
"""Subtopologies and their tasks, each with the epoch in which the member got it. Never changed in place."""

Task = tuple[str, int]


class StreamsMemberState(Enum):
    """How far a member has come on the way to its target."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class StreamsState(Enum):
    """How far the group as a whole has come; derived, never stored."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class OwnedTasks(NamedTuple):
    """The tasks that a member has, or has yet to give back."""

    active: TaskEpochs
    standby: Tasks
    warmup: Tasks

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        return not (self.active or self.standby or self.warmup)


NOTHING_OWNED: Final = OwnedTasks({}, {}, {})


class Endpoint(NamedTuple):
    """Where an instance of the application answers interactive queries."""

    host: str
    port: int


@dataclass(slots=True, frozen=True)
class StreamsMember:
    """One member; a change makes a new one."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    assigned: OwnedTasks = NOTHING_OWNED
    pending_revocation: OwnedTasks = NOTHING_OWNED

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has exactly its target of that epoch."""
        return self.state is StreamsMemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, subtopology_id: str, partition: int) -> int | None:
        """The epoch in which it got an active task that it has or has yet to give back."""
        epoch = self.assigned.active.get(subtopology_id, {}).get(partition)
        return epoch if epoch is not None else self.pending_revocation.active.get(subtopology_id, {}).get(partition)


class TaskOwners:
    """Which process has which task: one an active task, any number its copies."""

    def __init__(self) -> None:
        self.active: dict[Task, str] = {}
        self._copies: tuple[dict[Task, set[str]], dict[Task, set[str]]] = ({}, {})  # standby tasks, warm-up tasks

    def has_copy(self, task: Task, process_id: str) -> bool:
        """Whether a process has a task as a standby or a warm-up."""
        return any(process_id in copies.get(task, ()) for copies in self._copies)

    def add(self, tasks: OwnedTasks, process_id: str) -> None:
        """A member of a process has these tasks now."""
        for task in _each(tasks.active):
            self.active[task] = process_id
        for copies, kind in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
            for task in _each(kind):
                copies.setdefault(task, set()).add(process_id)

    def remove(self, tasks: OwnedTasks, process_id: str) -> None:
        """A member of a process does not have these tasks any more."""
        for task in _each(tasks.active):
            # While records are replayed, a task may have found its next owner before its last one let go.
            if self.active.get(task) == process_id:
                del self.active[task]
        for copies, kind in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
            for task in _each(kind):
                owners = copies.get(task)
                if owners is not None:
                    owners.discard(process_id)
                    if not owners:
                        del copies[task]


def _each(tasks: Mapping[str, Collection[int]]) -> Iterator[Task]:
    return ((subtopology_id, partition) for subtopology_id, partitions in tasks.items() for partition in partitions)


class StreamsGroup(ModernGroup[StreamsMember, TaskAssignment]):
    """One group of the streams protocol."""

    type = "streams"
    protocol_type = "streams"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.topology: StreamsTopology | None = None
        self.validated_topology_epoch = 0
        self.assignment_configs: dict[str, str] = {}
        self.owners = TaskOwners()
        # Soft
        self.configured: ConfiguredTopology | None = None
        self.shutdown_requested_by: str | None = None
        self.endpoint_epoch = 0

    # What it is

    @property
    def state(self) -> StreamsState:
        """How far it has come."""
        if not self.members:
            return StreamsState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return StreamsState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return StreamsState.STABLE
        return StreamsState.RECONCILING

    @property
    def state_name(self) -> str:
        """The state as it is shown."""
        return self.state.value

    def target(self, member_id: str) -> TaskAssignment:
        """What a member is to have."""
        return self.targets.get(member_id, NO_TASKS)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the topology reads a topic, while there is anybody to process it."""
        return bool(self.members) and self.topology is not None and self.topology.reads(topic)

    # Changes

    def update_member(self, new: StreamsMember) -> None:
        """A member came, or is different now."""
        self._release(self.members.get(new.member_id))
        self.members[new.member_id] = new
        self.owners.add(new.assigned, new.process_id)
        self.owners.add(new.pending_revocation, new.process_id)

    def remove_member(self, member_id: str) -> None:
        """A member is gone; with the last one goes the wish to shut down."""
        self._release(self.members.pop(member_id, None))
        if not self.members:
            self.shutdown_requested_by = None

    def _release(self, member: StreamsMember | None) -> None:
        if member is not None:
            self.owners.remove(member.assigned, member.process_id)
            self.owners.remove(member.pending_revocation, member.process_id)

    def request_shutdown(self, member_id: str) -> None:
        """A member wants all instances of the application to stop; the first to say so is remembered."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """What deletes the group."""
        return records.group_tombstones(self.group_id, self.members)

    # What may be done to it

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> Callable[[str, Uuid, int], None] | None:
        """Refuse a commit of a stranger or of the future; of an older epoch, each partition has to pass for itself."""
        if member_epoch < 0 and not self.members:
            return None
        if transactional and member_epoch == -1 and member_id == "" and instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and version < MEMBER_EPOCH_COMMIT_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the streams group protocol",
            )
        if member_epoch == member.member_epoch:
            return None
        if member_epoch > member.member_epoch:
            raise _stale(
                f"Received member epoch {member_epoch} is newer than current member epoch {member.member_epoch}."
            )
        topology = self.topology
        if topology is None:
            raise _stale("Topology is not available for offset commit validation.")

        def validate(topic: str, topic_id: Uuid, partition: int) -> None:
            subtopology = topology.subtopology_of(topic)
            if subtopology is None:
                raise _stale(f"Topic {topic} is not in the topology.")
            task = f"{subtopology.subtopology_id}-{partition}"
            epoch = member.assignment_epoch(subtopology.subtopology_id, partition)
            if epoch is None:
                raise _stale(f"Task {task} is not assigned or pending revocation for member.")
            if member_epoch < epoch:
                raise _stale(
                    f"Received member epoch {member_epoch} is older than assignment epoch {epoch} for task {task}."
                )

        return validate

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Refuse a member of another epoch; who names no member is let through."""
        if member_id is None and member_epoch < 0:
            return
        expected = self.member(member_id or "").member_epoch
        if member_epoch != expected:
            raise _stale(
                f"The received member epoch {member_epoch} does not match the expected member epoch {expected}."
            )

    def validate_offset_delete(self) -> None:
        """Offsets of topics that nobody reads can always be forgotten: the topology is known here."""

    def validate_delete(self) -> None:
        """Refuse to delete a group with members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """The time from which an offset's retention counts."""
        return commit_timestamp_ms


def initial_rebalance_timer(group_id: str) -> tuple[str, str]:
    """The name of the timer that lets more members join before the first assignment."""
    return ("streams-initial-rebalance", group_id)


def _stale(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message)
