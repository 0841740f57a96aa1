"""Reconciliation of a streams member with its target tasks (KIP-1071; Kafka's streams CurrentAssignmentBuilder).

A member first revokes the tasks that are not in its target and acknowledges it; then it gets the tasks that are free:
an active task that no process owns and of which its own process has no copy, a copy of a task that its process does
not have. Pure functions that return the updated member.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ottla.groups.streams.group import NOTHING_OWNED, OwnedTasks, StreamsMember, StreamsMemberState, Task, TaskOwners
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ottla.groups.streams.assignor import TaskAssignment, Tasks


class TaskTarget(NamedTuple):
    """The target assignment of a member and its assignment epoch."""

    epoch: int
    tasks: TaskAssignment


def reconcile(
    member: StreamsMember, target: TaskTarget, owned: TaskAssignment | None, owners: TaskOwners
) -> StreamsMember:
    """Return the member after its next step.

    `owned` are the tasks that the member reports; None, no report, counts as still owning all of them.
    """
    match member.state:
        case StreamsMemberState.STABLE:
            if member.member_epoch == target.epoch:
                return member
            return _next_assignment(member, member.member_epoch, target, owned, owners)
        case StreamsMemberState.UNREVOKED_TASKS:
            if _still_owns(owned, member.pending_revocation):
                return member
            return _next_assignment(member, member.member_epoch + 1, target, owned, owners)
        case StreamsMemberState.UNRELEASED_TASKS:
            return _next_assignment(member, member.member_epoch, target, owned, owners)
        case StreamsMemberState.UNKNOWN:
            # A state that a newer version wrote: the member may only continue if it owns nothing.
            if owned is None or any(owned):
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            return _next_assignment(member, target.epoch, target, owned, owners)


def _still_owns(owned: TaskAssignment | None, revoked: OwnedTasks) -> bool:
    """Return whether the member has not yet acknowledged the revocation of all these tasks."""
    kinds: tuple[Mapping[str, Collection[int]], ...] = revoked
    return owned is None or any(
        not set(partitions).isdisjoint(revoked_tasks.get(subtopology_id, ()))
        for reported, revoked_tasks in zip(owned, kinds, strict=True)
        for subtopology_id, partitions in reported.items()
    )


def _next_assignment(
    member: StreamsMember, member_epoch: int, target: TaskTarget, owned: TaskAssignment | None, owners: TaskOwners
) -> StreamsMember:
    """Move towards the target: revoke tasks, or else assign the free ones."""
    process = member.process_id

    def active_is_taken(task: Task) -> bool:
        return task in owners.active or owners.has_copy(task, process)

    def copy_is_taken(task: Task) -> bool:
        return owners.active.get(task) == process or owners.has_copy(task, process)

    assigned = member.assigned
    active = _difference(assigned.active, target.tasks.active, active_is_taken)
    standby = _difference(assigned.standby, target.tasks.standby, copy_is_taken)
    warmup = _difference(assigned.warmup, target.tasks.warmup, copy_is_taken)
    revoked = OwnedTasks(
        {name: {task: assigned.active[name][task] for task in tasks} for name, tasks in active.revoked.items()},
        standby.revoked,
        warmup.revoked,
    )
    kept = {name: {task: assigned.active[name][task] for task in tasks} for name, tasks in active.kept.items()}
    if not revoked.is_empty and _still_owns(owned, revoked):
        return _with_tasks(
            member,
            member_epoch,
            state=StreamsMemberState.UNREVOKED_TASKS,
            assigned=OwnedTasks(kept, standby.kept, warmup.kept),
            pending_revocation=revoked,
        )
    for name, tasks in active.free.items():
        kept[name] = dict(sorted({**kept.get(name, {}), **dict.fromkeys(tasks, target.epoch)}.items()))
    waits = active.waits or standby.waits or warmup.waits
    return _with_tasks(
        member,
        target.epoch,
        state=StreamsMemberState.UNRELEASED_TASKS if waits else StreamsMemberState.STABLE,
        assigned=OwnedTasks(kept, standby.with_free(), warmup.with_free()),
        pending_revocation=NOTHING_OWNED,
    )


def _with_tasks(
    member: StreamsMember,
    epoch: int,
    *,
    state: StreamsMemberState,
    assigned: OwnedTasks,
    pending_revocation: OwnedTasks,
) -> StreamsMember:
    return replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


class _Difference(NamedTuple):
    """The tasks that a member keeps, revokes and can get now, and whether it has to wait for others."""

    kept: dict[str, tuple[int, ...]]
    revoked: dict[str, tuple[int, ...]]
    free: dict[str, tuple[int, ...]]
    waits: bool

    def with_free(self) -> Tasks:
        """Return the kept and the free tasks."""
        return {
            name: tuple(sorted((*self.kept.get(name, ()), *self.free.get(name, ()))))
            for name in dict.fromkeys((*self.kept, *self.free))
        }


def _difference(
    owned: Mapping[str, Collection[int]], target: Mapping[str, tuple[int, ...]], is_taken: Callable[[Task], bool]
) -> _Difference:
    result = _Difference({}, {}, {}, waits=False)
    waits = False
    for name in dict.fromkeys((*target, *owned)):
        current, targeted = set(owned.get(name, ())), set(target.get(name, ()))
        missing = targeted - current
        free = [task for task in missing if not is_taken((name, task))]
        waits = waits or len(free) < len(missing)
        for part, tasks in (
            (result.kept, current & targeted),
            (result.revoked, current - targeted),
            (result.free, free),
        ):
            if tasks:
                part[name] = tuple(sorted(tasks))
    return result._replace(waits=waits)
