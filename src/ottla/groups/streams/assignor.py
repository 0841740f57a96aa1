"""The assignor of streams groups: which member runs which task, and which keeps a copy of a task's state.

Tasks stay where they were, as active or as standby, as long as nobody gets more than their share; what is left goes to
the process with the least load, and there to the member with the fewest tasks. A process never has a task twice. Ties
fall as in Kafka's `sticky`, which leaves them to its hash maps and its priority queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from ottla.hashing.java import hash_map_order, hash_order, java_string_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.groups.streams.topology import ConfiguredSubtopology

Tasks = dict[str, tuple[int, ...]]
"""The partitions of each subtopology's tasks, ascending."""
TaskId = tuple[str, int]
T = TypeVar("T")


class TaskAssignment(NamedTuple):
    """The tasks of a member. Nobody is given a warm-up task: Kafka has the field and not yet the assignor."""

    active: Mapping[str, tuple[int, ...]]
    standby: Mapping[str, tuple[int, ...]]
    warmup: Mapping[str, tuple[int, ...]]


NO_TASKS: Final = TaskAssignment({}, {}, {})


class StreamsMemberSpec(NamedTuple):
    """What the assignor may know of a member; `target` is what it was to run until now."""

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
    """The tasks of each member."""
    if not members:
        return {}
    return _Assignment(members, subtopologies, num_standby_replicas).assign()


class _Process:
    """A process of the application: its members, each a thread, and their tasks."""

    def __init__(self) -> None:
        self.task_counts: dict[str, int] = {}
        self.tasks: set[TaskId] = set()
        self._total = 0
        self._by_load: _Queue[str] | None = None

    @property
    def load(self) -> float:
        """How many tasks there are for each member."""
        return self._total / len(self.task_counts)

    def add(self, member_id: str, task: TaskId) -> int:
        """Give a member a task; how many it has now."""
        self._by_load = None
        return self._add(member_id, task)

    def add_to_least_loaded(self, task: TaskId) -> tuple[str, int]:
        """Give it to the member with the fewest: which one, and how many it has now."""
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
    """How many tasks a member may have so that all have equally many; a member that is full counts no more."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.each = -(-tasks // members)

    def filled_to(self, count: int) -> None:
        """Some member has so many tasks now."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = -(-self._tasks // self._members) if self._members else 0


class _Queue(Generic[T]):
    """Java's PriorityQueue: a binary heap whose ties come out in the same order, which `heapq`'s do not."""

    def __init__(self, entries: Iterable[tuple[float, T]]) -> None:
        self._heap: list[tuple[float, T]] = []
        for key, item in entries:
            self.add(key, item)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, key: float, item: T) -> None:
        """Put an item in."""
        heap = self._heap
        entry = (key, item)
        heap.append(entry)
        place = len(heap) - 1
        while place > 0:
            parent = (place - 1) >> 1
            above = heap[parent]
            if key >= above[0]:
                break
            heap[place] = above
            place = parent
        heap[place] = entry

    def poll(self) -> T:
        """Take the least item out."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last[1]
        least = heap[0]
        count, place, key = len(heap), 0, last[0]
        while (child := 2 * place + 1) < count:
            below = heap[child]
            if child + 1 < count and below[0] > heap[child + 1][0]:
                child += 1
                below = heap[child]
            if key <= below[0]:
                break
            heap[place] = below
            place = child
        heap[place] = last
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
        self._stateful_tasks = _task_ids((name, each) for name, each in subtopologies.items() if each.is_stateful)
        self._active_quota = _Quota(len(self._active_tasks), len(members))
        self._quota = _Quota(len(self._active_tasks) + len(self._stateful_tasks) * replicas, len(members))
        processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._active_before: dict[TaskId, str] = {}
        self._standby_before: dict[TaskId, list[str]] = {}
        for member_id in hash_map_order(members):
            spec = members[member_id]
            process = self._process_of[member_id] = processes.setdefault(spec.process_id, _Process())
            process.task_counts[member_id] = 0
            self._active_before.update((task, member_id) for task in _tasks(spec.target.active))
            for task in _tasks(spec.target.standby):
                self._standby_before.setdefault(task, []).append(member_id)
        self._processes = [processes[each] for each in hash_order(processes, java_string_hash, len(members))]
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
        # By partition first, because tasks of the same partition are together where nobody had any before.
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
        """Leave a task with a member that knows it, if that one has room."""
        if member_id is None:
            return False
        process = self._process_of[member_id]
        if process.task_counts[member_id] >= self._active_quota.each:
            return False
        count = process.add(member_id, task)
        self._active[member_id].append(task)
        self._active_quota.filled_to(count)
        self._quota.filled_to(count)
        return True

    def _assign_standby(self) -> None:
        left: list[tuple[TaskId, int]] = []
        for task in sorted(self._stateful_tasks, key=_by_partition, reverse=True):
            for done in range(self._replicas):
                if not self._keep_standby(task):
                    left.append((task, self._replicas - done))
                    break
        queue = self._processes_by_load()
        for task, missing in sorted(left, reverse=True):
            for _ in range(missing):
                if not self._add_standby(queue, task):
                    break  # every process has it already: fewer copies than asked for

    def _keep_standby(self, task: TaskId) -> bool:
        """Leave a copy with the member that had the task, or with one that had a copy."""
        before = self._active_before.get(task)
        if before is not None and self._has_room(before) and task not in self._process_of[before].tasks:
            self._put_standby(before, task)
            return True
        candidate = self._least_loaded_before(task, without_it=True)
        if candidate is not None and self._has_room(candidate):
            self._put_standby(candidate, task)
            return True
        return False

    def _has_room(self, member_id: str) -> bool:
        return self._process_of[member_id].task_counts[member_id] < self._quota.each

    def _put_standby(self, member_id: str, task: TaskId) -> None:
        count = self._process_of[member_id].add(member_id, task)
        self._standby[member_id].append(task)
        self._quota.filled_to(count)

    def _add_standby(self, queue: _Queue[_Process], task: TaskId) -> bool:
        """Give a copy to the process with the least load that has none."""
        passed, found = [], False
        while queue and not found:
            process = queue.poll()
            passed.append(process)
            if task not in process.tasks:
                member_id, count = process.add_to_least_loaded(task)
                self._standby[member_id].append(task)
                self._quota.filled_to(count)
                found = True
        for process in reversed(passed):
            queue.add(process.load, process)
        return found

    def _least_loaded_before(self, task: TaskId, *, without_it: bool = False) -> str | None:
        """Of those that had a copy, the one with the least load; `without_it`, one whose process does not have it yet.

        Kafka asks that of the process of the first of them, whichever it chooses in the end.
        """
        before = self._standby_before.get(task)
        if not before:
            return None
        candidate = before[0]
        first = self._process_of[candidate]
        load, count = first.load, first.task_counts[candidate]
        for member_id in before[1:]:
            process = self._process_of[member_id]
            if process.load < load and not (without_it and task in process.tasks):
                own = process.task_counts[member_id]
                if own < count:
                    candidate, load, count = member_id, process.load, own
        return None if without_it and task in first.tasks else candidate

    def _processes_by_load(self) -> _Queue[_Process]:
        return _Queue((process.load, process) for process in self._processes)


def _task_ids(subtopologies: Iterable[tuple[str, ConfiguredSubtopology]]) -> list[TaskId]:
    return [(name, partition) for name, each in subtopologies for partition in range(each.task_count)]


def _tasks(tasks: Mapping[str, Sequence[int]]) -> Iterable[TaskId]:
    return ((name, partition) for name, partitions in tasks.items() for partition in partitions)


def _by_partition(task: TaskId) -> tuple[int, str]:
    return task[1], task[0]


def _grouped(tasks: list[TaskId]) -> Tasks:
    found: dict[str, list[int]] = {}
    for name, partition in sorted(tasks):
        found.setdefault(name, []).append(partition)
    return {name: tuple(partitions) for name, partitions in found.items()}
