"""How a member of a streams group gets from the tasks that it has to those that it is to have (KIP-1071).

First it gives back what is not in its target, and says so; then it gets what is free. An active task is free when no
process has it, and when the member's own process has no copy of it; a copy is free when its process has the task in no
other way. Pure functions: a member goes in, the member as it is next comes out.
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
    """What a member is to have, and the epoch that this is of."""

    epoch: int
    tasks: TaskAssignment


def reconcile(
    member: StreamsMember, target: TaskTarget, owned: TaskAssignment | None, owners: TaskOwners
) -> StreamsMember:
    """The member's next step.

    `owned` is what the member says it has, or None if it says nothing, which counts as still having all of it.
    """
    match member.state:
        case StreamsMemberState.STABLE:
            if member.member_epoch == target.epoch:
                return member
            return _next_assignment(member, member.member_epoch, target, owned, owners)
        case StreamsMemberState.UNREVOKED_TASKS:
            if _still_has(owned, member.pending_revocation):
                return member
            return _next_assignment(member, member.member_epoch + 1, target, owned, owners)
        case StreamsMemberState.UNRELEASED_TASKS:
            return _next_assignment(member, member.member_epoch, target, owned, owners)
        case StreamsMemberState.UNKNOWN:
            # A state that a later version wrote: only a member that has nothing can go on from there.
            if owned is None or any(owned):
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
                )
            return _next_assignment(member, target.epoch, target, owned, owners)


def _still_has(owned: TaskAssignment | None, revoked: OwnedTasks) -> bool:
    """Whether the member has not yet said that it let go of all of these."""
    kinds: tuple[Mapping[str, Collection[int]], ...] = revoked
    return owned is None or any(
        not set(partitions).isdisjoint(to_go.get(subtopology_id, ()))
        for has, to_go in zip(owned, kinds, strict=True)
        for subtopology_id, partitions in has.items()
    )


def _next_assignment(
    member: StreamsMember, member_epoch: int, target: TaskTarget, owned: TaskAssignment | None, owners: TaskOwners
) -> StreamsMember:
    """Go on towards the target: give back, or else take what is free."""
    process = member.process_id

    def active_is_taken(task: Task) -> bool:
        return task in owners.active or owners.has_copy(task, process)

    def copy_is_taken(task: Task) -> bool:
        return owners.active.get(task) == process or owners.has_copy(task, process)

    has = member.assigned
    active = _difference(has.active, target.tasks.active, active_is_taken)
    standby = _difference(has.standby, target.tasks.standby, copy_is_taken)
    warmup = _difference(has.warmup, target.tasks.warmup, copy_is_taken)
    revoked = OwnedTasks(
        {each: {task: has.active[each][task] for task in tasks} for each, tasks in active.revoked.items()},
        standby.revoked,
        warmup.revoked,
    )
    kept = {each: {task: has.active[each][task] for task in tasks} for each, tasks in active.kept.items()}
    if not revoked.is_empty and _still_has(owned, revoked):
        return _moved(
            member,
            member_epoch,
            state=StreamsMemberState.UNREVOKED_TASKS,
            assigned=OwnedTasks(kept, standby.kept, warmup.kept),
            pending_revocation=revoked,
        )
    for each, tasks in active.free.items():
        kept[each] = dict(sorted({**kept.get(each, {}), **dict.fromkeys(tasks, target.epoch)}.items()))
    waits = active.waits or standby.waits or warmup.waits
    return _moved(
        member,
        target.epoch,
        state=StreamsMemberState.UNRELEASED_TASKS if waits else StreamsMemberState.STABLE,
        assigned=OwnedTasks(kept, standby.with_free(), warmup.with_free()),
        pending_revocation=NOTHING_OWNED,
    )


def _moved(
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
    """What a member keeps, gives back and can have at once; and whether there is more that it has to wait for."""

    kept: dict[str, tuple[int, ...]]
    revoked: dict[str, tuple[int, ...]]
    free: dict[str, tuple[int, ...]]
    waits: bool

    def with_free(self) -> Tasks:
        """What is kept and what can be had."""
        return {
            each: tuple(sorted((*self.kept.get(each, ()), *self.free.get(each, ()))))
            for each in dict.fromkeys((*self.kept, *self.free))
        }


def _difference(
    has: Mapping[str, Collection[int]], target: Mapping[str, tuple[int, ...]], is_taken: Callable[[Task], bool]
) -> _Difference:
    result = _Difference({}, {}, {}, waits=False)
    waits = False
    for each in dict.fromkeys((*target, *has)):
        held, wanted = set(has.get(each, ())), set(target.get(each, ()))
        missing = wanted - held
        free = [task for task in missing if not is_taken((each, task))]
        waits = waits or len(free) < len(missing)
        for found, tasks in (
            (result.kept, held & wanted),
            (result.revoked, held - wanted),
            (result.free, free),
        ):
            if tasks:
                found[each] = tuple(sorted(tasks))
    return result._replace(waits=waits)
