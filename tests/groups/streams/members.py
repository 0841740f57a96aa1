"""Members of streams groups with the state of their clients, and topologies for them."""

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
    """Return one subtopology with source topics and changelog topics."""
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
    """Return two subtopologies: one reads a topic and writes a repartition topic, which the other one reads."""
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
    return [TaskIds(subtopology_id=name, partitions=list(partitions)) for name, partitions in tasks.items()]


def tasks_of(tasks: list[TaskIds] | None) -> Tasks | None:
    return None if tasks is None else {task_ids.subtopology_id: task_ids.partitions for task_ids in tasks}


def send(world: World, member: str, epoch: int, group: str = GROUP, **fields: Any) -> StreamsGroupHeartbeatResponse:
    """Send one heartbeat; return its response."""
    return answer_to(
        world, StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
    )


def answer_to(world: World, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    beat: Any = answered(world.coordinator.streams_group_heartbeat(CONTEXT, request))
    response: StreamsGroupHeartbeatResponse = beat.response
    return response


def joining(member: str = "m", group: str = GROUP, **changes: Any) -> StreamsGroupHeartbeatRequest:
    """Return the heartbeat of a joining member with some fields changed."""
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
    """Join; return the response."""
    return answer_to(world, joining(member, group, **changes))


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    return [status.status_code for status in response.status or ()]


class StreamsClient:
    """A member; each method sends one heartbeat. A `slow` member keeps revoked tasks until `let_go`."""

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
        """Join or rejoin with epoch 0."""
        self.epoch, self.active, self.assigned, self.standby = 0, {}, {}, {}
        return self._send(owned=True, rebalance_timeout_ms=60_000, **self._joins)

    def beat(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat that reports the owned tasks."""
        return self._send(owned=True, **fields)

    def keep_alive(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat that reports nothing."""
        return self._send(owned=False, **fields)

    def leave(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Leave the group."""
        return send(self.world, self.id, -1, self.group, **fields)

    def let_go(self) -> None:
        """Stop processing revoked tasks."""
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
                    name: sorted({*active.get(name, ()), *held.get(name, ())})
                    for name in dict.fromkeys((*active, *held))
                }
                self.standby = standby
            self.endpoint_epoch = response.endpoint_information_epoch
        return response


def settle(*clients: StreamsClient, rounds: int = 4) -> None:
    """Advance the clock and send heartbeats until assignments no longer change."""
    for _ in range(rounds):
        clients[0].world.advance(3_000)
        for client in clients:
            client.beat()
