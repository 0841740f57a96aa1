"""The share partitions and share sessions of one node (Kafka's SharePartitionManager).

Creates a share partition at a group's first fetch, drops it when it fails or is fenced, and wakes waiting fetches. The
state machine of records is in `ottla.shares`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import group_values
from ottla.pending import Pending, completed_with
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.environment import ShareCounts, SharePartitionKey
from ottla.shares.partition import ENDS_PARTITION, SharePartition, SharePartitionState
from ottla.shares.sessions import SessionKey, ShareSessions, TopicIdPartition
from ottla.shares.settings import BY_DURATION, EARLIEST, ShareSettings, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ottla.broker.broker import Broker
    from ottla.broker.partition import Partition
    from ottla.protocol.schema import Uuid
    from ottla.shares.environment import ShareStateStore
    from ottla.shares.partition import Acknowledgement

K = TypeVar("K")
V = TypeVar("V")

NOT_HERE = "This server does not host this topic-partition."


class SharePartitions:
    """The share partitions of the partitions that this node leads, and the share sessions of their members."""

    def __init__(self, broker: Broker, store: ShareStateStore) -> None:
        self._broker = broker
        self.store = store
        self.sessions = ShareSessions(lambda: broker.config_int("group.share.max.share.sessions"))
        self.counts = ShareCounts()
        self.waiting_fetches: dict[SharePartitionKey, dict[Callable[[], None], None]] = {}
        """Callbacks of waiting fetches by share partition; called when records may be available."""
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._settings: dict[str, ShareSettings] = {}
        self._woken: dict[SharePartitionKey, None] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._partitions.values())

    # Configs

    def settings(self, group_id: str) -> ShareSettings:
        """Return the share configs of a group."""
        own = self._broker.runtime.image.config(ConfigResourceType.GROUP, group_id)
        name = group_id if own else ""
        settings = self._settings.get(name)
        if settings is None:
            values = group_values(own, self._broker.layers)
            settings = self._settings[name] = ShareSettings.read(values.__getitem__)
        return settings

    def configs_changed(self) -> None:
        """Discard the cached configs."""
        self._settings.clear()

    # Share partitions

    def get(self, group_id: str, topic_partition: TopicIdPartition) -> SharePartition | None:
        """Return a share partition, or None if no member has fetched from it."""
        return self._partitions.get(SharePartitionKey(group_id, *topic_partition))

    def leader_partition(self, topic_partition: TopicIdPartition) -> Partition:
        """Return the partition by topic id; raise if this node does not lead it."""
        topic = self._broker.runtime.image.topics.get(topic_partition.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._broker.leader_partition(topic.name, topic_partition.partition)

    def obtain(self, group_id: str, topic_partition: TopicIdPartition) -> SharePartition:
        """Return a share partition, created if necessary; raise if this node does not lead the partition."""
        partition = self.leader_partition(topic_partition)
        key = SharePartitionKey(group_id, *topic_partition)
        share_partition = self._partitions.get(key)
        if share_partition is None:
            share_partition = self._partitions[key] = SharePartition(
                key,
                partition.state.leader_epoch,
                clock=self._broker.runtime.world.clock,
                store=self.store,
                settings=lambda: self.settings(group_id),
                reset_offset=lambda: self._reset_offset(group_id, partition),
                on_change=self._wake_later,
                counts=self.counts,
            )
            share_partition.initialize()
        if share_partition.partition_state is SharePartitionState.FAILED:
            self.drop([key])
        return share_partition

    def _reset_offset(self, group_id: str, partition: Partition) -> int:
        """Return the first start offset of a group by share.auto.offset.reset."""
        log, reset = partition.log, self.settings(group_id).auto_offset_reset
        if reset == EARLIEST:
            return log.log_start_offset
        if reset.startswith(BY_DURATION):
            timestamp = log.env.clock.now_ms() - duration_ms(reset.removeprefix(BY_DURATION))
            first = log.offset_for_timestamp(max(timestamp, 0))
            if first is None or first.offset >= log.high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"Offset for timestamp {timestamp} not found for topic partition: {partition.topic_id}:"
                    f"{partition.topic}-{partition.index}",
                )
            return first.offset
        return log.high_watermark

    def drop(self, keys: Iterable[SharePartitionKey]) -> None:
        """Fence and remove share partitions; the next fetch reads their persisted state again."""
        for key in list(keys):
            share_partition = self._partitions.pop(key, None)
            if share_partition is not None:
                share_partition.fence()

    def partition_gone(self, topic_id: Uuid, index: int) -> None:
        """Drop the share partitions of a partition that this node no longer leads."""
        self.drop(key for key in self._partitions if key.topic_id == topic_id and key.partition == index)

    def group_gone(self, group_id: str) -> None:
        """Drop the share partitions of a group without sessions on this node."""
        self.drop(key for key in self._partitions if key.group_id == group_id)

    def stop(self) -> None:
        """Drop all share partitions with their lock timers, and all sessions."""
        self.drop(self._partitions)
        self.sessions.clear()

    # Acknowledgement and release

    def acknowledge(
        self, session_key: SessionKey, acknowledgements: Mapping[TopicIdPartition, Sequence[Acknowledgement]]
    ) -> Pending[dict[TopicIdPartition, KafkaError | None]]:
        """Acknowledge records; complete with the error of each partition once all are persisted."""
        responses: dict[TopicIdPartition, Pending[KafkaError | None]] = {}
        for topic_partition, batches in acknowledgements.items():
            partition = self.get(session_key.group_id, topic_partition)
            if partition is None:
                responses[topic_partition] = completed_with(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HERE))
                continue
            responses[topic_partition] = self._drop_on_error(
                partition, partition.acknowledge(session_key.member_id, batches)
            )
        return all_of(responses)

    def end_session(self, session_key: SessionKey) -> None:
        """End a member's session and release its records."""
        session = self.sessions.remove(session_key)
        if session is not None:
            self._release(session_key, session.partitions)

    def disconnected(self, connection: int) -> None:
        """End the session of a closed connection and release its records."""
        session, empty = self.sessions.disconnected(connection)
        if session is not None:
            self._release(session.key, session.partitions)
        if empty is not None:
            self.group_gone(empty)

    def _release(self, session_key: SessionKey, topic_partitions: Iterable[TopicIdPartition]) -> None:
        for topic_partition in topic_partitions:
            partition = self.get(session_key.group_id, topic_partition)
            if partition is not None:
                self._drop_on_error(partition, partition.release(session_key.member_id))

    def _drop_on_error(
        self, partition: SharePartition, response: Pending[KafkaError | None]
    ) -> Pending[KafkaError | None]:
        """Drop the share partition if the result is an error that ends it."""

        def answered(error: KafkaError | None) -> KafkaError | None:
            if error is not None and error.code in ENDS_PARTITION and self._partitions.get(partition.key) is partition:
                self.drop([partition.key])
            return error

        return response.map(answered)

    # Waking fetches

    def _wake_later(self, partition: SharePartition) -> None:
        if partition.key in self.waiting_fetches:
            if not self._woken:
                self._broker.runtime.world.clock.call_soon(self._wake)
            self._woken[partition.key] = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            for wake in list(self.waiting_fetches.get(key, ())):
                wake()


def all_of(pendings: Mapping[K, Pending[V]]) -> Pending[dict[K, V]]:
    """Return a Pending of all results, which completes with the last one and cannot be cancelled."""
    responses: dict[K, V] = {}
    combined: Pending[dict[K, V]] = Pending()
    if not pendings:
        combined.complete(responses)

    def keep(key: K, response: V) -> None:
        responses[key] = response
        if len(responses) == len(pendings):
            combined.complete({name: responses[name] for name in pendings})

    for key, pending in pendings.items():
        pending.on_complete(partial(keep, key))
    return combined
