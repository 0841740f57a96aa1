"""Members of streams groups as their clients know them, and topologies for them to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.groups.environment import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.k88_streams_group_heartbeat import (
    CopartitionGroup,
    Endpoint,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from tests.groups.world import GROUP, World, answered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTEXT = RequestContext(0, "client", "/127.0.0.1")
Tasks = dict[str, list[int]]


def topology(*sources: str, epoch: int = 0, changelogs: tuple[str, ...] = ()) -> Topology:
    """One subtopology that reads some topics, with the state that the changelogs keep."""
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=list(sources),
                state_changelog_topics=[TopicInfo(name=name) for name in changelogs],
            )
        ],
    )


def repartitioned(source: str, between: str, partitions: int = 0) -> Topology:
    """Two subtopologies: one reads a topic and writes an internal one, which the other one reads."""
    return Topology(
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=[between]),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name=between, partitions=partitions)],
                copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
            ),
        ]
    )


def task_ids(tasks: Mapping[str, Iterable[int]]) -> list[TaskIds]:
    return [TaskIds(subtopology_id=each, partitions=list(partitions)) for each, partitions in tasks.items()]


def tasks_of(tasks: list[TaskIds] | None) -> Tasks | None:
    return None if tasks is None else {each.subtopology_id: each.partitions for each in tasks}


def send(world: World, member: str, epoch: int, group: str = GROUP, **fields: Any) -> StreamsGroupHeartbeatResponse:
    """One heartbeat."""
    return answer_to(
        world, StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
    )


def answer_to(world: World, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    beat: Any = answered(world.coordinator.streams_group_heartbeat(CONTEXT, request))
    response: StreamsGroupHeartbeatResponse = beat.response
    return response


def joining(member: str = "m", group: str = GROUP, **changes: Any) -> StreamsGroupHeartbeatRequest:
    """The heartbeat that joins, as it has to be but for the changes."""
    fields: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "topology": topology("t"),
        "process_id": f"process of {member}",
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        **changes,
    }
    return StreamsGroupHeartbeatRequest(**{"group_id": group, "member_id": member, **fields})


def first(world: World, member: str = "m", group: str = GROUP, **changes: Any) -> StreamsGroupHeartbeatResponse:
    """Join."""
    return answer_to(world, joining(member, group, **changes))


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    return [each.status_code for each in response.status or ()]


class StreamsClient:
    """A member; each method is one heartbeat. One that is `slow` has its tasks until it is told to `let_go`."""

    slow = False

    def __init__(
        self,
        world: World,
        member_id: str,
        runs: Topology | None = None,
        group: str = GROUP,
        process: str | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        self.world = world
        self.id = member_id
        self.group = group
        self.epoch = 0
        self.active: Tasks = {}
        self.assigned: Tasks = {}
        self.standby: Tasks = {}
        self.endpoint_epoch = 0
        self._joins = {"topology": runs or topology("t"), "process_id": process or f"process of {member_id}"}
        if endpoint is not None:
            self._joins["user_endpoint"] = endpoint

    def join(self) -> StreamsGroupHeartbeatResponse:
        """Join, or join again from nothing."""
        self.epoch, self.active, self.assigned, self.standby = 0, {}, {}, {}
        return self._send(owned=True, rebalance_timeout_ms=60_000, **self._joins)

    def beat(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Stay, and say which tasks it has."""
        return self._send(owned=True, **fields)

    def keep_alive(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Stay, and say nothing."""
        return self._send(owned=False, **fields)

    def leave(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Go."""
        return send(self.world, self.id, -1, self.group, **fields)

    def let_go(self) -> None:
        """Stop processing what it is not to have any more."""
        self.active = dict(self.assigned)

    def _send(self, *, owned: bool, **fields: Any) -> StreamsGroupHeartbeatResponse:
        if owned:
            fields = {
                "active_tasks": task_ids(self.active),
                "standby_tasks": task_ids(self.standby),
                "warmup_tasks": [],
                **fields,
            }
        response = send(
            self.world, self.id, self.epoch, self.group, endpoint_information_epoch=self.endpoint_epoch, **fields
        )
        if response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            active, standby = tasks_of(response.active_tasks), tasks_of(response.standby_tasks)
            if active is not None and standby is not None:
                held = self.active if self.slow else {}
                self.assigned = active
                self.active = {
                    each: sorted({*active.get(each, ()), *held.get(each, ())})
                    for each in dict.fromkeys((*active, *held))
                }
                self.standby = standby
            self.endpoint_epoch = response.endpoint_information_epoch
        return response


def settle(*clients: StreamsClient, rounds: int = 4) -> None:
    """Let time pass and everybody beat until there is nothing new to learn."""
    for _ in range(rounds):
        clients[0].world.advance(3_000)
        for client in clients:
            client.beat()
