"""Events of groups for the event log, derived from records before their replay and from transitions of classic groups.

Without an event log `NO_GROUP_EVENTS` ignores all of it; nothing here changes state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ottla.events import NO_EVENTS
from ottla.groups.classic.consumer_protocol import read_assignment
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams.group import StreamsGroup
from ottla.groups.streams.records import StreamsKey
from ottla.protocol.errors import ProtocolError
from ottla.protocol.record_schemas.group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentTaskIds,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberTaskIds,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.events import NodeEvents
    from ottla.groups.classic.group import ClassicMember
    from ottla.groups.environment import Topics
    from ottla.groups.records import GroupRecord
    from ottla.protocol.schema import Uuid

    Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
    Groups = Mapping[str, Group]
    _TaskIds = StreamsGroupTargetAssignmentMemberTaskIds | StreamsGroupCurrentMemberAssignmentTaskIds

K = TypeVar("K")
Owned = dict[str, list[int]]
"""Partitions by topic name or subtopology id."""
LEFT = "left"
REPLACED = "replaced"
FULL = "group full"


class GroupEvents:
    """Writes the events of one node's groups."""

    def __init__(self, events: NodeEvents, topics: Topics) -> None:
        self._events = events
        self._topics = topics
        self._reasons: dict[tuple[str, str], str] = {}

    # Classic groups

    def moved(self, group: ClassicGroup) -> None:
        """Report the transition of a classic group from its previous state."""
        self._state(group, group.previous_state.value)

    def became_classic(self, before: ConsumerGroup, group: ClassicGroup) -> None:
        """Report that a consumer group was downgraded to a classic group."""
        for member_id, member in before.members.items():
            if member_id not in group.members:
                reason = self._reasons.pop((group.group_id, member_id), REPLACED)
                self._left(group, member_id, member.instance_id, reason)
        self._state(group, before.state_name)

    def joined(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Report a classic member that joined."""
        self._emit(
            "member.joined",
            group,
            member=member.member_id,
            instance=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host.lstrip("/"),
        )

    def left(self, group: ClassicGroup, member_id: str, reason: str) -> None:
        """Report a classic member before its removal; a member id that never joined is not reported."""
        member = group.members.get(member_id)
        if member is not None:
            self._left(group, member_id, member.group_instance_id, reason)

    def assigned(self, group: ClassicGroup) -> None:
        """Report the assignment of a generation."""
        for member in group.members.values():
            self._emit(
                "member.assigned",
                group,
                member=member.member_id,
                epoch=group.generation_id,
                partitions=classic_partitions(group, member),
            )

    # All types of groups

    def timed_out(self, what: str, group: Group, member_id: str | None = None, timeout_ms: int | None = None) -> None:
        """Report an expired timer of a member or of a rebalance."""
        more: dict[str, Any] = {} if member_id is None else {"member": member_id}
        if timeout_ms is not None:
            more["timeout_ms"] = timeout_ms
        self._events.emit("timeout", what=what, group=group.group_id, **more)

    def leaving(self, group: ConsumerGroup | ShareGroup | StreamsGroup, member_ids: Iterable[str], reason: str) -> None:
        """Remember why members leave; their tombstones are about to be written."""
        for member_id in member_ids:
            self._reasons[group.group_id, member_id] = reason

    # Records

    def writing(
        self, groups: Groups, records: Sequence[GroupRecord], producer_id: int, producer_epoch: int
    ) -> dict[str, Group]:
        """Report records before their replay; return the groups that they change."""
        touched: dict[str, Group] = {}
        offsets: dict[str, list[dict[str, Any]]] = {}
        epochs = {
            record.key.group_id: record.value.assignment_epoch
            for record in records
            if isinstance(
                record.key, ConsumerGroupTargetAssignmentMetadataKey | StreamsGroupTargetAssignmentMetadataKey
            )
            and isinstance(
                record.value, ConsumerGroupTargetAssignmentMetadataValue | StreamsGroupTargetAssignmentMetadataValue
            )
        }
        for record in records:
            key, value = record.key, record.value
            if isinstance(key, OffsetCommitKey):
                if isinstance(value, OffsetCommitValue):
                    offsets.setdefault(key.group, []).append(
                        {"topic": key.topic, "partition": key.partition, "offset": value.offset}
                    )
                continue
            group_id = key.group if isinstance(key, GroupMetadataKey) else cast("Any", key).group_id
            group = groups.get(group_id)
            if group is not None:
                touched[group_id] = group
            if isinstance(key, ShareGroupMemberMetadataKey | ShareGroupMetadataKey):
                self._membership(group if isinstance(group, ShareGroup) else ShareGroup(group_id), key, value)
                continue
            if isinstance(key, StreamsKey):
                streams = group if isinstance(group, StreamsGroup) else StreamsGroup(group_id)
                self._streams_record(streams, key, value, epochs.get(group_id, streams.assignment_epoch))
                continue
            known = group if isinstance(group, ConsumerGroup) else ConsumerGroup(group_id)
            self._record(known, group, key, value, epochs.get(group_id, known.assignment_epoch))
        for group_id, committed in offsets.items():
            more = {} if producer_id < 0 else {"producer_id": producer_id, "producer_epoch": producer_epoch}
            self._events.emit("offsets.committed", group=group_id, offsets=committed, **more)
        return touched

    def states(self, touched: Mapping[str, Group]) -> dict[str, str]:
        """Return the groups' states before the replay."""
        return {group_id: group.state_name for group_id, group in touched.items()}

    def written(self, groups: Groups, records: Sequence[GroupRecord], before: Mapping[str, str]) -> None:
        """Report created, deleted and changed groups after the replay."""
        seen: dict[str, str] = {}
        for record in records:
            key = record.key
            if not isinstance(key, OffsetCommitKey):
                group_id = key.group if isinstance(key, GroupMetadataKey) else cast("Any", key).group_id
                seen[group_id] = _kind(key)
        for group_id, kind in seen.items():
            group = groups.get(group_id)
            if group is None:
                if group_id in before:
                    self._events.emit("group.deleted", group=group_id, type=kind)
            elif group.state_name != before.get(group_id, "Empty"):
                self._state(group, before.get(group_id, "Empty"))

    # Private parts

    def _record(self, group: ConsumerGroup, was: Group | None, key: object, value: object, target_epoch: int) -> None:
        match key, value:
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue():
                if was is None or key.member_id not in was.members:
                    self._emit(
                        "member.joined",
                        group,
                        member=key.member_id,
                        instance=value.instance_id,
                        client_id=value.client_id,
                        host=value.client_host.lstrip("/"),
                    )
            case ConsumerGroupMemberMetadataKey(), None:
                member = group.members.get(key.member_id)
                reason = self._reasons.pop((group.group_id, key.member_id), REPLACED)
                if member is not None:
                    self._left(group, key.member_id, member.instance_id, reason)
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                self._emit("group.epoch", group, epoch=value.epoch)
            case ConsumerGroupTargetAssignmentMemberKey(), ConsumerGroupTargetAssignmentMemberValue():
                partitions = {topic.topic_id: topic.partitions for topic in value.topic_partitions}
                self._emit(
                    "group.target",
                    group,
                    member=key.member_id,
                    epoch=target_epoch,
                    partitions=self._named(partitions),
                )
            case ConsumerGroupCurrentMemberAssignmentKey(), ConsumerGroupCurrentMemberAssignmentValue():
                self._consumer_assigned(group, key.member_id, value)

    def _membership(self, group: ShareGroup | StreamsGroup, key: object, value: object) -> None:
        """Report members and epochs of a share or streams group; share assignments overlap and are not reported."""
        if isinstance(key, ShareGroupMemberMetadataKey | StreamsGroupMemberMetadataKey):
            if isinstance(value, ShareGroupMemberMetadataValue | StreamsGroupMemberMetadataValue):
                if key.member_id not in group.members:
                    self._emit(
                        "member.joined",
                        group,
                        member=key.member_id,
                        instance=None,
                        client_id=value.client_id,
                        host=value.client_host.lstrip("/"),
                    )
                return
            reason = self._reasons.pop((group.group_id, key.member_id), REPLACED)
            if key.member_id in group.members:
                self._left(group, key.member_id, None, reason)
        elif isinstance(value, ShareGroupMetadataValue | StreamsGroupMetadataValue):
            self._emit("group.epoch", group, epoch=value.epoch)

    def _streams_record(self, group: StreamsGroup, key: object, value: object, target_epoch: int) -> None:
        """Report members, epochs and active tasks of a streams group."""
        match key, value:
            case StreamsGroupTargetAssignmentMemberKey(), StreamsGroupTargetAssignmentMemberValue():
                tasks = _tasks(value.active_tasks)
                self._emit("group.target", group, member=key.member_id, epoch=target_epoch, partitions=tasks)
            case StreamsGroupCurrentMemberAssignmentKey(), StreamsGroupCurrentMemberAssignmentValue():
                member = group.members.get(key.member_id)
                self._assigned(
                    group,
                    key.member_id,
                    value.member_epoch,
                    _joined(member.assigned.active, member.pending_revocation.active) if member is not None else {},
                    _tasks(value.active_tasks),
                    _tasks(value.active_tasks_pending_revocation),
                )
            case _:
                self._membership(group, key, value)

    def _consumer_assigned(
        self, group: ConsumerGroup, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> None:
        member = group.members.get(member_id)
        self._assigned(
            group,
            member_id,
            value.member_epoch,
            self._named(_joined(member.assigned, member.pending_revocation)) if member is not None else {},
            self._named({topic.topic_id: topic.partitions for topic in value.assigned_partitions}),
            self._named({topic.topic_id: topic.partitions for topic in value.partitions_pending_revocation}),
        )

    def _assigned(self, group: Group, member_id: str, epoch: int, held: Owned, owned: Owned, pending: Owned) -> None:
        """Report the partitions that a member got, has and released, and those that it has yet to revoke."""
        kept = {name: {*owned.get(name, ()), *pending.get(name, ())} for name in held}
        released = {
            name: gone
            for name, partitions in held.items()
            if (gone := [index for index in partitions if index not in kept[name]])
        }
        if released:
            self._emit("member.revoked", group, member=member_id, epoch=epoch, partitions=released)
        more = {"pending": pending} if pending else {}
        self._emit("member.assigned", group, member=member_id, epoch=epoch, partitions=owned, **more)

    def _named(self, partitions: Mapping[Uuid, Iterable[int]]) -> dict[str, list[int]]:
        named = {}
        for topic_id, indexes in partitions.items():
            topic = self._topics.by_id(topic_id)
            named[str(topic_id) if topic is None else topic.name] = sorted(indexes)
        return named

    def _state(self, group: Group, before: str) -> None:
        epoch = group.generation_id if isinstance(group, ClassicGroup) else group.group_epoch
        self._emit("group.state", group, from_=before, to=group.state_name, epoch=epoch)

    def _left(self, group: Group, member_id: str, instance_id: str | None, reason: str) -> None:
        self._emit("member.left", group, member=member_id, instance=instance_id, reason=reason)

    def _emit(self, kind: str, group: Group, **fields: Any) -> None:
        self._events.emit(kind, group=group.group_id, type=group.type, **fields)


def _kind(key: object) -> str:
    if isinstance(key, StreamsKey):
        return "streams"
    return "share" if isinstance(key, ShareGroupMetadataKey) else "consumer"


def _tasks(tasks: Iterable[_TaskIds]) -> Owned:
    return {task_ids.subtopology_id: sorted(task_ids.partitions) for task_ids in tasks}


def _joined(first: Mapping[K, Iterable[int]], second: Mapping[K, Iterable[int]]) -> dict[K, list[int]]:
    return {key: [*first.get(key, ()), *second.get(key, ())] for key in dict.fromkeys((*first, *second))}


def classic_partitions(group: ClassicGroup, member: ClassicMember) -> dict[str, list[int]]:
    """Return the partitions of a consumer's assignment; assignments of other protocol types are opaque."""
    if not group.uses_consumer_protocol or not member.assignment:
        return {}
    try:
        assignment = read_assignment(member.assignment)
    except ProtocolError:
        return {}
    return {topic.topic: sorted(topic.partitions) for topic in assignment.assigned_partitions}


class NullGroupEvents(GroupEvents):
    """Ignores everything, for a broker without an event log."""

    def __init__(self) -> None:
        super().__init__(NO_EVENTS, cast("Topics", None))

    def moved(self, group: ClassicGroup) -> None:
        """Do nothing."""

    def became_classic(self, before: ConsumerGroup, group: ClassicGroup) -> None:
        """Do nothing."""

    def joined(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Do nothing."""

    def left(self, group: ClassicGroup, member_id: str, reason: str) -> None:
        """Do nothing."""

    def assigned(self, group: ClassicGroup) -> None:
        """Do nothing."""

    def timed_out(self, what: str, group: Group, member_id: str | None = None, timeout_ms: int | None = None) -> None:
        """Do nothing."""

    def leaving(self, group: ConsumerGroup | ShareGroup | StreamsGroup, member_ids: Iterable[str], reason: str) -> None:
        """Do nothing."""

    def writing(
        self, groups: Groups, records: Sequence[GroupRecord], producer_id: int, producer_epoch: int
    ) -> dict[str, Group]:
        """Return no groups."""
        return {}

    def states(self, touched: Mapping[str, Group]) -> dict[str, str]:
        """Return no states."""
        return {}

    def written(self, groups: Groups, records: Sequence[GroupRecord], before: Mapping[str, str]) -> None:
        """Do nothing."""


NO_GROUP_EVENTS: Final = NullGroupEvents()
