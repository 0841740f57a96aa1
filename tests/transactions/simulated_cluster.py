"""Two coordinators, real logs on a memory disk, and a network and nodes that fail as a seed says.

Everything durable is in Kafka's own logs: a node that crashes comes back by reading them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ottla.pending import Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.builder import BatchBuilder
from ottla.records.control import ControlType, parse_control_key
from ottla.records.iterate import Record, iter_all_records, iter_records
from ottla.storage.config import LogConfig
from ottla.storage.environment import StorageEnvironment
from ottla.storage.log.log import Log
from ottla.storage.log.producer_state import AppendOrigin
from ottla.storage.names import TopicPartition
from ottla.transactions.coordinator import TransactionCoordinator
from ottla.transactions.environment import NO_LEADER, LogRecord, ProducerIdBlock, TransactionConfig, TransactionMarker
from ottla.transactions.verification import PartitionVerifier, Verifications, produce_operation
from ottla.world.disk_memory import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.world.clock import VirtualClock
    from ottla.world.random import SeededRandom

NONE = ErrorCode.NONE
STATE_PARTITIONS = 2
DATA = [TopicPartition("data", index) for index in range(3)]
CONFIG = TransactionConfig(
    abort_timed_out_transaction_cleanup_interval_ms=500,
    transaction_max_timeout_ms=60_000,
)


class Produced(NamedTuple):
    """The response to a produced batch."""

    error: ErrorCode
    offset: int = -1


class Batch(NamedTuple):
    """One batch of one value from a transactional producer."""

    version: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequence: int
    partition: TopicPartition
    value: int


@dataclass
class Node:
    """A broker, with a coordinator while it runs."""

    number: int
    coordinator: TransactionCoordinator | None = None
    life: int = 0


@dataclass
class DataPartition:
    """A partition with its log and the verifications of its leader."""

    log: Log
    verifications: Verifications = field(default_factory=Verifications)


@dataclass
class StatePartition:
    """A partition of `__transaction_state` and its leader."""

    log: Log
    leader: int = NO_LEADER
    epoch: int = 0


class SimulatedCluster:
    """The broker side of the simulation.

    `late` lets markers, and the news of another leader, arrive late. Only newer clients are safe from that: that every
    transaction has an epoch of its own is what KIP-890's second part is for.
    """

    def __init__(self, clock: VirtualClock, random: SeededRandom, *, late: bool) -> None:
        self.clock = clock
        self.random = random
        self.late = late
        self.calm = False
        self.next_producer_id = 0
        self._disk = MemoryDisk(clock=clock)
        self._disk.make_dirs("/logs")
        self.data = {topic_partition: DataPartition(self._open(topic_partition)) for topic_partition in DATA}
        self.states = [
            StatePartition(self._open(TopicPartition("__transaction_state", index)))
            for index in range(STATE_PARTITIONS)
        ]
        self.nodes = [Node(0), Node(1)]
        for node in self.nodes:
            self.boot(node)
        for index in range(STATE_PARTITIONS):
            self.elect(index, index % 2)

    def chance(self, probability: float) -> bool:
        """Return whether a fault happens now; never after the faults have ended."""
        return not self.calm and self.random.float() < probability

    def _open(self, topic_partition: TopicPartition) -> Log:
        environment = StorageEnvironment(self._disk, self.clock, self.random)
        return Log.open(
            environment, f"/logs/{topic_partition}", topic_partition, LogConfig(segment_bytes=20_000), clean=False
        )

    # Nodes and leadership

    def boot(self, node: Node) -> None:
        """Start a node with an empty coordinator."""
        node.life += 1
        view = _NodeView(self, node, node.life)
        node.coordinator = TransactionCoordinator(self.clock, view, view, view, view, CONFIG)
        node.coordinator.start()

    def crash(self, node: Node) -> None:
        """Kill a node; the other one becomes leader of its partitions, and open logs are recovered."""
        assert node.coordinator is not None
        node.coordinator.stop()
        node.coordinator = None
        node.life += 1
        for topic_partition in list(self.data):
            if topic_partition.partition % 2 == node.number:
                self.data[topic_partition] = DataPartition(self._open(topic_partition))
        for index, state in enumerate(self.states):
            if state.leader == node.number:
                state.log = self._open(TopicPartition("__transaction_state", index))
                self.elect(index, 1 - node.number)

    def elect(self, index: int, leader: int) -> None:
        """Change the leader of a partition; the old one may resign late, and the new one has to load first."""
        state = self.states[index]
        old, state.leader = state.leader, leader
        state.epoch += 1
        epoch = state.epoch
        before = self.nodes[old] if old != NO_LEADER and old != leader else None
        if before is not None and before.coordinator is not None:
            coordinator = before.coordinator
            if self.late and self.chance(0.5):
                self.clock.call_later(self.random.float() * 0.3, self._resign, before, coordinator, index)
            else:
                coordinator.unload(index)
        node = self.nodes[leader]
        if node.coordinator is not None:
            node.coordinator.begin_load(index, epoch)
            self.clock.call_later(self.random.float() * 0.1, self._load, node, node.life, index, epoch)
        else:
            state.leader = NO_LEADER

    def _resign(self, node: Node, coordinator: TransactionCoordinator, index: int) -> None:
        if self.states[index].leader != node.number:
            coordinator.unload(index)

    def _load(self, node: Node, life: int, index: int, epoch: int) -> None:
        state = self.states[index]
        if node.coordinator is None or node.life != life or state.epoch != epoch:
            return
        unreadable = node.coordinator.load(index, epoch, _records(state.log))
        assert not unreadable, unreadable

    def coordinator_of(self, transactional_id: str, *, sure: bool = False) -> TransactionCoordinator | None:
        """Return the coordinator of a transactional id, or now and then another one."""
        alive = [node for node in self.nodes if node.coordinator is not None]
        if not sure and alive and self.chance(0.03):
            return self.random.choice(alive).coordinator
        for node in alive:
            assert node.coordinator is not None
            leader = self.states[node.coordinator.partition_for(transactional_id)].leader
            return self.nodes[leader].coordinator if leader != NO_LEADER else None
        return None

    # Data

    def produce(self, batch: Batch) -> Pending[Produced]:
        """Append a batch as the leader of its partition does."""
        response: Pending[Produced] = Pending()
        partition = self.data[batch.partition]
        operation = produce_operation(batch.version)
        entry = partition.log.producers.producers.get(batch.producer_id)
        try:
            guard = partition.verifications.start(
                batch.producer_id,
                batch.producer_epoch,
                batch.sequence,
                self.clock.now_ms(),
                known_epoch=None if entry is None else entry.producer_epoch,
                ongoing=partition.log.has_ongoing_transaction(batch.producer_id, batch.producer_epoch),
                supports_epoch_bump=operation.supports_epoch_bump,
            )
        except KafkaError as error:
            response.complete(Produced(error.code))
            return response

        def verified(errors: dict[TopicPartition, KafkaError]) -> None:
            if batch.partition in errors:
                response.complete(Produced(errors[batch.partition].code))
                return
            if guard is not None and self.chance(0.1):  # the append waits for its turn, and the world moves on
                self.clock.call_later(self.random.float(), append)
            else:
                append()

        def append() -> None:
            current = self.data[batch.partition]
            may = guard is None or current.verifications.may_append(batch.producer_id, guard)
            response.complete(self._append(batch, current, may, operation.supports_epoch_bump))

        if guard is None:
            verified({})
        else:
            verifier = PartitionVerifier(self.clock, lambda: CONFIG, self.coordinator_of)
            verifier.before_produce(
                batch.transactional_id, batch.producer_id, batch.producer_epoch, [batch.partition], operation
            ).on_complete(verified)
        return response

    def _append(self, batch: Batch, partition: DataPartition, may: bool, supports_epoch_bump: bool) -> Produced:
        builder = BatchBuilder(
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.sequence,
            transactional=True,
        )
        builder.append(None, str(batch.value).encode(), (), self.clock.now_ms())
        try:
            if may:
                partition.verifications.check_sequence(batch.producer_id, batch.sequence)
            result = partition.log.append_as_leader(
                builder.build(), 0, verified=may, supports_epoch_bump=supports_epoch_bump
            )
        except KafkaError as error:
            return Produced(error.code)
        partition.verifications.appended(batch.producer_id, batch.producer_epoch, is_control=False)
        return Produced(NONE, result.first_offset)

    def write_marker(self, marker: TransactionMarker, topic_partition: TopicPartition) -> ErrorCode:
        """Append a marker as the leader of its partition does."""
        partition = self.data[topic_partition]
        try:
            partition.log.append_marker(
                ControlType.COMMIT if marker.committed else ControlType.ABORT,
                0,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
        except KafkaError as error:
            return error.code
        partition.verifications.appended(marker.producer_id, marker.producer_epoch, is_control=True)
        return NONE

    def fetch(
        self, topic_partition: TopicPartition, offset: int, max_bytes: int = 2000
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the offsets and values of a read_committed fetch, and the next offset."""
        log = self.data[topic_partition].log
        read = log.read(offset, max_bytes, log.last_stable_offset, aborted=True)
        if read.records is None:
            return [], offset
        with read.records as records:
            data = records.read_all()
        waiting = sorted(read.aborted or [], key=lambda batch: batch.first_offset)
        aborted: set[int] = set()
        result: list[tuple[int, int]] = []
        for header in iter_batches(data):
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                (control,) = iter_records(data, header)
                if parse_control_key(control.key) is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in iter_records(data, header):
                    if record.offset >= offset:
                        assert record.value is not None
                        result.append((record.offset, int(record.value)))
            next_offset = header.next_offset
        return result, next_offset


def _records(log: Log) -> list[Record]:
    stored: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, log.log_end_offset)
        assert read.records is not None
        with read.records as records:
            data = records.read_all()
        for header, record in iter_all_records(data):
            stored.append(record)
            offset = header.next_offset
    return stored


class _NodeView:
    """The cluster as one incarnation of a node sees it; responses after its end are dropped."""

    def __init__(self, cluster: SimulatedCluster, node: Node, life: int) -> None:
        self._cluster = cluster
        self._node = node
        self._life = life

    def _later(self, pending: Pending[object], response: object, most: float) -> None:
        cluster = self._cluster

        def deliver() -> None:
            if self._node.life == self._life:
                pending.complete(response)

        if cluster.chance(0.5):
            cluster.clock.call_later(cluster.random.float() * most, deliver)
        else:
            deliver()

    def write(self, partition: int, records: Sequence[LogRecord]) -> Pending[ErrorCode]:
        cluster, state = self._cluster, self._cluster.states[partition]
        pending: Pending[ErrorCode] = Pending()
        if state.leader != self._node.number or self._node.life != self._life:
            self._later(pending, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.02)  # type: ignore[arg-type]
        elif cluster.chance(0.02):
            self._later(pending, ErrorCode.NOT_ENOUGH_REPLICAS, 0.02)  # type: ignore[arg-type]
        else:
            builder = BatchBuilder()
            for record in records:
                builder.append(record.key, record.value, (), record.timestamp_ms)
            state.log.append_as_leader(builder.build(), state.epoch, origin=AppendOrigin.COORDINATOR)
            self._later(pending, NONE, 0.02)  # type: ignore[arg-type]
        return pending

    def allocate_producer_ids(self) -> Pending[ProducerIdBlock | None]:
        pending: Pending[ProducerIdBlock | None] = Pending()
        block = None
        if not self._cluster.chance(0.2):
            block = ProducerIdBlock(self._cluster.next_producer_id, 3)
            self._cluster.next_producer_id += 3
        self._later(pending, block, 0.02)  # type: ignore[arg-type]
        return pending

    def send_markers(
        self, marker: TransactionMarker, partitions: Sequence[TopicPartition]
    ) -> Pending[dict[TopicPartition, ErrorCode]]:
        cluster = self._cluster
        pending: Pending[dict[TopicPartition, ErrorCode]] = Pending()
        results: dict[TopicPartition, ErrorCode] = {}
        for topic_partition in partitions:
            if cluster.chance(0.1):
                results[topic_partition] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif cluster.chance(0.05):
                results[topic_partition] = (
                    ErrorCode.REQUEST_TIMED_OUT
                )  # and yet it may be written, now or a good while later
                if cluster.late:
                    cluster.clock.call_later(cluster.random.float() * 5, cluster.write_marker, marker, topic_partition)
                elif cluster.chance(0.5):
                    cluster.write_marker(marker, topic_partition)
            else:
                results[topic_partition] = cluster.write_marker(marker, topic_partition)
                if cluster.chance(0.1):
                    cluster.write_marker(marker, topic_partition)
        self._later(pending, results, 0.1)  # type: ignore[arg-type]
        return pending

    def leader_of(self, partition: TopicPartition) -> int | None:
        return NO_LEADER if self._cluster.chance(0.05) else 0

    def transaction_partition_count(self) -> int:
        return STATE_PARTITIONS

    def transaction_version(self) -> int:
        return 2
