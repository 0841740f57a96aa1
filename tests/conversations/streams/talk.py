"""Members of streams groups made of single requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.messages import k37_create_partitions as k37
from ottla.protocol.messages import k88_streams_group_heartbeat as k88
from ottla.protocol.messages import k89_streams_group_describe as k89
from ottla.protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from ottla.protocol.record_schemas.group import StreamsGroupMetadataValue
from tests.conversations.conversation import LONG_MS
from tests.conversations.groups.talk import GroupTalk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Tasks = dict[str, list[int]]


def internal(name: str, partitions: int = 0, **configs: str) -> k88.TopicInfo:
    """A repartition or changelog topic of a topology."""
    pairs = [k88.KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items()]
    return k88.TopicInfo(name=name, partitions=partitions, topic_configs=pairs)


def part(
    subtopology_id: str,
    *sources: str,
    reads: Sequence[k88.TopicInfo] = (),
    writes: Sequence[str] = (),
    state: Sequence[k88.TopicInfo] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> k88.Subtopology:
    """A subtopology; `together` has the places of copartitioned sources and repartition sources."""
    return k88.Subtopology(
        subtopology_id=subtopology_id,
        source_topics=list(sources),
        repartition_source_topics=list(reads),
        repartition_sink_topics=list(writes),
        state_changelog_topics=list(state),
        copartition_groups=[
            k88.CopartitionGroup(source_topics=list(one), repartition_source_topics=list(other))
            for one, other in together
        ],
    )


def topology(*parts: k88.Subtopology, epoch: int = 0) -> k88.Topology:
    """A topology."""
    return k88.Topology(epoch=epoch, subtopologies=list(parts))


def _ids(tasks: Mapping[str, Sequence[int]] | None) -> list[k88.TaskIds] | None:
    if tasks is None:
        return None
    return [k88.TaskIds(subtopology_id=name, partitions=list(partitions)) for name, partitions in tasks.items()]


def tasks_of(task_ids: list[k88.TaskIds] | None) -> Tasks:
    """The tasks of an answer."""
    return {tasks.subtopology_id: tasks.partitions for tasks in task_ids or ()}


class StreamsGroupTalk(GroupTalk):
    """One broker's half of a conversation about streams groups."""

    unordered = GroupTalk.unordered | {
        "active_tasks",
        "standby_tasks",
        "warmup_tasks",
        "active_tasks_pending_revocation",
        "standby_tasks_pending_revocation",
        "warmup_tasks_pending_revocation",
        "partitions_by_user_endpoint",
        "active_partitions",
        "standby_partitions",
        "client_tags",
        "topic_configs",
        "last_assignment_configs",
    }

    def streams(
        self,
        group: str,
        member: str,
        by: int = 0,
        *,
        epoch: int | None = None,
        topology: k88.Topology | None = None,
        active: Tasks | None = None,
        standby: Tasks | None = None,
        warmup: Tasks | None = None,
        process: str | None = None,
        rebalance_ms: int = -1,
        endpoint: tuple[str, int] | None = None,
        endpoint_epoch: int = 0,
        tags: Mapping[str, str] | None = None,
        quiet: bool = False,
        **fields: Any,
    ) -> k88.StreamsGroupHeartbeatResponse:
        """StreamsGroupHeartbeat, in the member's epoch (or off by some), or in any other."""
        if active is not None:
            standby, warmup = standby or {}, warmup or {}
        request = k88.StreamsGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=self.epoch(group, member) + by if epoch is None else epoch,
            endpoint_information_epoch=endpoint_epoch,
            rebalance_timeout_ms=rebalance_ms,
            topology=topology,
            active_tasks=_ids(active),
            standby_tasks=_ids(standby),
            warmup_tasks=_ids(warmup),
            process_id=process,
            user_endpoint=None if endpoint is None else k88.Endpoint(host=endpoint[0], port=endpoint[1]),
            client_tags=None if tags is None else [k88.KeyValue(key=key, value=tags[key]) for key in tags],
            **fields,
        )
        if quiet:
            response = self.patiently(lambda: self.talk.quietly(request, k88.StreamsGroupHeartbeatResponse))
        else:
            response = self.ask(request, k88.StreamsGroupHeartbeatResponse)
        if response.error_code == 0 and response.member_epoch > 0:
            self._epochs[group, member] = response.member_epoch
        return response

    def streams_join(
        self, group: str, member: str, topology: k88.Topology, **options: Any
    ) -> k88.StreamsGroupHeartbeatResponse:
        """Join, as a thread of a process of its own unless told otherwise."""
        settings = {"rebalance_ms": LONG_MS, "active": {}, "process": f"process of {member}"}
        return self.streams(group, member, epoch=0, topology=topology, **{**settings, **options})

    def until_ready(self, group: str, member: str, **options: Any) -> k88.StreamsGroupHeartbeatResponse:
        """Send heartbeats until no internal topic is missing; record only the last response."""
        result: list[k88.StreamsGroupHeartbeatResponse] = []

        def ready() -> bool:
            result[:] = [self.streams(group, member, quiet=True, **options)]
            return not result[0].status

        self.talk.wait_until(ready, f"{group} is not ready")
        self.note(f"{member} is ready", self.tree(result[0], 0))
        return result[0]

    def until_topics(self, **counts: int) -> None:
        """Wait until topics exist that the broker creates."""

        def there() -> bool:
            topics = self.talk.quietly(MetadataRequest(topics=None), MetadataResponse).topics
            known = {topic.name: topic.partitions for topic in topics}
            return all(
                len(known.get(name, ())) == count and all(entry.leader_id >= 0 for entry in known[name])
                for name, count in counts.items()
            )

        self.talk.wait_until(there, f"no {' '.join(counts)}")
        self.learn_topics()
        self.settle()

    def widen(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        expected = k37.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        self.talk.quietly(
            k37.CreatePartitionsRequest(topics=[expected], timeout_ms=LONG_MS), k37.CreatePartitionsResponse
        )
        self.until_topics(**{name: partitions})

    def describe_streams(self, *groups: str) -> None:
        """StreamsGroupDescribe."""
        self.ask(k89.StreamsGroupDescribeRequest(group_ids=list(groups)), k89.StreamsGroupDescribeResponse)

    def described(self, group: str) -> tuple[str, int]:
        """The state of a group, of any kind, and how many members it has."""
        request = k89.StreamsGroupDescribeRequest(group_ids=[group])
        result = self.patiently(lambda: self.talk.quietly(request, k89.StreamsGroupDescribeResponse)).groups[0]
        return super().described(group) if result.error_code else (result.group_state, len(result.members))

    def _note_record(self, prefix: str, key: bytes | None, value: bytes | None) -> None:
        from ottla.groups.records import decode_record

        decoded = decode_record(key, value)
        if decoded is not None and isinstance(decoded.value, StreamsGroupMetadataValue) and decoded.value.metadata_hash:
            decoded.value.metadata_hash = 1  # of topic ids, which are made up
            key, value = decoded.encode()
        super()._note_record(prefix, key, value)
