"""The share partitions of one node: made when a group first fetches, dropped when they are of no use any more.

What happens to records is `ottla.shares`'; this gives it logs, configs and time, and wakes the fetches that wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ottla.cluster.configs import ConfigResourceType
from ottla.cluster.configs.effective import group_values
from ottla.pending import Pending, kept
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.shares.environment import ShareCounts, SharePartitionKey
from ottla.shares.partition import ENDS_PARTITION, Phase, SharePartition
from ottla.shares.sessions import Place, SessionKey, ShareSessions
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
    """What groups share of the partitions that this node leads, and the sessions in which they do."""

    def __init__(self, broker: Broker, store: ShareStateStore) -> None:
        self._broker = broker
        self.store = store
        self.sessions = ShareSessions(lambda: broker.config_int("group.share.max.share.sessions"))
        self.counts = ShareCounts()
        self.waits: dict[SharePartitionKey, dict[Callable[[], None], None]] = {}
        """Who waits for records of a share partition; each is called when there may be some."""
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._settings: dict[str, ShareSettings] = {}
        self._woken: dict[SharePartitionKey, None] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._partitions.values())

    # Configs.

    def settings(self, group_id: str) -> ShareSettings:
        """The configs of a group."""
        own = self._broker.cluster.image.config(ConfigResourceType.GROUP, group_id)
        name = group_id if own else ""
        found = self._settings.get(name)
        if found is None:
            values = group_values(own, self._broker.layers)
            found = self._settings[name] = ShareSettings.read(values.__getitem__)
        return found

    def configs_changed(self) -> None:
        """Look configs up again."""
        self._settings.clear()

    # Partitions.

    def get(self, group_id: str, place: Place) -> SharePartition | None:
        """A share partition, if somebody has fetched from it."""
        return self._partitions.get(SharePartitionKey(group_id, *place))

    def led(self, place: Place) -> Partition:
        """The partition itself, which this node has to lead."""
        topic = self._broker.cluster.image.topics.get(place.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self._broker.leader_partition(topic.name, place.partition)

    def obtain(self, group_id: str, place: Place) -> SharePartition:
        """A share partition, begun if it has to be. KafkaError if this node does not lead it."""
        partition = self.led(place)
        key = SharePartitionKey(group_id, *place)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = SharePartition(
                key,
                partition.state.leader_epoch,
                clock=self._broker.cluster.world.clock,
                store=self.store,
                settings=lambda: self.settings(group_id),
                reset_offset=lambda: self._reset_offset(group_id, partition),
                changed=self._changed,
                counts=self.counts,
            )
            found.initialize()
        if found.phase is Phase.FAILED:
            self.drop([key])
        return found

    def _reset_offset(self, group_id: str, partition: Partition) -> int:
        """Where a group begins that never read a partition."""
        log, reset = partition.log, self.settings(group_id).auto_offset_reset
        if reset == EARLIEST:
            return log.log_start_offset
        if reset.startswith(BY_DURATION):
            timestamp = log.env.clock.now_ms() - duration_ms(reset.removeprefix(BY_DURATION))
            found = log.offset_for_timestamp(max(timestamp, 0))
            if found is None or found.offset >= log.high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"Offset for timestamp {timestamp} not found for topic partition: {partition.topic_id}:"
                    f"{partition.topic}-{partition.index}",
                )
            return found.offset
        return log.high_watermark

    def drop(self, keys: Iterable[SharePartitionKey]) -> None:
        """Forget share partitions; whoever fetches next begins with what the store has."""
        for key in list(keys):
            found = self._partitions.pop(key, None)
            if found is not None:
                found.fence()

    def partition_gone(self, topic_id: Uuid, index: int) -> None:
        """Another node leads a partition now, or nobody."""
        self.drop(key for key in self._partitions if key.topic_id == topic_id and key.partition == index)

    def group_gone(self, group_id: str) -> None:
        """A group has nobody here any more."""
        self.drop(key for key in self._partitions if key.group_id == group_id)

    def stop(self) -> None:
        """Forget all of them and every session; no lock ends any more."""
        self.drop(self._partitions)
        self.sessions.clear()

    # What members say.

    def acknowledge(
        self, who: SessionKey, said: Mapping[Place, Sequence[Acknowledgement]]
    ) -> Pending[dict[Place, KafkaError | None]]:
        """Take acknowledgements; the answers come when all are written."""
        answers: dict[Place, Pending[KafkaError | None]] = {}
        for place, acknowledgements in said.items():
            partition = self.get(who.group_id, place)
            if partition is None:
                answers[place] = kept(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HERE))
                continue
            answers[place] = self._looked_at(partition, partition.acknowledge(who.member_id, acknowledgements))
        return all_of(answers)

    def end_session(self, who: SessionKey) -> None:
        """A member leaves: what it holds goes back."""
        session = self.sessions.remove(who)
        if session is not None:
            self._release(who, session.partitions)

    def disconnected(self, connection: int) -> None:
        """A connection is gone, and the session that belonged to it."""
        session, empty = self.sessions.disconnected(connection)
        if session is not None:
            self._release(session.key, session.partitions)
        if empty is not None:
            self.group_gone(empty)

    def _release(self, who: SessionKey, places: Iterable[Place]) -> None:
        for place in places:
            partition = self.get(who.group_id, place)
            if partition is not None:
                self._looked_at(partition, partition.release(who.member_id))

    def _looked_at(self, partition: SharePartition, answer: Pending[KafkaError | None]) -> Pending[KafkaError | None]:
        """The answer; if it says that the partition is of no use any more, that is dropped."""

        def answered(error: KafkaError | None) -> KafkaError | None:
            if error is not None and error.code in ENDS_PARTITION and self._partitions.get(partition.key) is partition:
                self.drop([partition.key])
            return error

        return answer.map(answered)

    # Waking.

    def _changed(self, partition: SharePartition) -> None:
        if partition.key in self.waits:
            if not self._woken:
                self._broker.cluster.world.clock.call_soon(self._wake)
            self._woken[partition.key] = None

    def _wake(self) -> None:
        woken, self._woken = self._woken, {}
        for key in woken:
            for wake in list(self.waits.get(key, ())):
                wake()


def all_of(promises: Mapping[K, Pending[V]]) -> Pending[dict[K, V]]:
    """What all of them promise, when the last has kept it; nobody can cancel what is being written."""
    answers: dict[K, V] = {}
    whole: Pending[dict[K, V]] = Pending()
    if not promises:
        whole.complete(answers)

    def keep(key: K, answer: V) -> None:
        answers[key] = answer
        if len(answers) == len(promises):
            whole.complete({each: answers[each] for each in promises})

    for key, promise in promises.items():
        promise.on_complete(partial(keep, key))
    return whole
