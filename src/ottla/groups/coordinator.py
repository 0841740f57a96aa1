"""The group coordinator of one node (Kafka's GroupCoordinatorService): routes each request to the shard of its group.

A method returns a response or a Pending and never raises because of a client's request. The handlers check
authorization and adapt responses to old versions.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.cluster.internal_topics import partition_for
from ottla.events import NO_EVENTS
from ottla.groups import delete, describe, error_responses
from ottla.groups.classic import join as classic_join
from ottla.groups.classic import membership as classic_membership
from ottla.groups.classic import sync as classic_sync
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.membership import join_error
from ottla.groups.consumer import heartbeat as consumer_heartbeat
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.group_events import NO_GROUP_EVENTS, GroupEvents
from ottla.groups.loading import Loading
from ottla.groups.migration import mixed
from ottla.groups.migration.empty import join_replacing
from ottla.groups.offsets import requests as offset_requests
from ottla.groups.outcome import Outcome
from ottla.groups.shard import Shard
from ottla.groups.share import heartbeat as share_heartbeat
from ottla.groups.share import offsets as share_offsets
from ottla.groups.share import state as share_state
from ottla.groups.share.group import ShareGroup
from ottla.groups.streams import heartbeat as streams_heartbeat
from ottla.groups.streams.group import StreamsGroup
from ottla.groups.subscriptions import TopicHashes
from ottla.pending import Pending, wait_for_all
from ottla.pieces import run_to_end
from ottla.protocol.error_texts import error_text
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.k12_heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.messages.k16_list_groups import ListedGroup, ListGroupsResponse
from ottla.protocol.messages.k42_delete_groups import DeletableGroupResult
from ottla.protocol.messages.k47_offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.k68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.k69_consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.protocol.messages.k76_share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.k77_share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.messages.k89_streams_group_describe import DescribedGroup as DescribedStreamsGroup
from ottla.protocol.messages.k91_alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.k92_delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from ottla.cluster.coordinator_errors import UnreadableRecord
    from ottla.events import NodeEvents
    from ottla.groups.environment import DeletedTopic, GroupLog, RequestContext, Settings, Topics
    from ottla.groups.streams.heartbeat import StreamsHeartbeat
    from ottla.protocol.messages.k08_offset_commit import OffsetCommitRequest, OffsetCommitResponse
    from ottla.protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from ottla.protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupResponse
    from ottla.protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse
    from ottla.protocol.messages.k15_describe_groups import DescribedGroup
    from ottla.protocol.messages.k28_txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
    from ottla.protocol.messages.k88_streams_group_heartbeat import StreamsGroupHeartbeatRequest
    from ottla.protocol.uuids import Uuid
    from ottla.shares.environment import ShareStateStore
    from ottla.world.clock import Clock
    from ottla.world.random import Random

R = TypeVar("R")


class GroupCoordinator:
    """All groups whose partition of `__consumer_offsets` this node leads."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        log: GroupLog,
        topics: Topics,
        settings: Settings,
        partition_count: Callable[[], int],
        share_states: ShareStateStore,
        events: NodeEvents = NO_EVENTS,
    ) -> None:
        self._clock = clock
        self._random = random
        self._log = log
        self._topics = topics
        self._settings = settings
        self._partition_count = partition_count
        self._share_states = share_states
        self._topic_hashes = TopicHashes(topics)
        self._events = GroupEvents(events, topics) if events.enabled else NO_GROUP_EVENTS
        self._shards: dict[int, Shard] = {}

    # Leadership

    def partition_for(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that stores a group."""
        return partition_for(group_id, self._partition_count())

    def begin_loading(self, partition: int) -> Loading:
        """Start to load a partition; its groups respond COORDINATOR_LOAD_IN_PROGRESS until the loading is finished."""
        self.unload(partition)
        shard = Shard(
            partition,
            clock=self._clock,
            random=self._random,
            log=self._log,
            topics=self._topics,
            settings=self._settings,
            topic_hashes=self._topic_hashes,
            share_states=self._share_states,
            events=self._events,
        )
        self._shards[partition] = shard
        return Loading(shard)

    def load(
        self, partition: int, pieces: Iterable[bytes | bytearray | memoryview | UnreadableRecord]
    ) -> list[UnreadableRecord]:
        """Load a partition that this node now leads; return the records that cannot be loaded.

        If there are any, the partition is not loaded: its groups answer NOT_COORDINATOR, as in Kafka.
        """
        return run_to_end(self.load_in_pieces(partition, pieces))

    def load_in_pieces(
        self, partition: int, pieces: Iterable[bytes | bytearray | memoryview | UnreadableRecord]
    ) -> Generator[int, None, list[UnreadableRecord]]:
        """Load a partition as `load` does; yield the units of work done, after the first of which it is loading.

        The caller closes the generator if it unloads the partition meanwhile.
        """
        loading = self.begin_loading(partition)
        yield 0
        for piece in pieces:
            yield from loading.replay(piece)
        unreadable = loading.mark_loaded()
        if unreadable:
            self.unload(partition)
        return unreadable

    def unload(self, partition: int) -> None:
        """Unload a partition that this node no longer leads."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.unload()

    def unload_all(self) -> None:
        """Unload all partitions when the node stops."""
        for partition in list(self._shards):
            self.unload(partition)

    def shard(self, partition: int) -> Shard | None:
        """Return the shard of a partition, for tests and metrics; None if this node does not lead it."""
        return self._shards.get(partition)

    def shards(self) -> list[Shard]:
        """Return all shards in order of their partitions, for tests and metrics."""
        return [shard for _, shard in sorted(self._shards.items())]

    def _active(self, partition: int) -> Shard:
        shard = self._shards.get(partition)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not shard.loaded:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _run(
        self,
        group_id: str,
        operation: Callable[[Shard], Outcome[R]],
        on_error: Callable[[ErrorCode, str | None], R],
    ) -> R | Pending[R]:
        try:
            shard = self._active(self.partition_for(group_id))
        except KafkaError as error:
            return on_error(error.code, None)
        return shard.run(partial(operation, shard), on_error)

    # Classic members

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        """Add a classic member to a group; respond when its generation begins."""
        settings = self._settings.coordinator()
        if not request.group_id:
            return join_error(ErrorCode.INVALID_GROUP_ID, request.member_id)
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            return join_error(ErrorCode.INVALID_SESSION_TIMEOUT, request.member_id)

        def join(shard: Shard) -> Outcome[JoinGroupResponse]:
            group = shard.groups.get(request.group_id)
            if isinstance(group, ClassicGroup) or group is None:
                return classic_join.join(shard, context, request)
            if isinstance(group, ConsumerGroup) and not group.is_empty:
                return mixed.join(shard, context, group, request)
            if isinstance(group, ShareGroup) or not group.is_empty:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return join_replacing(shard, context, request, group)

        return self._run(request.group_id, join, lambda code, _: join_error(code))

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        """Respond with a classic member's assignment once the leader has sent it."""
        if not request.group_id:
            return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        def sync(shard: Shard) -> Outcome[SyncGroupResponse]:
            group = shard.groups.get(request.group_id)
            if group is None or group.is_empty or isinstance(group, ShareGroup | StreamsGroup):
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if isinstance(group, ClassicGroup):
                return classic_sync.sync(shard, group, request)
            return mixed.sync(shard, group, request)

        return self._run(request.group_id, sync, lambda code, _: SyncGroupResponse(error_code=code))

    def heartbeat(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | Pending[HeartbeatResponse]:
        """Reset a classic member's session timer; respond REBALANCE_IN_PROGRESS if it must rejoin."""
        if not request.group_id:
            return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)

        def heartbeat(shard: Shard) -> Outcome[HeartbeatResponse]:
            group = _group_with_classic_members(shard, request.group_id)
            if isinstance(group, ClassicGroup):
                return classic_membership.heartbeat(shard, group, request)
            return mixed.heartbeat(shard, group, request)

        def failed(code: ErrorCode, _: str | None) -> HeartbeatResponse:
            # A member need not look for another coordinator while this one is loading.
            loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)

        return self._run(request.group_id, heartbeat, failed)

    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
        """Remove members by member id or instance id."""

        def leave(shard: Shard) -> Outcome[LeaveGroupResponse]:
            group = _group_with_classic_members(shard, request.group_id)
            if isinstance(group, ClassicGroup):
                return classic_membership.leave(shard, group, request)
            return mixed.leave(shard, group, request)

        def failed(code: ErrorCode, _: str | None) -> LeaveGroupResponse:
            return error_responses.leave_group(request, code)

        if not request.group_id:
            return failed(ErrorCode.INVALID_GROUP_ID, None)
        return self._run(request.group_id, leave, failed)

    # Consumer groups

    def consumer_group_heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]:
        """Add, reconcile or remove a member of the consumer protocol."""

        def failed(code: ErrorCode, message: str | None) -> ConsumerGroupHeartbeatResponse:
            return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)

        try:
            consumer_heartbeat.validate(request, context.version, self._settings.coordinator())
        except KafkaError as error:
            return failed(error.code, error.message)
        return self._run(request.group_id, lambda shard: consumer_heartbeat.heartbeat(shard, context, request), failed)

    # Share groups

    def share_group_heartbeat(
        self, context: RequestContext, request: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse | Pending[ShareGroupHeartbeatResponse]:
        """Add, update or remove a member of the share protocol."""

        def failed(code: ErrorCode, message: str | None) -> ShareGroupHeartbeatResponse:
            return ShareGroupHeartbeatResponse(error_code=code, error_message=message or error_text(code))

        try:
            share_heartbeat.validate(request)
        except KafkaError as error:
            return failed(error.code, error.message)
        return self._run(request.group_id, lambda shard: share_heartbeat.heartbeat(shard, context, request), failed)

    def initialized_share_partitions(self, group_id: str) -> dict[Uuid, list[int]]:
        """Return the initialized partitions of a share group; raise if this node does not coordinate it."""
        return share_offsets.initialized_partitions(self._active(self.partition_for(group_id)), group_id)

    def alter_share_group_offsets(
        self, request: AlterShareGroupOffsetsRequest
    ) -> AlterShareGroupOffsetsResponse | Pending[AlterShareGroupOffsetsResponse]:
        """Set the start offsets of a share group."""

        def failed(code: ErrorCode, message: str | None) -> AlterShareGroupOffsetsResponse:
            return AlterShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))

        if not request.group_id:
            return failed(ErrorCode.INVALID_GROUP_ID, None)
        return self._run(request.group_id, lambda shard: share_offsets.alter(shard, request), failed)

    def delete_share_group_offsets(
        self, request: DeleteShareGroupOffsetsRequest
    ) -> DeleteShareGroupOffsetsResponse | Pending[DeleteShareGroupOffsetsResponse]:
        """Delete the start offsets of topics of a share group."""

        def failed(code: ErrorCode, message: str | None) -> DeleteShareGroupOffsetsResponse:
            return DeleteShareGroupOffsetsResponse(error_code=code, error_message=message or error_text(code))

        if not request.group_id:
            return failed(ErrorCode.INVALID_GROUP_ID, None)
        return self._run(request.group_id, lambda shard: share_offsets.delete_offsets(shard, request), failed)

    # Streams groups

    def streams_group_heartbeat(
        self, context: RequestContext, request: StreamsGroupHeartbeatRequest
    ) -> StreamsHeartbeat | Pending[StreamsHeartbeat]:
        """Add, reconcile or remove a member of the streams protocol; the caller creates missing internal topics."""
        try:
            streams_heartbeat.validate(request)
        except KafkaError as error:
            return streams_heartbeat.error_heartbeat(error.code, error.message)
        return self._run(
            request.group_id,
            lambda shard: streams_heartbeat.heartbeat(shard, context, request),
            streams_heartbeat.error_heartbeat,
        )

    # Offsets

    def commit_offsets(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
        """Commit offsets of topics that the caller has validated."""
        return self._run(
            request.group_id,
            lambda shard: offset_requests.commit(shard, context, request),
            lambda code, _: error_responses.offset_commit(request, code),
        )

    def commit_transactional_offsets(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
        """Commit offsets within a transaction that the caller has validated."""

        def failed(code: ErrorCode, _: str | None) -> TxnOffsetCommitResponse:
            return error_responses.txn_offset_commit(request, code)

        if not request.group_id:
            return failed(ErrorCode.INVALID_GROUP_ID, None)
        try:
            shard = self._active(self.partition_for(request.group_id))
        except KafkaError as error:
            return failed(error.code, None)
        return shard.run(
            lambda: offset_requests.commit_transactional(shard, context, request),
            failed,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
        )

    def complete_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker that was appended to a partition of `__consumer_offsets`."""
        shard = self._shards.get(partition)
        if shard is not None and shard.loaded:
            shard.offsets.complete_transaction(producer_id, committed=committed)

    def fetch_offsets(
        self, context: RequestContext, request: OffsetFetchRequestGroup, *, require_stable: bool
    ) -> OffsetFetchResponseGroup | Pending[OffsetFetchResponseGroup]:
        """Return the committed offsets of a group."""
        return self._run(
            request.group_id,
            lambda shard: offset_requests.fetch(shard, request, require_stable=require_stable),
            lambda code, _: error_responses.offset_fetch(request, context.version, code),
        )

    def delete_offsets(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | Pending[OffsetDeleteResponse]:
        """Delete the offsets of topics to which the group does not subscribe."""

        def failed(code: ErrorCode, _: str | None) -> OffsetDeleteResponse:
            return OffsetDeleteResponse(error_code=code)

        if not request.group_id:
            return failed(ErrorCode.INVALID_GROUP_ID, None)
        return self._run(request.group_id, lambda shard: offset_requests.delete(shard, request), failed)

    # Administration

    def count_groups(self) -> Counter[tuple[str, str]]:
        """Count the groups of this node by type and state."""
        shards = [shard for shard in self._shards.values() if shard.loaded]
        return Counter((group.type, group.state_name) for shard in shards for group in shard.groups.values())

    def list_groups(
        self, states: Sequence[str], types: Sequence[str]
    ) -> ListGroupsResponse | Pending[ListGroupsResponse]:
        """List the groups of this node, filtered by state and type."""

        def failed(code: ErrorCode, _: str | None) -> list[ListedGroup]:
            return []

        if any(not shard.loaded for shard in self._shards.values()):
            return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        state_filter = {state.lower().strip() for state in states}
        type_filter = {name.lower() for name in types}
        listed = [
            shard.respond(describe.list_groups(shard, state_filter, type_filter), failed)
            for _, shard in sorted(self._shards.items())
        ]
        return wait_for_all(listed, lambda lists: ListGroupsResponse(groups=_flat(lists)))

    def describe_groups(
        self, context: RequestContext, group_ids: Sequence[str]
    ) -> list[DescribedGroup] | Pending[list[DescribedGroup]]:
        """Describe classic groups."""

        def describe_one(group_id: str) -> list[DescribedGroup] | Pending[list[DescribedGroup]]:
            return self._run(
                group_id,
                lambda shard: Outcome([describe.describe_group(shard, group_id, context.version)]),
                lambda code, _: describe.describe_errors([group_id], code),
            )

        return wait_for_all([describe_one(group_id) for group_id in group_ids], _flat)

    def describe_consumer_groups(
        self, group_ids: Sequence[str]
    ) -> list[DescribedConsumerGroup] | Pending[list[DescribedConsumerGroup]]:
        """Describe consumer groups."""
        return self._describe(group_ids, DescribedConsumerGroup, describe.describe_consumer_group)

    def describe_share_groups(
        self, group_ids: Sequence[str]
    ) -> list[DescribedShareGroup] | Pending[list[DescribedShareGroup]]:
        """Describe share groups."""
        return self._describe(group_ids, DescribedShareGroup, describe.describe_share_group)

    def describe_streams_groups(
        self, group_ids: Sequence[str]
    ) -> list[DescribedStreamsGroup] | Pending[list[DescribedStreamsGroup]]:
        """Describe streams groups."""
        return self._describe(group_ids, DescribedStreamsGroup, describe.describe_streams_group)

    def _describe(
        self, group_ids: Sequence[str], response: Callable[..., R], operation: Callable[[Shard, str], R]
    ) -> list[R] | Pending[list[R]]:
        def describe_one(group_id: str) -> list[R] | Pending[list[R]]:
            if not group_id:
                return [response(group_id="", error_code=ErrorCode.INVALID_GROUP_ID)]
            return self._run(
                group_id,
                lambda shard: Outcome([operation(shard, group_id)]),
                lambda code, _: [response(group_id=group_id, error_code=code)],
            )

        return wait_for_all([describe_one(group_id) for group_id in group_ids], _flat)

    def delete_groups(
        self, group_ids: Sequence[str]
    ) -> list[DeletableGroupResult] | Pending[list[DeletableGroupResult]]:
        """Delete groups without members."""

        def delete_group(group_id: str) -> DeletableGroupResult | Pending[DeletableGroupResult]:
            def operation(shard: Shard) -> Outcome[DeletableGroupResult]:
                if isinstance(shard.groups.get(group_id), ShareGroup):
                    return share_offsets.delete_group(shard, group_id)
                return delete.delete_group(shard, group_id)

            return self._run(
                group_id, operation, lambda code, _: DeletableGroupResult(group_id=group_id, error_code=code)
            )

        return wait_for_all([delete_group(group_id) for group_id in dict.fromkeys(group_ids)], list)

    # Metadata

    def topics_changed(
        self, *, created: Sequence[str] = (), changed: Sequence[str] = (), deleted: Sequence[DeletedTopic] = ()
    ) -> None:
        """React to topics that were created, changed or deleted; `Topics` shows the change already."""
        names = dict.fromkeys((*created, *changed, *(topic.name for topic in deleted)))
        self._topic_hashes.forget(names)
        for _, shard in sorted(self._shards.items()):
            if created:
                shard.newest_topic_version = self._topics.version
            for name in names:
                for group_id in shard.groups_by_topic.get(name, {}):
                    group = shard.groups.get(group_id)
                    if group is not None and not isinstance(group, ClassicGroup):
                        group.request_metadata_refresh()
            if deleted and shard.loaded:
                shard.execute("deleted topics", partial(offset_requests.tombstones_of_topics, shard, deleted))
                ids = {topic.id for topic in deleted}
                shard.execute("deleted topics", partial(share_state.remove_deleted_topics, shard, ids))


def _group_with_classic_members(shard: Shard, group_id: str) -> ClassicGroup | ConsumerGroup:
    group = shard.groups.get(group_id)
    if group is None or isinstance(group, ShareGroup | StreamsGroup):
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group_id} not found.")
    return group


def _flat(lists: list[list[R]]) -> list[R]:
    return [item for items in lists for item in items]
