"""The assignor of streams groups (Kafka's StickyTaskAssignor): active and standby tasks of each member.

Tasks stay in place, as active or standby tasks, up to the quota of a member; the others go to the process with the
least load, and in it to the member with the fewest tasks. A process never has a task twice. Ties are resolved as by
Kafka's hash maps and priority queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from ottla.hashing.java import hash_map_order, hash_order, java_string_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.streams.topology import ConfiguredSubtopology

Tasks = dict[str, tuple[int, ...]]
"""Partitions of tasks by subtopology id, ascending."""
TaskId = tuple[str, int]
T = TypeVar("T")


class TaskAssignment(NamedTuple):
    """The tasks of a member. Warm-up tasks are always empty: Kafka's assignor does not assign them yet."""

    active: Mapping[str, tuple[int, ...]]
    standby: Mapping[str, tuple[int, ...]]
    warmup: Mapping[str, tuple[int, ...]]


NO_TASKS: Final = TaskAssignment({}, {}, {})


class StreamsMemberSpec(NamedTuple):
    """The input of the assignor for a member; `target` is its previous target assignment."""

    process_id: str
    instance_id: str | None
    rack_id: str | None
    client_tags: Mapping[str, str]
    target: TaskAssignment


def assign(
    members: Mapping[str, StreamsMemberSpec],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    num_standby_replicas: int,
) -> dict[str, TaskAssignment]:
    """Return the target assignment of all members."""
    if not members:
        return {}
    return _Assignment(members, subtopologies, num_standby_replicas).assign()


class _Process:
    """A process of the application: its members, which are threads, and their tasks."""

    def __init__(self) -> None:
        self.task_counts: dict[str, int] = {}
        self.tasks: set[TaskId] = set()
        self._total = 0
        self._by_load: _Queue[str] | None = None

    @property
    def load(self) -> float:
        """The number of tasks per member."""
        return self._total / len(self.task_counts)

    def add(self, member_id: str, task: TaskId) -> int:
        """Add a task to a member; return its number of tasks."""
        self._by_load = None
        return self._add(member_id, task)

    def add_to_least_loaded(self, task: TaskId) -> tuple[str, int]:
        """Add a task to the member with the fewest; return the member id and its number of tasks."""
        if self._by_load is None:
            counts = self.task_counts
            self._by_load = _Queue((counts[member_id], member_id) for member_id in hash_map_order(counts))
        member_id = self._by_load.poll()
        count = self._add(member_id, task)
        self._by_load.add(count, member_id)
        return member_id, count

    def _add(self, member_id: str, task: TaskId) -> int:
        self.tasks.add(task)
        count = self.task_counts[member_id] + 1
        self.task_counts[member_id] = count
        self._total += 1
        return count


class _Quota:
    """The number of tasks per member for an even distribution; full members no longer count."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.per_member = -(-tasks // members)

    def filled_to(self, count: int) -> None:
        """Count a member as full if it has reached the quota."""
        if count == self.per_member:
            self._members -= 1
            self._tasks -= count
            self.per_member = -(-self._tasks // self._members) if self._members else 0


class _Queue(Generic[T]):
    """Java's PriorityQueue: a binary heap with the same order of ties, which `heapq` does not have."""

    def __init__(self, entries: Iterable[tuple[float, T]]) -> None:
        self._heap: list[tuple[float, T]] = []
        for key, item in entries:
            self.add(key, item)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, key: float, item: T) -> None:
        """Add an item."""
        heap = self._heap
        entry = (key, item)
        heap.append(entry)
        index = len(heap) - 1
        while index > 0:
            parent = (index - 1) >> 1
            above = heap[parent]
            if key >= above[0]:
                break
            heap[index] = above
            index = parent
        heap[index] = entry

    def poll(self) -> T:
        """Remove and return the smallest item."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last[1]
        least = heap[0]
        count, index, key = len(heap), 0, last[0]
        while (child := 2 * index + 1) < count:
            below = heap[child]
            if child + 1 < count and below[0] > heap[child + 1][0]:
                child += 1
                below = heap[child]
            if key <= below[0]:
                break
            heap[index] = below
            index = child
        heap[index] = last
        return least[1]


class _Assignment:
    """One run of the assignor."""

    def __init__(
        self,
        members: Mapping[str, StreamsMemberSpec],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        replicas: int,
    ) -> None:
        self._members = members
        self._replicas = replicas
        self._active_tasks = _task_ids(subtopologies.items())
        self._stateful_tasks = _task_ids(
            (name, subtopology) for name, subtopology in subtopologies.items() if subtopology.is_stateful
        )
        self._active_quota = _Quota(len(self._active_tasks), len(members))
        self._quota = _Quota(len(self._active_tasks) + len(self._stateful_tasks) * replicas, len(members))
        processes: dict[str, _Process] = {}
        self._process_by_member: dict[str, _Process] = {}
        self._active_before: dict[TaskId, str] = {}
        self._standby_before: dict[TaskId, list[str]] = {}
        for member_id in hash_map_order(members):
            spec = members[member_id]
            process = self._process_by_member[member_id] = processes.setdefault(spec.process_id, _Process())
            process.task_counts[member_id] = 0
            self._active_before.update((task, member_id) for task in _tasks(spec.target.active))
            for task in _tasks(spec.target.standby):
                self._standby_before.setdefault(task, []).append(member_id)
        self._processes = [processes[name] for name in hash_order(processes, java_string_hash, len(members))]
        self._active: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
        self._standby: dict[str, list[TaskId]] = {member_id: [] for member_id in members}

    def assign(self) -> dict[str, TaskAssignment]:
        self._assign_active()
        if self._replicas > 0:
            self._assign_standby()
        return {
            member_id: TaskAssignment(_grouped(self._active[member_id]), _grouped(self._standby[member_id]), {})
            for member_id in self._members
        }

    def _assign_active(self) -> None:
        # In order of partitions, so that new tasks of the same partition go to the same member.
        tasks = sorted(self._active_tasks, key=_by_partition)
        tasks = [task for task in tasks if not self._keep_active(task, self._active_before.get(task))]
        tasks = [task for task in tasks if not self._keep_active(task, self._least_loaded_before(task))]
        queue = self._processes_by_load()
        for task in sorted(tasks):
            process = queue.poll()
            member_id, count = process.add_to_least_loaded(task)
            self._active[member_id].append(task)
            self._active_quota.filled_to(count)
            self._quota.filled_to(count)
            queue.add(process.load, process)

    def _keep_active(self, task: TaskId, member_id: str | None) -> bool:
        """Keep a task at a member that has its state, if the quota allows."""
        if member_id is None:
            return False
        process = self._process_by_member[member_id]
        if process.task_counts[member_id] >= self._active_quota.per_member:
            return False
        count = process.add(member_id, task)
        self._active[member_id].append(task)
        self._active_quota.filled_to(count)
        self._quota.filled_to(count)
        return True

    def _assign_standby(self) -> None:
        unassigned: list[tuple[TaskId, int]] = []
        for task in sorted(self._stateful_tasks, key=_by_partition, reverse=True):
            for kept in range(self._replicas):
                if not self._keep_standby(task):
                    unassigned.append((task, self._replicas - kept))
                    break
        queue = self._processes_by_load()
        for task, missing in sorted(unassigned, reverse=True):
            for _ in range(missing):
                if not self._add_standby(queue, task):
                    break  # every process has the task: fewer standby tasks than configured

    def _keep_standby(self, task: TaskId) -> bool:
        """Keep a standby task at the member that had the active or a standby task."""
        before = self._active_before.get(task)
        if before is not None and self._has_capacity(before) and task not in self._process_by_member[before].tasks:
            self._put_standby(before, task)
            return True
        candidate = self._least_loaded_before(task, without_it=True)
        if candidate is not None and self._has_capacity(candidate):
            self._put_standby(candidate, task)
            return True
        return False

    def _has_capacity(self, member_id: str) -> bool:
        return self._process_by_member[member_id].task_counts[member_id] < self._quota.per_member

    def _put_standby(self, member_id: str, task: TaskId) -> None:
        count = self._process_by_member[member_id].add(member_id, task)
        self._standby[member_id].append(task)
        self._quota.filled_to(count)

    def _add_standby(self, queue: _Queue[_Process], task: TaskId) -> bool:
        """Add a standby task to the process with the least load that does not have the task."""
        polled, assigned = [], False
        while queue and not assigned:
            process = queue.poll()
            polled.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self._standby[member_id].append(task)
                self._quota.filled_to(count)
                assigned = True
        for process in reversed(polled):
            queue.add(process.load, process)
        return assigned

    def _least_loaded_before(self, task: TaskId, *, without_it: bool = False) -> str | None:
        """Return the least loaded member that had a standby task; `without_it`, only if its process lacks the task.

        Kafka checks the process of the first candidate, whichever candidate it returns.
        """
        before = self._standby_before.get(task)
        if not before:
            return None
        candidate = before[0]
        first = self._process_by_member[candidate]
        load, count = first.load, first.task_counts[candidate]
        for member_id in before[1:]:
            process = self._process_by_member[member_id]
            if process.load < load and not (without_it and task in process.tasks):
                own = process.task_counts[member_id]
                if own < count:
                    candidate, load, count = member_id, process.load, own
        return None if without_it and task in first.tasks else candidate

    def _processes_by_load(self) -> _Queue[_Process]:
        return _Queue((process.load, process) for process in self._processes)


def _task_ids(subtopologies: Iterable[tuple[str, ConfiguredSubtopology]]) -> list[TaskId]:
    return [(name, partition) for name, subtopology in subtopologies for partition in range(subtopology.task_count)]


def _tasks(tasks: Mapping[str, Sequence[int]]) -> Iterable[TaskId]:
    return ((name, partition) for name, partitions in tasks.items() for partition in partitions)


def _by_partition(task: TaskId) -> tuple[int, str]:
    return task[1], task[0]


def _grouped(tasks: list[TaskId]) -> Tasks:
    by_subtopology: dict[str, list[int]] = {}
    for name, partition in sorted(tasks):
        by_subtopology.setdefault(name, []).append(partition)
    return {name: tuple(partitions) for name, partitions in by_subtopology.items()}
