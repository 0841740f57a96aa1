"""A streams group (Kafka's StreamsGroup, KIP-1071): members that run the tasks of a topology, and the owners of tasks.

Hard state, except for what Kafka loses with the coordinator as well: the configured topology, the shutdown request and
the endpoint epoch. Requests are in `heartbeat`, the steps towards a target assignment in `reconciliation`.
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
"""Tasks by subtopology id, each with its assignment epoch. Never changed in place."""

Task = tuple[str, int]


class StreamsMemberState(Enum):
    """The progress of a member's reconciliation with its target assignment."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class StreamsState(Enum):
    """The state of the group, derived from its members and topology and never stored."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class OwnedTasks(NamedTuple):
    """The tasks that a member owns or has yet to revoke."""

    active: TaskEpochs
    standby: Tasks
    warmup: Tasks

    @property
    def is_empty(self) -> bool:
        """Whether there are no tasks."""
        return not (self.active or self.standby or self.warmup)


NOTHING_OWNED: Final = OwnedTasks({}, {}, {})


class Endpoint(NamedTuple):
    """The address for interactive queries of an application instance."""

    host: str
    port: int


@dataclass(slots=True, frozen=True)
class StreamsMember:
    """One member (Kafka's StreamsGroupMember); immutable."""

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
        """Return whether the member owns exactly its target assignment of an epoch."""
        return self.state is StreamsMemberState.STABLE and self.member_epoch == target_epoch

    def assignment_epoch(self, subtopology_id: str, partition: int) -> int | None:
        """Return the assignment epoch of an active task that is assigned or pending revocation."""
        epoch = self.assigned.active.get(subtopology_id, {}).get(partition)
        return epoch if epoch is not None else self.pending_revocation.active.get(subtopology_id, {}).get(partition)


class TaskOwners:
    """The processes that own tasks: one for an active task, any number for standby and warm-up tasks."""

    def __init__(self) -> None:
        self.active: dict[Task, str] = {}
        self._copies: tuple[dict[Task, set[str]], dict[Task, set[str]]] = ({}, {})  # standby tasks, warm-up tasks

    def has_copy(self, task: Task, process_id: str) -> bool:
        """Return whether a process has a standby or warm-up task."""
        return any(process_id in copies.get(task, ()) for copies in self._copies)

    def add(self, tasks: OwnedTasks, process_id: str) -> None:
        """Add the tasks of a member of a process."""
        for task in _iterate(tasks.active):
            self.active[task] = process_id
        for copies, kind in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
            for task in _iterate(kind):
                copies.setdefault(task, set()).add(process_id)

    def remove(self, tasks: OwnedTasks, process_id: str) -> None:
        """Remove the tasks of a member of a process."""
        for task in _iterate(tasks.active):
            # During replay a task may get its next owner before the previous one has released it.
            if self.active.get(task) == process_id:
                del self.active[task]
        for copies, kind in zip(self._copies, (tasks.standby, tasks.warmup), strict=True):
            for task in _iterate(kind):
                owners = copies.get(task)
                if owners is not None:
                    owners.discard(process_id)
                    if not owners:
                        del copies[task]


def _iterate(tasks: Mapping[str, Collection[int]]) -> Iterator[Task]:
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
        # Soft state
        self.configured: ConfiguredTopology | None = None
        self.shutdown_requested_by: str | None = None
        self.endpoint_epoch = 0

    # State

    @property
    def state(self) -> StreamsState:
        """The state of the group."""
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
        """The state as StreamsGroupDescribe shows it."""
        return self.state.value

    def target(self, member_id: str) -> TaskAssignment:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, NO_TASKS)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the topology of a group with members reads a topic."""
        return bool(self.members) and self.topology is not None and self.topology.reads(topic)

    # Changes by replayed records

    def update_member(self, new: StreamsMember) -> None:
        """Add or update a member."""
        self._release(self.members.get(new.member_id))
        self.members[new.member_id] = new
        self.owners.add(new.assigned, new.process_id)
        self.owners.add(new.pending_revocation, new.process_id)

    def remove_member(self, member_id: str) -> None:
        """Remove a member; the last one takes the shutdown request with it."""
        self._release(self.members.pop(member_id, None))
        if not self.members:
            self.shutdown_requested_by = None

    def _release(self, member: StreamsMember | None) -> None:
        if member is not None:
            self.owners.remove(member.assigned, member.process_id)
            self.owners.remove(member.pending_revocation, member.process_id)

    def request_shutdown(self, member_id: str) -> None:
        """Remember the first member that requested the shutdown of the application."""
        if self.shutdown_requested_by is None:
            self.shutdown_requested_by = member_id

    # Records

    def tombstones(self) -> list[GroupRecord]:
        """Return the records that delete the group."""
        return records.group_tombstones(self.group_id, self.members)

    # Validation

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, member_epoch: int, version: int, *, transactional: bool
    ) -> Callable[[str, Uuid, int], None] | None:
        """Raise for an unknown member or a newer epoch; return the check of each partition for an older epoch."""
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
        """Raise for an unknown member or another epoch; requests without a member pass."""
        if member_id is None and member_epoch < 0:
            return
        expected = self.member(member_id or "").member_epoch
        if member_epoch != expected:
            raise _stale(
                f"The received member epoch {member_epoch} does not match the expected member epoch {expected}."
            )

    def validate_offset_delete(self) -> None:
        """Accept: the topology is known, so that subscribed topics are refused one by one."""

    def validate_delete(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members."""
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, error_text(ErrorCode.NON_EMPTY_GROUP))

    def offset_expiry_base(self, commit_timestamp_ms: int) -> int | None:
        """Return the start of an offset's retention: its commit."""
        return commit_timestamp_ms


def initial_rebalance_timer(group_id: str) -> tuple[str, str]:
    """Return the name of the timer that delays the first assignment."""
    return ("streams-initial-rebalance", group_id)


def _stale(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STALE_MEMBER_EPOCH, message)
